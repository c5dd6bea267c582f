"""What an answer set expects of an answer: read from the set, checked against an answer.

team: billing                       the decision: an option, yes or no, a level
refund: {min: 0.8}                  P(yes); of a score the expected level; inclusive
urgency: {between: [2, 3]}
team: {choice: billing, min: 0.6}   the decision, and the bounds of its probability
team: {p: {billing: 0.7, sales: {max: 0.1}}}    probabilities: within the tolerance, or within bounds
refund: {p: 0.93}                   P(yes) within the tolerance
any of them may hold allow_flip: true
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from openjev_cli import answers, questions, reading

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_KEYS = ("min", "max", "between", "p", "choice", "allow_flip")
# A bound that was copied from a printed number must not fail by its last bit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Bounds:
    """An interval, both ends included. near: a value to be within the tolerance of, or None."""

    least: float = float("-inf")
    most: float = float("inf")
    near: float | None = None

    def unmet(self, value: float, tolerance: float) -> str:
        """Return what is wrong with `value`, or ""."""
        if self.near is not None and abs(value - self.near) > tolerance + _ROUNDING:
            return f"{value:.4f} is not within {tolerance:g} of {self.near:g}"
        if value < self.least - _ROUNDING:
            return f"{value:.4f} is under {self.least:g}"
        if value > self.most + _ROUNDING:
            return f"{value:.4f} is over {self.most:g}"
        return ""


@dataclass(frozen=True)
class Expectation:
    """What is expected of one answer. choice: the decision, or None. bounds: of P(yes), the level, or the
    chosen option's probability. p: bounds by option (levels by number)."""

    choice: str | None = None
    bounds: Bounds | None = None
    p: Mapping[str, Bounds] = field(default_factory=dict)
    allow_flip: bool = False

    def unmet(self, answer: answers.Answer, tolerance: float) -> list[str]:
        """Return what does not hold, one line each."""
        found: list[str] = []
        if self.choice is not None and answer.value != self.choice:
            found.append(f"expected {self.choice}, got {answer.value}")
        if self.bounds is not None:
            name, value = _measured(answer, self.choice)
            problem = self.bounds.unmet(value, tolerance)
            if problem:
                found.append(f"{name} {problem}")
        for option, bounds in self.p.items():
            problem = bounds.unmet(_p_of(answer, option), tolerance)
            if problem:
                found.append(f"p of {option} {problem}")
        return found


def _measured(answer: answers.Answer, choice: str | None) -> tuple[str, float]:
    if isinstance(answer, answers.NoulAnswer):
        return "P(yes)", answer.noul
    if isinstance(answer, answers.ScoreAnswer):
        return "the expected level", answer.score
    return f"p of {choice}", answer.probabilities[choice or answer.choice]


def _p_of(answer: answers.Answer, option: str) -> float:
    if isinstance(answer, answers.NoulAnswer):
        return answer.noul if option == "yes" else 1.0 - answer.noul
    if isinstance(answer, answers.ChoiceAnswer):
        return answer.probabilities[option]
    return answer.probabilities[int(option)]


class Values:
    """Reads expectations and notes what is wrong.

    problem: called with a place and a message. is_quoted: for YAML, where every scalar is a string: whether
    one was written in quotes; None for JSON, whose numbers are numbers.
    """

    def __init__(
        self,
        loc: reading.Loc,
        problem: Callable[[reading.Loc, str], None],
        is_quoted: Callable[[reading.Loc], bool] | None,
    ) -> None:
        self._loc = loc
        self._problem = problem
        self._is_quoted = is_quoted

    def number(self, value: reading.Value, loc: reading.Loc | None = None) -> float | None:
        """Return a number, or None after noting why it is none: text, quotes, NaN, nothing."""
        loc = self._loc if loc is None else loc
        if isinstance(value, reading.Number):
            return float(value.text)
        if self._is_quoted is not None and isinstance(value, str) and _NUMBER.fullmatch(value):
            if not self._is_quoted(loc):
                return float(value)
            self._problem(loc, f"must be a number, and {value!r} in quotes is a text")
            return None
        shown = "nothing" if value in (None, "", "~", "null") else reading.shorten(str(value))
        self._problem(loc, f"must be a number, not {shown}")
        return None

    def truth(self, value: reading.Value, loc: reading.Loc) -> bool:
        """Return true or false."""
        if isinstance(value, bool):
            return value
        if value not in ("true", "false"):
            self._problem(loc, "must be true or false")
        return value == "true"

    def expectations(
        self, value: reading.Value, loc: reading.Loc, asked: Sequence[questions.Question]
    ) -> dict[str, Expectation]:
        """Return the expectations of a case by question id."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problem(loc, "must map question ids to what is expected")
            return {}
        by_id = {question.id: question for question in asked}
        found: dict[str, Expectation] = {}
        for id, held in value.items():
            # Without questions (they could not be read) every id would look wrong.
            if id not in by_id:
                if asked:
                    self._problem((*loc, id), f"no question is called {id}; there are {', '.join(by_id)}")
                continue
            found[id] = self._one(by_id[id], held, (*loc, id))
        return found

    def _one(self, question: questions.Question, value: reading.Value, loc: reading.Loc) -> Expectation:
        if not isinstance(value, dict):
            return Expectation(self._choice(question, value, loc))
        for key in value:
            if key not in _KEYS:
                self._problem((*loc, key), f"unknown expectation; known are {', '.join(_KEYS)}")
        if not set(value) & {"min", "max", "between", "p", "choice"}:
            self._problem(loc, "expects nothing; write min, max, between, p or choice")
        choice = self._choice(question, value["choice"], (*loc, "choice")) if "choice" in value else None
        bounds = self._bounds(value, loc) if set(value) & {"min", "max", "between"} else None
        near, p = self._p(question, value, loc, choice)
        if near is not None and bounds is None:
            bounds = near
        if bounds is not None and isinstance(question, questions.Choice) and "choice" not in value:
            self._problem(loc, "min, max and between of a choice need to know of which option: add choice")
        flip = value.get("allow_flip")
        allow_flip = flip is not None and self.truth(flip, (*loc, "allow_flip"))
        return Expectation(choice, bounds, p, allow_flip)

    def _choice(self, question: questions.Question, value: reading.Value, loc: reading.Loc) -> str | None:
        if isinstance(question, questions.Noul):
            names = ["yes", "no"]
            value = {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else value
            value = {"true": "yes", "false": "no"}.get(value, value) if isinstance(value, str) else value
        elif isinstance(question, questions.Choice):
            names = [option.name for option in question.options]
        else:
            names = [level.text for level in question.levels]
        if isinstance(value, str) and value in names:
            return value
        shown = reading.shorten(value) if isinstance(value, str) and value else "this"
        self._problem(loc, f"{shown} is no answer to it; there are {', '.join(names[:8])}")
        return None

    def _bounds(self, value: Mapping[str, reading.Value], loc: reading.Loc) -> Bounds:
        least, most = float("-inf"), float("inf")
        if "between" in value:
            pair = value["between"]
            if not isinstance(pair, list) or len(pair) != 2 or set(value) & {"min", "max"}:
                self._problem((*loc, "between"), "must be a list of two numbers, without min and max")
                return Bounds()
            low, high = (self.number(one, (*loc, "between", i)) for i, one in enumerate(pair))
            least, most = least if low is None else low, most if high is None else high
        if "min" in value:
            low = self.number(value["min"], (*loc, "min"))
            least = least if low is None else low
        if "max" in value:
            high = self.number(value["max"], (*loc, "max"))
            most = most if high is None else high
        if least > most:
            self._problem(loc, f"nothing lies between {least:g} and {most:g}")
        return Bounds(least, most)

    def _p(
        self,
        question: questions.Question,
        value: Mapping[str, reading.Value],
        loc: reading.Loc,
        choice: str | None,
    ) -> tuple[Bounds | None, dict[str, Bounds]]:
        """Return the single probability that `p` names, or those it names by option."""
        if "p" not in value:
            return None, {}
        held, at = value["p"], (*loc, "p")
        if not isinstance(held, dict):
            number = self.number(held, at)
            if isinstance(question, questions.Score) or (
                isinstance(question, questions.Choice) and choice is None
            ):
                self._problem(at, "must say of which option: {choice: NAME, p: 0.9} or {p: {NAME: 0.9}}")
            return (None if number is None else Bounds(near=number)), {}
        found: dict[str, Bounds] = {}
        for name, one in held.items():
            key = _option_key(question, name)
            if key is None:
                self._problem((*at, name), "no option is called that")
            elif isinstance(one, dict):
                for wrong in set(one) - {"min", "max", "between"}:
                    self._problem((*at, name, wrong), "unknown expectation; known are min, max, between")
                found[key] = self._bounds(one, (*at, name))
            else:
                number = self.number(one, (*at, name))
                found[key] = Bounds(near=number)
        return None, found


def _option_key(question: questions.Question, name: str) -> str | None:
    if isinstance(question, questions.Noul):
        return name if name in ("yes", "no") else None
    if isinstance(question, questions.Choice):
        return name if any(option.name == name for option in question.options) else None
    texts = [level.text for level in question.levels]
    if name in texts:
        return str(texts.index(name))
    return name if name.isascii() and name.isdigit() and int(name) < len(texts) else None
