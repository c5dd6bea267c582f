"""Typed answers and the decision that holds them: the wire shape of every output.

Formulas of `confidence` are TypeSafe's published ones (System One API reference): how far the winner lies above
chance for a choice, how tightly the mass sits round the mode for a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from openjev_cli import questions, timing

JSON = dict[str, Any]


def choice_confidence(probabilities: Sequence[float]) -> float:
    """Return (max p - 1/n) / (1 - 1/n): 0 for a uniform distribution, 1 for a certain one. n >= 2."""
    chance = 1.0 / len(probabilities)
    return max(0.0, (max(probabilities) - chance) / (1.0 - chance))


def score_confidence(probabilities: Sequence[float]) -> float:
    """Return max(0, 1 - E|i - mode| / mean_i |i - (n-1)/2|). n >= 2; the first mode counts."""
    n = len(probabilities)
    mode = max(range(n), key=lambda i: probabilities[i])
    spread = math.fsum(p * abs(i - mode) for i, p in enumerate(probabilities))
    even = math.fsum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return max(0.0, 1.0 - spread / even)


def nearest_level(score: float, n: int) -> int:
    """Return the level of 0 to n-1 nearest to the expected one; halves go up."""
    return min(n - 1, max(0, math.floor(score + 0.5)))


class Orders(NamedTuple):
    """What reading a question in `n` orders of its options showed. spread: how far apart the probabilities of
    the answer lie in them, 0 to 1. flips: whether one of the orders alone would have given another answer."""

    n: int
    spread: float
    flips: bool

    def to_wire(self) -> JSON:
        """Return it as the JSON object of the wire."""
        return {"n": self.n, "spread": self.spread, "flips": self.flips}


def _orders_to_wire(orders: Orders | None) -> JSON:
    return {"orders": orders.to_wire()} if orders is not None else {}


@dataclass(frozen=True)
class NoulAnswer:
    """Yes or no, by its probability: `noul` is P(yes)."""

    id: str
    noul: float
    orders: Orders | None = None

    @property
    def value(self) -> str:
        """The bare answer."""
        return "yes" if self.noul >= 0.5 else "no"

    @property
    def ranked(self) -> tuple[tuple[str, float], ...]:
        """Options and probabilities, most likely first."""
        return _ranked({"yes": self.noul, "no": 1.0 - self.noul})

    @property
    def confidence(self) -> float:
        """Distance from a coin toss, 0 to 1. Shown in tables only: the wire shape of a noul has none."""
        return abs(2.0 * self.noul - 1.0)

    def to_wire(self) -> JSON:
        """Return the answer as the JSON object of the wire."""
        return {"type": "noul", "noul": self.noul, **_orders_to_wire(self.orders)}


@dataclass(frozen=True)
class ChoiceAnswer:
    """One of several named options. `probabilities` in the order of the question, summing to 1."""

    id: str
    choice: str
    probabilities: dict[str, float]
    orders: Orders | None = None

    @property
    def value(self) -> str:
        """The bare answer."""
        return self.choice

    @property
    def ranked(self) -> tuple[tuple[str, float], ...]:
        """Options and probabilities, most likely first."""
        return _ranked(self.probabilities)

    @property
    def confidence(self) -> float:
        """TypeSafe's confidence of a choice, 0 to 1."""
        return choice_confidence(tuple(self.probabilities.values()))

    def to_wire(self) -> JSON:
        """Return the answer as the JSON object of the wire."""
        return {
            "type": "choice",
            "choice": self.choice,
            "probabilities": dict(self.probabilities),
            "confidence": self.confidence,
            **_orders_to_wire(self.orders),
        }


@dataclass(frozen=True)
class ScoreAnswer:
    """A place on an ordered rubric: `score` is the expected level, 0 to n-1. `levels` are the readable names,
    `legend` what the wire echoes for each."""

    id: str
    score: float
    levels: tuple[str, ...]
    legend: tuple[Any, ...]
    probabilities: tuple[float, ...]
    orders: Orders | None = None

    @property
    def value(self) -> str:
        """The bare answer: the name of the level nearest to the expected one."""
        return self.levels[nearest_level(self.score, len(self.levels))]

    @property
    def ranked(self) -> tuple[tuple[str, float], ...]:
        """Levels and probabilities, most likely first."""
        pairs = sorted(zip(self.levels, self.probabilities, strict=True), key=lambda pair: -pair[1])
        return tuple(pairs)

    @property
    def confidence(self) -> float:
        """TypeSafe's confidence of a score, 0 to 1."""
        return score_confidence(self.probabilities)

    def to_wire(self) -> JSON:
        """Return the answer as the JSON object of the wire."""
        return {
            "type": "score",
            "score": self.score,
            "legend": {str(i): level for i, level in enumerate(self.legend)},
            "probabilities": {str(i): p for i, p in enumerate(self.probabilities)},
            "confidence": self.confidence,
            **_orders_to_wire(self.orders),
        }


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


def _ranked(probabilities: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(probabilities.items(), key=lambda pair: -pair[1]))


def place(question: questions.Question, probabilities: Sequence[float]) -> int:
    """Return which option the answer is."""
    return place_of(probabilities, is_score=isinstance(question, questions.Score))


def place_of(probabilities: Sequence[float], *, is_score: bool) -> int:
    """Return which option the answer is: the most probable one, the first of equals; of a rubric, the level
    nearest to the expected one."""
    if is_score:
        return nearest_level(math.fsum(i * p for i, p in enumerate(probabilities)), len(probabilities))
    return max(range(len(probabilities)), key=lambda i: probabilities[i])


def answer(
    question: questions.Question, probabilities: Sequence[float], orders: Orders | None = None
) -> Answer:
    """Return the typed answer. probabilities: one per option in the order they were written, summing to 1
    (noul: yes, then no). orders: when it was read in several. A tie goes to the option written first."""
    if isinstance(question, questions.Noul):
        return NoulAnswer(question.id, probabilities[0], orders)
    if isinstance(question, questions.Choice):
        names = [option.name for option in question.options]
        best = names[place(question, probabilities)]
        return ChoiceAnswer(question.id, best, dict(zip(names, probabilities, strict=True)), orders)
    score = math.fsum(i * p for i, p in enumerate(probabilities))
    return ScoreAnswer(
        question.id,
        score,
        tuple(level.text for level in question.levels),
        tuple(level.legend for level in question.levels),
        tuple(probabilities),
        orders,
    )


@dataclass(frozen=True)
class Usage:
    """Tokens of one request. Every question's full prompt is counted, also where its prefix was not read
    again; `cached_tokens` says how many of them the engine already had."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    def to_wire(self) -> JSON:
        """Return the usage as the JSON object of the wire."""
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


def timing_to_wire(spent: timing.Timing) -> dict[str, float]:
    """Return the stages as the JSON object of the wire, the total first."""
    return {
        "processing_ms": spent.processing_ms,
        **({"start_ms": spent.start_ms} if spent.start_ms is not None else {}),
        "parse_ms": spent.parse_ms,
        "prepare_ms": spent.prepare_ms,
        "queue_ms": spent.queue_ms,
        "inference_ms": spent.inference_ms,
    }


@dataclass(frozen=True)
class Decision:
    """Everything one request gave back. `model` is the name of what answered, `notices` lines for stderr.
    reused: how many readings came from the answer cache; None when it was not asked. calibration: the name of
    the one that was applied, or None. scores: for each question, natural logs of its options' probabilities up
    to a shared offset; none from an engine that makes its own prompts."""

    model: str
    answers: tuple[Answer, ...]
    usage: Usage
    timing: timing.Timing
    notices: tuple[str, ...] = ()
    reused: int | None = None
    explanation: tuple[str, ...] = field(default=(), repr=False)
    calibration: str | None = None
    scores: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    def to_wire(self, *, with_timing: bool = True, is_http: bool = False) -> JSON:
        """Return the decision as the JSON object of the wire; `timing` only if asked for. is_http: to a client of
        the Jev API, which allows what it does not know itself under names with `x_` alone (`timing` excepted)."""
        wire: JSON = {
            "model": self.model,
            **(
                {("x_calibration" if is_http else "calibration"): self.calibration}
                if self.calibration is not None
                else {}
            ),
            "answers": {one.id: one.to_wire() for one in self.answers},
            "usage": self.usage.to_wire(),
        }
        if with_timing:
            wire["timing"] = {
                **timing_to_wire(self.timing),
                **({"reused_answers": self.reused} if self.reused is not None else {}),
            }
        return wire
