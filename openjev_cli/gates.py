"""Gates: `refund > 0.8 and team == "billing"` as true, false or unsure.

Parses an expression over question ids, checks every name and type against the questions before anything is
asked, and evaluates it over answers. Pure, and no `eval`: a hand-written scanner and parser.

    expression = term ("or" term)*          term = factor ("and" factor)*
    factor     = "not" factor | comparison
    comparison = operand (op operand)+ | "(" expression ")"
               | operand ["not"] "in" "[" string ("," string)* "]"
    operand    = number | string | question [ ".confidence" | ".p[" option "]" ]
    question   = identifier | 'q["any id"]'            op = == != < <= > >=

A yes/no question is P(yes), a choice the chosen name, a score the expected level. Truth is Kleene's: a
comparison of a yes/no question is unsure while P(yes) is inside the unsure band, of a choice while its
confidence is under the threshold. `.p[...]` and `.confidence` are plain numbers, never unsure.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

from openjev_cli import answers, errors, questions, reading

# True, False, or None for unsure.
Truth: TypeAlias = bool | None
# The parser recurses; nobody writes this many brackets by hand.
MAX_DEPTH = 64

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = ("and", "or", "not", "in")


@dataclass(frozen=True)
class Thresholds:
    """When an answer is unsure. unsure: a band of P(yes), both ends included. min_confidence: of a choice."""

    unsure: tuple[float, float] | None = None
    min_confidence: float | None = None


SURE = Thresholds()


def is_unsure(p: float, band: tuple[float, float] | None) -> bool:
    """Return whether P(yes) lies inside the band, its ends included. Without a band nothing is unsure."""
    return band is not None and band[0] <= p <= band[1]


def all_of(truths: Iterable[Truth]) -> Truth:
    """Return Kleene's `and`: False if any is, else unsure if any is, else True."""
    seen = list(truths)
    return False if False in seen else None if None in seen else True


def any_of(truths: Iterable[Truth]) -> Truth:
    """Return Kleene's `or`: True if any is, else unsure if any is, else False."""
    seen = list(truths)
    return True if True in seen else None if None in seen else False


def negation(truth: Truth) -> Truth:
    """Return Kleene's `not`: unsure stays unsure."""
    return None if truth is None else not truth


def exit_code(truths: Iterable[Truth]) -> errors.Exit:
    """Return the exit code of gates: VERDICT if one is true, else UNSURE if one is unsure, else OK."""
    truth = any_of(truths)
    return errors.Exit.VERDICT if truth else errors.Exit.UNSURE if truth is None else errors.Exit.OK


# The tree.


@dataclass(frozen=True)
class _Number:
    value: float
    at: int


@dataclass(frozen=True)
class _Text:
    value: str
    at: int


@dataclass(frozen=True)
class _Reference:
    """A question, or one number of its answer. part: "", "confidence" or "p"; key: the option's place."""

    question: questions.Question
    at: int
    part: Literal["", "confidence", "p"] = ""
    key: int = 0

    @property
    def is_text(self) -> bool:
        return isinstance(self.question, questions.Choice) and not self.part

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value this number can have."""
        is_level = isinstance(self.question, questions.Score) and not self.part
        return (0.0, len(self.question.levels) - 1.0 if is_level else 1.0)  # type: ignore[union-attr]

    def value(self, answer: answers.Answer) -> float | str:
        if self.part == "confidence":
            return answer.confidence
        if isinstance(answer, answers.NoulAnswer):
            return answer.noul if self.key == 0 else 1.0 - answer.noul
        if isinstance(answer, answers.ChoiceAnswer):
            # By place: the answer keeps the order of the question.
            return list(answer.probabilities.values())[self.key] if self.part else answer.choice
        return answer.probabilities[self.key] if self.part else answer.score

    def is_unsure(self, answer: answers.Answer, thresholds: Thresholds) -> bool:
        if self.part:
            return False
        if isinstance(answer, answers.NoulAnswer):
            return is_unsure(answer.noul, thresholds.unsure)
        least = thresholds.min_confidence
        return isinstance(answer, answers.ChoiceAnswer) and least is not None and answer.confidence < least


_Operand: TypeAlias = _Number | _Text | _Reference


@dataclass(frozen=True)
class _Comparison:
    left: _Operand
    symbol: str
    right: _Operand


@dataclass(frozen=True)
class _In:
    left: _Reference
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Not:
    inner: _Node


@dataclass(frozen=True)
class _Join:
    is_and: bool
    parts: tuple[_Node, ...]


_Node: TypeAlias = "_Comparison | _In | _Not | _Join"


@dataclass(frozen=True)
class Gate:
    """An expression whose names and types fit the questions it was parsed for. text: as it was written."""

    text: str
    _node: _Node

    def evaluate(self, answered: Sequence[answers.Answer], thresholds: Thresholds) -> Truth:
        """Return its truth over the answers to the questions it was parsed for."""
        by_id = {answer.id: answer for answer in answered}
        return _evaluate(self._node, by_id, thresholds)


def _evaluate(node: _Node, by_id: Mapping[str, answers.Answer], thresholds: Thresholds) -> Truth:
    if isinstance(node, _Join):
        parts = [_evaluate(part, by_id, thresholds) for part in node.parts]
        return all_of(parts) if node.is_and else any_of(parts)
    if isinstance(node, _Not):
        return negation(_evaluate(node.inner, by_id, thresholds))
    if isinstance(node, _In):
        answer = by_id[node.left.question.id]
        if node.left.is_unsure(answer, thresholds):
            return None
        return node.left.value(answer) in node.names
    sides: list[float | str] = []
    for side in (node.left, node.right):
        if not isinstance(side, _Reference):
            sides.append(side.value)
            continue
        answer = by_id[side.question.id]
        if side.is_unsure(answer, thresholds):
            return None
        sides.append(side.value(answer))
    return _COMPARE[node.symbol](sides[0], sides[1])  # type: ignore[arg-type]  # both numbers or both names


# Parsing.


def parse(text: str, asked: Sequence[questions.Question], *, flag: str = "--fail-if") -> Gate:
    """Return the gate. Raises InputError with every wrong name and type and its column (1-based)."""
    return parse_all([text], asked, flag=flag)[0]


def parse_all(texts: Sequence[str], asked: Sequence[questions.Question], *, flag: str) -> tuple[Gate, ...]:
    """Return the gates of one flag, in order. Raises one InputError for all that is wrong with them."""
    gates: list[Gate] = []
    problems: list[str] = []
    for number, text in enumerate(texts, start=1):
        name = flag if len(texts) == 1 else f"{flag}[{number}]"
        parser = _Parser(text, asked)
        node = parser.parse()
        for at, message in parser.faults:
            rest = reading.shorten(text[at:], 30)
            place = f"at {rest}" if rest else "at its end"
            problems.append(f"{name}: column {at + 1}, {place}: {message}")
        if node is not None:
            gates.append(Gate(text, node))
    if problems:
        raise errors.collect(problems, next_step=f"The questions are {_summary(asked)}.")
    return tuple(gates)


def _summary(asked: Sequence[questions.Question]) -> str:
    shown = []
    for question in asked[:8]:
        if isinstance(question, questions.Noul):
            what = "P(yes)"
        elif isinstance(question, questions.Score):
            what = f"level 0 to {len(question.levels) - 1}"
        else:
            names = [reading.shorten(option.name, 20) for option in question.options[:6]]
            what = " | ".join(names) + (" | ..." if len(question.options) > 6 else "")
        shown.append(f"{_written(question.id)} ({what})")
    return ", ".join(shown) + (", ..." if len(asked) > 8 else "")


def _written(id: str) -> str:
    """Return how a question is named in an expression."""
    is_plain = id.isidentifier() and id not in _WORDS
    return id if is_plain else f"q[{reading.dumps(id, compact=True)}]"


@dataclass(frozen=True)
class _Token:
    """kind: word, number, text, symbol or end. value: the word, the text without quotes, the symbol."""

    kind: str
    value: str
    at: int


class _SyntaxFault(Exception):
    """Where the text stopped being an expression: nothing behind it can be read."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SYMBOL = re.compile(r"==|!=|<=|>=|&&|\|\||[-<>=!()\[\],.%]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}
_INSTEAD = {"=": "==", "&&": "and", "||": "or", "!": "not"}


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char.isspace():
            at += 1
            continue
        if char in "\"'":
            token, at = _scan_text(text, at)
            tokens.append(token)
            continue
        number, symbol = _NUMBER.match(text, at), _SYMBOL.match(text, at)
        if char.isidentifier():
            end = at + 1
            while end < len(text) and text[at : end + 1].isidentifier():
                end += 1
            kind, value = "word", text[at:end]
        elif number is not None:
            kind, value = "number", number[0]
        elif symbol is not None:
            kind, value = "symbol", symbol[0]
            if value in _INSTEAD:
                raise _SyntaxFault(at, f"write {_INSTEAD[value]} instead of {value}")
        else:
            raise _SyntaxFault(at, f"unexpected character {reading.visible(char)}")
        tokens.append(_Token(kind, value, at))
        at += len(value)
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _scan_text(text: str, start: int) -> tuple[_Token, int]:
    held: list[str] = []
    at = start + 1
    while at < len(text) and text[at] != text[start]:
        if text[at] == "\\":
            escaped = _ESCAPES.get(text[at + 1 : at + 2])
            if escaped is None:
                raise _SyntaxFault(at, "a backslash in quotes is written twice: \\\\")
            held.append(escaped)
            at += 2
        else:
            held.append(text[at])
            at += 1
    if at >= len(text):
        raise _SyntaxFault(start, "this quote is never closed")
    return _Token("text", "".join(held), start), at + 1


class _Parser:
    """Recursive descent. Wrong names and types are noted and parsing goes on; wrong syntax ends it."""

    def __init__(self, text: str, asked: Sequence[questions.Question]) -> None:
        self.text = text
        self.asked = {question.id: question for question in asked}
        self.faults: list[tuple[int, str]] = []
        self._tokens: list[_Token] = []
        self._next = 0
        self._depth = 0

    def parse(self) -> _Node | None:
        """Return the tree, or None; then `faults` says why."""
        node: _Node | None = None
        try:
            self._tokens = _scan(self.text)
            if len(self._tokens) == 1:
                self._stop("the expression is empty")
            node = self._or()
            if self._peek.kind != "end":
                self._stop(self._hint("and, or, or the end was expected"))
        except _SyntaxFault as fault:
            self.faults.append((fault.at, fault.message))
        self.faults.sort()
        return None if self.faults else node

    # Tokens.

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek
        self._next += token.kind != "end"
        return token

    def _is(self, *values: str) -> bool:
        return self._peek.kind in ("symbol", "word") and self._peek.value in values

    def _accept(self, *values: str) -> bool:
        found = self._is(*values)
        self._next += found
        return found

    def _expect(self, value: str) -> None:
        if not self._accept(value):
            self._stop(f"{value} was expected")

    def _stop(self, message: str, at: int | None = None) -> NoReturn:
        raise _SyntaxFault(self._peek.at if at is None else at, message)

    def _note(self, at: int, message: str) -> None:
        self.faults.append((at, message))

    def _hint(self, message: str) -> str:
        """Say how an id with - or . in it is written, when such an id stands here."""
        before = self._tokens[self._next - 1] if self._next else self._peek
        for id in sorted(self.asked, key=len, reverse=True):
            if self.text.startswith(id, before.at) and not id.isidentifier():
                return f"write {_written(id)} for the question {id}"
        if self._is("%"):
            return "probabilities are written from 0 to 1, without %"
        return message

    # Rules. None stands for a part with a fault that was noted.

    def _or(self) -> _Node:
        parts = [self._and()]
        while self._accept("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else _Join(False, tuple(parts))

    def _and(self) -> _Node:
        parts = [self._not()]
        while self._accept("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _Join(True, tuple(parts))

    def _not(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._stop(f"nested deeper than {MAX_DEPTH} levels")
        node = _Not(self._not()) if self._accept("not") else self._comparison()
        self._depth -= 1
        return node

    def _comparison(self) -> _Node:
        if self._accept("("):
            node = self._or()
            self._expect(")")
            if self._is(*_COMPARE, "in"):
                self._stop("what is in brackets is true or false: nothing can be compared with it")
            return node
        left = self._operand()
        if self._is("in") or (self._is("not") and self._tokens[self._next + 1].value == "in"):
            is_negated = self._accept("not")
            self._take()
            node = self._in(left)
            return _Not(node) if is_negated else node
        links: list[_Node] = []
        while self._is(*_COMPARE):
            symbol = self._take()
            right = self._operand()
            links.append(self._compare(left, symbol, right))
            left = right
        if not links:
            self._no_comparison(left)
        return links[0] if len(links) == 1 else _Join(True, tuple(links))

    def _no_comparison(self, left: _Operand | None) -> NoReturn:
        message = self._hint("a comparison was expected: == != < <= > >= in")
        if isinstance(left, _Reference) and message.startswith("a comparison"):
            name = _written(left.question.id)
            if left.is_text:
                message = f'a choice is compared with a name: {name} == "..."'
            else:
                message = f"a number is compared with another: {name} >= 0.5"
        self._stop(message)

    def _operand(self) -> _Operand | None:
        token = self._take()
        if token.kind == "number":
            return _Number(float(token.value), token.at)
        if token.kind == "text":
            return _Text(token.value, token.at)
        if token.kind == "word" and token.value not in _WORDS:
            return self._reference(token)
        self._next -= token.kind != "end"
        found = token.value or "the end"
        self._stop(f"a question, a number or a quoted name was expected, not {found}")

    def _reference(self, token: _Token) -> _Reference | None:
        id = token.value
        if id == "q" and self._accept("["):
            name = self._take()
            if name.kind != "text":
                self._stop('a question id in quotes was expected: q["id"]', name.at)
            self._expect("]")
            id = name.value
        question = self.asked.get(id)
        if question is None:
            longer = [one for one in self.asked if self.text.startswith(one, token.at) and one != id]
            hint = f" (write {_written(longer[0])})" if longer else errors.nearest(id, list(self.asked))
            self._note(token.at, f"no question is called {reading.shorten(id)}{hint}")
            if longer:
                # What follows is the rest of that id, no expression.
                raise _SyntaxFault(*self.faults.pop())
        return self._part(question, token.at)

    def _part(self, question: questions.Question | None, at: int) -> _Reference | None:
        if not self._accept("."):
            return None if question is None else _Reference(question, at)
        part = self._take()
        if part.kind == "word" and part.value == "confidence":
            if isinstance(question, questions.Noul):
                name = _written(question.id)
                self._note(part.at, f"a yes/no question has no confidence; compare its P(yes): {name} >= 0.8")
                return None
            return None if question is None else _Reference(question, at, "confidence")
        if part.kind != "word" or part.value != "p":
            raise _SyntaxFault(part.at, self._hint('behind the dot: confidence, or p["option"]'))
        self._expect("[")
        key = self._take()
        if key.kind not in ("text", "number"):
            self._stop('an option in quotes was expected: p["option"]', key.at)
        self._expect("]")
        place = None if question is None else self._place(question, key)
        return None if question is None or place is None else _Reference(question, at, "p", place)

    def _place(self, question: questions.Question, key: _Token) -> int | None:
        """Return which option `key` names; a level also by its number, as the wire does."""
        if isinstance(question, questions.Noul):
            names = ["yes", "no"]
        elif isinstance(question, questions.Choice):
            names = [option.name for option in question.options]
        else:
            names = [level.text for level in question.levels]
            count = names.count(key.value)
            if key.kind == "number" or (count == 0 and key.value.isascii() and key.value.isdigit()):
                if key.value.isdigit() and int(key.value) < len(names):
                    return int(key.value)
            elif count > 1:
                self._note(key.at, f"{count} levels read like this; name one by its number: .p[0]")
                return None
        if key.kind == "text" and key.value in names:
            return names.index(key.value)
        shown = reading.shorten(key.value)
        self._note(key.at, f"{question.id} has no option {shown}{errors.nearest(key.value, names)}")
        return None

    # Types.

    def _compare(self, left: _Operand | None, symbol: _Token, right: _Operand | None) -> _Node:
        if left is None or right is None:
            return _Join(True, ())
        sides = (left, right)
        if not any(isinstance(side, _Reference) for side in sides):
            self._note(left.at, "this compares two fixed values: no question is in it")
            return _Join(True, ())
        named = [side for side in sides if isinstance(side, _Text) or getattr(side, "is_text", False)]
        if len(named) == 1:
            self._mixed(left, right)
        elif len(named) == 2:
            if symbol.value not in ("==", "!="):
                self._note(symbol.at, f"names are equal or not: {symbol.value} is for numbers")
            self._check_names(left, right)
        else:
            self._check_range(left, right)
        return _Comparison(left, symbol.value, right)

    def _mixed(self, left: _Operand, right: _Operand) -> None:
        """Note that a name is compared with a number, and what was probably meant."""
        for side, other in ((left, right), (right, left)):
            if isinstance(side, _Text) and isinstance(other, _Reference):
                return self._note(side.at, self._instead_of_name(other, side.value))
            if isinstance(side, _Reference) and side.is_text:
                name = _written(side.question.id)
                message = f'{name} is a choice: compare it with a name, or {name}.p["option"] with a number'
                return self._note(other.at, message)
        return None

    def _instead_of_name(self, number: _Reference, name: str) -> str:
        question, written = number.question, _written(number.question.id)
        if number.part or isinstance(question, questions.Choice):
            return "this is compared with a number from 0 to 1"
        if isinstance(question, questions.Noul):
            symbol = "<" if name.casefold() in ("no", "false") else ">="
            return f"{written} is P(yes), a number: write {written} {symbol} 0.5"
        levels = [level.text for level in question.levels]
        meant = f"; {name} is level {levels.index(name)}" if name in levels else ""
        return f"{written} is the expected level, a number from 0 to {len(levels) - 1}{meant}"

    def _check_names(self, left: _Operand, right: _Operand) -> None:
        for side, other in ((left, right), (right, left)):
            if isinstance(side, _Text) and isinstance(other, _Reference):
                self._check_name(other, side)

    def _check_name(self, reference: _Reference, name: _Text) -> None:
        assert isinstance(reference.question, questions.Choice)
        known = [option.name for option in reference.question.options]
        if name.value not in known:
            shown = reading.shorten(name.value)
            hint = errors.nearest(name.value, known)
            self._note(name.at, f"{reference.question.id} has no option {shown}{hint}")

    def _check_range(self, left: _Operand, right: _Operand) -> None:
        """A number that the answer can never reach is a slip (80 for 0.8), and a gate that never acts."""
        for side, other in ((left, right), (right, left)):
            if isinstance(side, _Number) and isinstance(other, _Reference):
                least, most = other.bounds
                if not least <= side.value <= most:
                    self._note(side.at, f"the value it is compared with lies between {least:g} and {most:g}")

    def _in(self, left: _Operand | None) -> _Node:
        if not (self._is("[") or self._is("(")):
            self._stop('a list of names was expected: in ["billing", "sales"]')
        closing = "]" if self._take().value == "[" else ")"
        names: list[_Text] = []
        while not self._is(closing):
            token = self._take()
            if token.kind != "text":
                self._stop("a quoted name was expected", token.at)
            names.append(_Text(token.value, token.at))
            if not self._accept(",") and not self._is(closing):
                self._stop(f", or {closing} was expected")
        end = self._take()
        if not names:
            self._note(end.at, "the list is empty: nothing can be in it")
        if isinstance(left, _Reference) and left.is_text:
            for name in names:
                self._check_name(left, name)
            return _In(left, tuple(name.value for name in names))
        if left is not None:
            self._note(left.at, "only a choice can be in a list of names")
        return _Join(True, ())
