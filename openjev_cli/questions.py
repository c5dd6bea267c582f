"""The three kinds of question and how they are written: plain text, JSON, YAML.

Holds the text grammar (a hand-written scanner), the wire shapes, and the checks of both. It does not say how
a question looks in a prompt, and knows nothing of states.

    line     = blank | "#" anything | [ id ":" WS+ ] text [ "[" group "]" ]
    id       = a letter or _ (any script), then letters, digits, _ . - ; up to 64
    group    = the balanced, unescaped [...] that ends the line
    choice   = item ("|" item)+             any unescaped "|" in the group: then "<" is an ordinary character
    score    = level (WS "<" WS level)+     else: "<" with a space on both sides
    item     = name [ ":" WS+ description ] first unescaped colon that a space follows
    escape   = "\\" then one of  \\ | < [ ] : #       any other backslash stays
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from openjev_cli import errors, reading

MIN_OPTIONS, MAX_OPTIONS = 2, 255
MIN_LEVELS, MAX_LEVELS = 2, 64
MAX_ID_LENGTH = 64
TYPES = ("noul", "choice", "score")


@dataclass(frozen=True)
class Noul:
    """A yes/no question. yes, no: what counts as each, or None."""

    id: str
    text: str
    yes: str | None = None
    no: str | None = None


@dataclass(frozen=True)
class Option:
    """One option of a choice. `name` is exactly what was written, its control characters too: it is a key of
    the answer. A prompt shows `reading.visible(name)`."""

    name: str
    description: str | None = None


@dataclass(frozen=True)
class Choice:
    """A question answered by one of 2-255 named options."""

    id: str
    text: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Level:
    """One level of a rubric: its readable text, and the JSON value that the wire's legend echoes."""

    text: str
    legend: reading.Plain = field(hash=False)


@dataclass(frozen=True)
class Score:
    """A question answered by a place on an ordered rubric of 2-64 levels, lowest first. is_descending: the
    levels stand from highest to lowest, and the prompt says so (`orders`); nobody writes a question like that."""

    id: str
    text: str
    levels: tuple[Level, ...]
    is_descending: bool = False


Question = Noul | Choice | Score


@dataclass(frozen=True)
class Source:
    """Where questions come from: a file's name and bytes, or the text given to -Q (name "-Q").

    is_stdin: the bytes came from stdin, so the form is told by content and not by suffix.
    """

    name: str
    data: bytes
    is_inline: bool = False
    is_stdin: bool = False


def inline(text: str) -> Source:
    """Return the source of a question written on the command line."""
    return Source("-Q", reading.argument_bytes(text), is_inline=True)


def load(sources: Sequence[Source]) -> tuple[Question, ...]:
    """Return the questions of all sources, in order, each with its own id.

    Raises one InputError that lists every problem with its file, line and column. A source without a question
    is a problem. Automatic ids are q1, q2, ... by position over all sources.
    """
    found: list[_Found] = []
    problems: list[str] = []
    inlined = sum(source.is_inline for source in sources)
    next_steps: list[str] = []
    number = 0
    for source in sources:
        number += source.is_inline
        if source.is_inline and inlined > 1:
            source = replace(source, name=f"-Q[{number}]")
        try:
            entries, faults = _read(source)
        except errors.InputError as exc:
            problems += exc.problems
            next_steps.append(exc.next_step)
            continue
        found += entries
        problems += faults
        if not entries and not faults:
            problems.append(f"{source.name}: no question in it")
    if not sources:
        problems.append("no questions given")
    clashes, named = _name(found)
    problems += clashes
    if problems:
        # The reader's own advice (the quoted YAML line) beats the general one.
        next_step = next_steps[0] if next_steps else "Correct the question list there."
        raise errors.collect(problems, next_step=next_step)
    return named


def from_wire(value: reading.Value) -> tuple[tuple[Question, ...], tuple[reading.Problem, ...]]:
    """Return the questions of a wire `questions` object and every problem found, with paths inside it."""
    problems: list[reading.Problem] = []
    if not isinstance(value, dict):
        return (), (reading.Problem((), "must be an object of questions"),)
    if not value:
        return (), (reading.Problem((), "must hold at least one question"),)
    reader = _Wire(problems)
    found = [reader.question(id, held, (id,)) for id, held in value.items()]
    return tuple(question for question in found if question is not None), tuple(problems)


def choice(text: str, options: Sequence[str]) -> Choice:
    """Return the choice between options written NAME or NAME:DESCRIPTION, as `openjev pick` takes them.

    The first colon that no backslash precedes ends a name. Raises InputError with every problem.
    """
    problems: list[str] = []
    found: list[Option] = []
    places: dict[str, int] = {}
    for number, written in enumerate(options, start=1):
        chars = _scan(reading.argument(written, name=f"-o[{number}]"))
        cut = next((i for i, char in enumerate(chars) if _is(char, ":")), len(chars))
        name, description = _text(_trim(chars[:cut])), _text(_trim(chars[cut + 1 :]))
        if not name:
            problems.append(f"-o[{number}]: an option without a name")
            continue
        if cut < len(chars) and not description:
            problems.append(f"-o[{number}]: the description is missing behind {reading.shorten(name)}:")
        first = places.setdefault(_same_name(name), number)
        if first != number:
            problems.append(
                f"-o[{number}]: the option {reading.shorten(name)} is already given by -o[{first}]"
            )
        found.append(Option(name, reading.visible(description) or None))
    text = reading.argument(text, name="the question").strip()
    if not text:
        problems.append("the question is empty")
    if not MIN_OPTIONS <= len(options) <= MAX_OPTIONS:
        problems.append(f"{len(options)} given with -o: {MIN_OPTIONS} to {MAX_OPTIONS} options are allowed")
    if problems:
        raise errors.collect(problems, next_step="write \\: for a colon in a name; see openjev pick --help")
    return Choice("q1", reading.visible(text), tuple(found))


def to_wire(question: Question) -> reading.Plain:
    """Return the question as the JSON object of the wire (without its id, which is its key there)."""
    wire: dict[str, reading.Plain] = {"instructions": question.text}
    if isinstance(question, Noul):
        sides = {"true": question.yes, "false": question.no}
        criteria: dict[str, reading.Plain] = {side: text for side, text in sides.items() if text is not None}
        return {"type": "noul", **wire, **({"criteria": criteria} if criteria else {})}
    if isinstance(question, Choice):
        options: dict[str, reading.Plain] = {option.name: option.description for option in question.options}
        return {"type": "choice", **wire, "criteria": options}
    return {"type": "score", **wire, "criteria": [level.legend for level in question.levels]}


# Sources


@dataclass(frozen=True)
class _Found:
    """A question as it was read. is_named: it has an id of its own; where: file:line:column."""

    question: Question
    is_named: bool
    where: str


def _name(found: Sequence[_Found]) -> tuple[list[str], tuple[Question, ...]]:
    """Return the clashes of ids, and the questions with automatic ids filled in."""
    written: dict[str, str] = {}
    clashes: list[str] = []
    for one in found:
        if not one.is_named:
            continue
        id = one.question.id
        if id in written:
            clashes.append(f"{one.where}: the id {reading.shorten(id)} is already used at {written[id]}")
        written.setdefault(id, one.where)
    named: list[Question] = []
    for position, one in enumerate(found, start=1):
        automatic = f"q{position}"
        if not one.is_named and automatic in written:
            clashes.append(
                f"{one.where}: the automatic id {automatic} is already written at {written[automatic]}: "
                "give this question an id"
            )
        named.append(one.question if one.is_named else replace(one.question, id=automatic))
    return clashes, tuple(named)


def _read(source: Source) -> tuple[list[_Found], list[str]]:
    """Return a source's questions and its problems. Raises InputError when nothing of it can be read."""
    text = reading.decode(source.data, name=source.name)
    suffix = "" if source.is_inline or source.is_stdin else source.name[-5:].lower()
    if suffix.endswith(".json"):
        return _Tree(reading.read_json(text, name=source.name)).read()
    if suffix.endswith((".yaml", ".yml")):
        document = reading.read_yaml(text, name=source.name, refuse_cut=True)
        return _Tree(document, is_yaml=True).read()
    if not source.is_inline and text.lstrip()[:1] in ("{", "["):
        try:
            document = reading.read_json(text, name=source.name)
        except reading.SyntaxFault:
            return _read_text(text, source.name)
        if source.is_stdin:
            return _Tree(document).read()
        raise errors.InputError(
            f"{source.name}:1:1: this is JSON, but the name says plain text",
            next_step="Name the file .json, or give it on stdin: -q -",
        )
    return _read_text(text, source.name)


def _read_text(text: str, name: str) -> tuple[list[_Found], list[str]]:
    found: list[_Found] = []
    problems: list[str] = []
    for number, line in reading.lines(text):
        if line.startswith("#") or not line.strip():
            continue
        question, faults = _Line(line).question()
        problems += [f"{name}:{number}:{fault.column}: {fault.message}" for fault in faults]
        if question is not None:
            indent = len(line) - len(line.lstrip())
            found.append(_Found(question, question.id != "", f"{name}:{number}:{indent + 1}"))
    return found, problems


# The text grammar

_Char = tuple[str, bool, int]  # character, whether a backslash took its meaning, 1-based column
_ESCAPABLE = "\\|<[]:#"


@dataclass(frozen=True)
class _Fault:
    column: int
    message: str


def _scan(text: str) -> list[_Char]:
    chars: list[_Char] = []
    at = 0
    while at < len(text):
        is_escape = text[at] == "\\" and text[at + 1 : at + 2] != "" and text[at + 1] in _ESCAPABLE
        chars.append((text[at + 1], True, at + 1) if is_escape else (text[at], False, at + 1))
        at += 1 + is_escape
    return chars


def _is(char: _Char, symbol: str) -> bool:
    return char[0] == symbol and not char[1]


def _trim(chars: Sequence[_Char]) -> list[_Char]:
    start, end = 0, len(chars)
    while start < end and chars[start][0].isspace():
        start += 1
    while end > start and chars[end - 1][0].isspace():
        end -= 1
    return list(chars[start:end])


def _text(chars: Sequence[_Char]) -> str:
    return "".join(char[0] for char in chars)


def _is_id_char(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char in "_.-"
    import unicodedata

    # Marks are part of the letters in many scripts: a vowel sign does not end an id.
    return char.isalpha() or char.isdecimal() or unicodedata.category(char)[0] == "M"


def _is_text_id(id: str) -> bool:
    is_started = id[:1].isalpha() or id[:1] == "_"
    return is_started and len(id) <= MAX_ID_LENGTH and all(_is_id_char(char) for char in id)


def _same_name(name: str) -> str:
    """Return what two names must share to be the same to a reader."""
    if name.isascii():
        return name.strip().casefold()
    import unicodedata

    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


class _Line:
    """One question in the text grammar. All faults of the line are collected."""

    def __init__(self, text: str) -> None:
        self.chars = _trim(_scan(text))
        self.faults: list[_Fault] = []

    def question(self, id: str | None = None) -> tuple[Question | None, list[_Fault]]:
        """Return the question (id "" if none is written), or None and what is wrong.

        id: the id that was written elsewhere; then none is looked for here."""
        rest = self.chars
        if id is None:
            id, rest = self._id(rest)
        text, group = self._split(rest)
        if not text and not self.faults:
            column = rest[0][2] if rest else self.chars[-1][2] + 1 if self.chars else 1
            self._fault(column, "the question is empty")
        shown = reading.visible(_text(text))
        question: Question = Noul(id, shown)
        if group is not None and not self.faults:
            question = self._group(id, shown, group)
        return (None if self.faults else question), self.faults

    def _fault(self, column: int, message: str) -> None:
        self.faults.append(_Fault(column, message))

    def _id(self, chars: list[_Char]) -> tuple[str, list[_Char]]:
        if not chars or not (chars[0][0].isalpha() or _is(chars[0], "_")):
            return "", chars
        end = 0
        while end < len(chars) and not chars[end][1] and _is_id_char(chars[end][0]):
            end += 1
        if end == len(chars) or not _is(chars[end], ":"):
            return "", chars
        if end + 1 < len(chars) and not chars[end + 1][0].isspace():
            return "", chars
        if end > MAX_ID_LENGTH:
            self._fault(chars[0][2], f"the id has {end} characters, at most {MAX_ID_LENGTH} are allowed")
        return _text(chars[:end]), _trim(chars[end + 1 :])

    def _split(self, chars: list[_Char]) -> tuple[list[_Char], list[_Char] | None]:
        """Return the question's text, and what stands in the group that ends the line (None: no group)."""
        opened: list[int] = []
        closed: dict[int, int] = {}
        stray = -1
        for at, char in enumerate(chars):
            if _is(char, "["):
                opened.append(at)
            elif _is(char, "]"):
                if opened:
                    closed[opened.pop()] = at
                else:
                    stray = at
        last = len(chars) - 1
        start = next((o for o, c in closed.items() if c == last), len(chars))
        self._check_brackets(chars, start, opened, closed, stray)
        text = _trim(chars[:start])
        return text, (chars[start + 1 : last] if start < len(chars) else None)

    def _check_brackets(
        self, chars: list[_Char], start: int, opened: list[int], closed: dict[int, int], stray: int
    ) -> None:
        """Refuse brackets in front of the group that look like a misplaced or unfinished group."""
        inside = -1
        for at in sorted(closed):
            if at < start and at > inside:
                inside = closed[at]
                if any(_is(char, "|") for char in chars[at:inside]):
                    self._fault(chars[at][2], "options come last on the line (\\[ keeps a bracket as text)")
        if opened and _has_separator(chars[opened[0] : start]):
            self._fault(chars[opened[0]][2], "this [ has no ] (\\[ keeps it as text)")
        if stray == len(chars) - 1 and _has_separator(chars):
            self._fault(chars[stray][2], "this ] has no [ (\\] keeps it as text)")

    def _group(self, id: str, text: str, group: list[_Char]) -> Question:
        is_choice = any(_is(char, "|") for char in group)
        separators = [
            at for at in range(len(group)) if (_is(group[at], "|") if is_choice else _is_below(group, at))
        ]
        column = group[0][2] if group else self.chars[-1][2]
        if not separators:
            if any(_is(char, "<") for char in group):
                self._fault(column, "put spaces round < to order levels, as in [low < high]")
            elif not _trim(group):
                self._fault(column, "no options between [ and ] (\\[ keeps a bracket as text)")
            else:
                self._fault(column, "only one option: separate options with |, levels with < in spaces")
            return Noul(id, text)
        depth = 0
        for at, char in enumerate(group):
            depth += _is(char, "[") - _is(char, "]")
            if depth and at in separators:
                self._fault(char[2], f"{char[0]} inside inner brackets: write \\{char[0]} or \\[ there")
        ends = [*separators, len(group)]
        items = [
            group[begin:end] for begin, end in zip([0, *(at + 1 for at in separators)], ends, strict=True)
        ]
        columns = [
            (_trim(item) or [group[min(end, len(group) - 1)]])[0][2]
            for item, end in zip(items, ends, strict=True)
        ]
        return self._choice(id, text, items, columns) if is_choice else self._score(id, text, items, columns)

    def _choice(self, id: str, text: str, items: list[list[_Char]], columns: list[int]) -> Question:
        options: list[Option] = []
        for item, column in zip(items, columns, strict=True):
            colons = (at for at in range(len(item) - 1) if _is(item[at], ":") and item[at + 1][0].isspace())
            colon = next(colons, len(item))
            name = _text(_trim(item[:colon]))
            description = reading.visible(_text(_trim(item[colon + 1 :])))
            if not name:
                self._fault(column, "an option without a name")
            elif colon < len(item) and not description:
                self._fault(column, f"the description is missing behind {reading.shorten(name)}:")
            options.append(Option(name, description or None))
        self._check_names([option.name for option in options], columns, "option")
        if len(options) > MAX_OPTIONS:
            self._fault(columns[MAX_OPTIONS], f"{len(options)} options: at most {MAX_OPTIONS} are allowed")
        sides = {_same_name(option.name): option.description for option in options}
        if len(options) == 2 and set(sides) == {"yes", "no"}:
            return Noul(id, text, sides["yes"], sides["no"])
        return Choice(id, text, tuple(options))

    def _score(self, id: str, text: str, items: list[list[_Char]], columns: list[int]) -> Question:
        names = [_text(_trim(item)) for item in items]
        for name, column in zip(names, columns, strict=True):
            if not name:
                self._fault(column, "a level without a name")
        self._check_names(names, columns, "level")
        if len(names) > MAX_LEVELS:
            self._fault(columns[MAX_LEVELS], f"{len(names)} levels: at most {MAX_LEVELS} are allowed")
        return Score(id, text, tuple(Level(reading.visible(name), name) for name in names))

    def _check_names(self, names: list[str], columns: list[int], kind: str) -> None:
        seen: set[str] = set()
        for name, column in zip(names, columns, strict=True):
            same = _same_name(name)
            if name and same in seen:
                self._fault(column, f"the {kind} {reading.shorten(name)} is there twice")
            seen.add(same)


def _is_below(chars: Sequence[_Char], at: int) -> bool:
    """Whether a "<" with a space on both sides stands there."""
    return (
        _is(chars[at], "<")
        and 0 < at < len(chars) - 1
        and chars[at - 1][0].isspace()
        and chars[at + 1][0].isspace()
    )


def _has_separator(chars: Sequence[_Char]) -> bool:
    return any(_is(char, "|") or _is_below(chars, at) for at, char in enumerate(chars))


# JSON and YAML


class _Tree:
    """The questions of a JSON or YAML file: wire questions, a request body, or a list or map of texts."""

    def __init__(self, document: reading.Document, *, is_yaml: bool = False) -> None:
        self.document = document
        self.is_yaml = is_yaml
        self.found: list[_Found] = []
        self.problems: list[reading.Problem] = []
        self.wire = _Wire(self.problems, is_yaml=is_yaml, is_file=True)

    def read(self) -> tuple[list[_Found], list[str]]:
        """Return the questions and the problems, as lines for the terminal."""
        value, loc = self.document.value, reading.Loc()
        if isinstance(value, dict) and _is_body(value):
            value, loc = value["questions"], ("questions",)
        if isinstance(value, dict):
            for id, held in value.items():
                self._one(id, held, (*loc, id))
        elif isinstance(value, list):
            for index, held in enumerate(value):
                self._item(held, (*loc, index))
        elif value != "" or not self.is_yaml:
            self._problem(loc, "questions are an object or a list")
        return self.found, [self.document.line(problem) for problem in self.problems]

    def _problem(self, loc: reading.Loc, message: str) -> None:
        self.problems.append(reading.Problem(loc, message))

    def _item(self, held: reading.Value, loc: reading.Loc) -> None:
        if isinstance(held, str):
            self._text(held, loc, None)
        elif isinstance(held, dict) and len(held) == 1:
            id, inner = next(iter(held.items()))
            if self.is_yaml and not _is_text_id(id):
                written = f"- {id}: {inner}" if isinstance(inner, str) else "- 'the question'"
                quoted = reading.quote_yaml(written)
                self._problem(loc, f"a text with a colon and a space must be quoted; write: {quoted}")
            else:
                self._one(id, inner, (*loc, id))
        else:
            self._problem(loc, "a question in a list is a text, or one id with its question")

    def _one(self, id: str, held: reading.Value, loc: reading.Loc) -> None:
        if isinstance(held, str):
            if not id.strip():
                self._problem(loc, "the id is empty")
            self._text(held, loc, id)
            return
        question = self.wire.question(id, held, loc)
        if question is not None:
            self.found.append(_Found(question, True, self.document.where(loc)))

    def _text(self, text: str, loc: reading.Loc, id: str | None) -> None:
        if id is None and text.startswith("#"):
            self._problem(loc, "a comment is no question (\\# starts a text with #)")
            return
        question, faults = _Line(text).question(id)
        for fault in faults:
            at = f" (at character {fault.column} of the text)" if fault.column > 1 else ""
            self._problem(loc, fault.message + at)
        if question is not None:
            self.found.append(_Found(question, question.id != "", self.document.where(loc)))


def _is_body(value: dict[str, reading.Value]) -> bool:
    """Whether this is a whole request body and not a questions object with a question called "questions"."""
    held = value.get("questions")
    return isinstance(held, list) or (isinstance(held, dict) and not isinstance(held.get("type"), str))


class _Wire:
    """Reads wire questions and appends what is wrong to `problems`.

    is_yaml: every scalar is a string, so an empty one, ~ and null say that nothing is there. is_file: written
    by hand, so a misspelt field is a problem; over HTTP unknown fields are ignored.
    """

    def __init__(
        self, problems: list[reading.Problem], *, is_yaml: bool = False, is_file: bool = False
    ) -> None:
        self.problems = problems
        self.is_yaml = is_yaml
        self.is_file = is_file

    def question(self, id: str, value: reading.Value, loc: reading.Loc) -> Question | None:
        """Return the question, or None after noting every problem of it."""
        before = len(self.problems)
        if not id.strip():
            self._problem(loc, "the id is empty")
        if not isinstance(value, dict):
            also = " or a text" if self.is_file else ""
            self._problem(loc, f"a question is an object with a type{also}")
            return None
        if self.is_file:
            self._check_fields(value, loc)
        kind = value.get("type")
        if kind not in TYPES:
            said = kind if isinstance(kind, str) else None
            missing = "" if "type" in value else "is missing: "
            self._problem((*loc, "type"), f"{missing}must be noul, choice or score", said)
        text = self._content(value.get("instructions"), (*loc, "instructions"))
        text = text if text is not None and text.strip() else reading.visible(id)
        criteria = value.get("criteria")
        at = (*loc, "criteria")
        question: Question | None = None
        if kind == "noul":
            question = self._noul(id, text, criteria, at)
        elif kind == "choice":
            question = Choice(id, text, self._options(criteria, at))
        elif kind == "score":
            question = Score(id, text, self._levels(criteria, at))
        return question if len(self.problems) == before else None

    def _problem(self, loc: reading.Loc, message: str, value: str | None = None) -> None:
        self.problems.append(reading.Problem(loc, message, value))

    def _check_fields(self, value: dict[str, reading.Value], loc: reading.Loc) -> None:
        known = ("type", "instructions", "criteria")
        for key in value:
            if key in known:
                continue
            import difflib

            near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
            if near and near[0] not in value:
                self._problem((*loc, key), f"unknown field; did you mean {near[0]}?")

    def _is_null(self, value: reading.Value) -> bool:
        return value is None or (self.is_yaml and value in ("", "~", "null", "Null", "NULL"))

    def _content(self, value: reading.Value, loc: reading.Loc) -> str | None:
        """Return the readable text of a text, object or array; None if nothing is there."""
        if self._is_null(value):
            return None
        if isinstance(value, str):
            return reading.visible(value)
        if isinstance(value, dict | list):
            return reading.visible(reading.dumps(value, compact=True))
        self._problem(loc, "must be a text, an object or an array")
        return None

    def _described(self, value: reading.Value, loc: reading.Loc) -> str | None:
        text = self._content(value, loc)
        return text if text is not None and text.strip() else None

    def _noul(self, id: str, text: str, criteria: reading.Value, loc: reading.Loc) -> Question:
        if self._is_null(criteria):
            return Noul(id, text)
        if not isinstance(criteria, dict):
            self._problem(loc, "must be an object with true and false, or absent")
            return Noul(id, text)
        sides: dict[str, str | None] = {}
        for key, held in criteria.items():
            side = {"true": "yes", "yes": "yes", "false": "no", "no": "no"}.get(key.casefold())
            if side is None:
                self._problem((*loc, key), "must be true or false")
                continue
            if side in sides:
                self._problem((*loc, key), "this side is described twice")
            sides[side] = self._described(held, (*loc, key))
        return Noul(id, text, sides.get("yes"), sides.get("no"))

    def _options(self, criteria: reading.Value, loc: reading.Loc) -> tuple[Option, ...]:
        options: list[Option] = []
        if isinstance(criteria, dict):
            for name, held in criteria.items():
                options.append(Option(name, self._described(held, (*loc, name))))
                if not name.strip():
                    self._problem((*loc, name), "an option without a name")
        elif isinstance(criteria, list):
            seen: set[str] = set()
            for index, held in enumerate(criteria):
                if not isinstance(held, str) or not held.strip():
                    self._problem((*loc, index), "must be an option's name (descriptions need an object)")
                    continue
                if held in seen:
                    self._problem((*loc, index), "this option is there twice", held)
                seen.add(held)
                options.append(Option(held))
        else:
            is_missing = self._is_null(criteria)
            missing = "is missing: " if is_missing else ""
            self._problem(loc, f"{missing}must be an object of option names and descriptions")
            return ()
        self._check_count(len(criteria), MIN_OPTIONS, MAX_OPTIONS, "options", loc)
        return tuple(options)

    def _levels(self, criteria: reading.Value, loc: reading.Loc) -> tuple[Level, ...]:
        if not isinstance(criteria, list):
            is_missing = self._is_null(criteria)
            missing = "is missing: " if is_missing else ""
            self._problem(loc, f"{missing}must be a list of levels, lowest first")
            return ()
        levels: list[Level] = []
        for index, held in enumerate(criteria):
            text = None if held is None else self._described(held, (*loc, index))
            if text is None and (held is None or isinstance(held, str)):
                self._problem((*loc, index), "a level must be a text, an object or an array")
            levels.append(Level(text or "", reading.plain(held)))
        self._check_count(len(criteria), MIN_LEVELS, MAX_LEVELS, "levels", loc)
        return tuple(levels)

    def _check_count(self, count: int, least: int, most: int, what: str, loc: reading.Loc) -> None:
        if not least <= count <= most:
            self._problem(loc, f"{count} {what[: -1 if count == 1 else None]}: {least} to {most} are allowed")
