"""Typed answers and the decision that holds them: the wire shape of every output.

Formulas of `confidence` are TypeSafe's published ones (System One API reference): how far the winner lies above
chance for a choice, how tightly the mass sits round the mode for a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class NoulAnswer:
    """Yes or no, by its probability: `noul` is P(yes)."""

    id: str
    noul: float

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
        return {"type": "noul", "noul": self.noul}


@dataclass(frozen=True)
class ChoiceAnswer:
    """One of several named options. `probabilities` in the order of the question, summing to 1."""

    id: str
    choice: str
    probabilities: dict[str, float]

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

    @property
    def value(self) -> str:
        """The bare answer: the name of the level nearest to the expected one."""
        return self.levels[min(len(self.levels) - 1, max(0, math.floor(self.score + 0.5)))]

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
        }


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


def _ranked(probabilities: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(probabilities.items(), key=lambda pair: -pair[1]))


def answer(question: questions.Question, probabilities: Sequence[float]) -> Answer:
    """Return the typed answer. probabilities: one per option in the order they were asked, summing to 1
    (noul: yes, then no). A tie goes to the option that was written first."""
    if isinstance(question, questions.Noul):
        return NoulAnswer(question.id, probabilities[0])
    if isinstance(question, questions.Choice):
        names = [option.name for option in question.options]
        best = max(range(len(names)), key=lambda i: probabilities[i])
        return ChoiceAnswer(question.id, names[best], dict(zip(names, probabilities, strict=True)))
    score = math.fsum(i * p for i, p in enumerate(probabilities))
    return ScoreAnswer(
        question.id,
        score,
        tuple(level.text for level in question.levels),
        tuple(level.legend for level in question.levels),
        tuple(probabilities),
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
    reused: how many answers came from the answer cache; None when it was not asked."""

    model: str
    answers: tuple[Answer, ...]
    usage: Usage
    timing: timing.Timing
    notices: tuple[str, ...] = ()
    reused: int | None = None
    explanation: tuple[str, ...] = field(default=(), repr=False)

    def to_wire(self, *, with_timing: bool = True) -> JSON:
        """Return the decision as the JSON object of the wire; `timing` only if asked for."""
        wire: JSON = {
            "model": self.model,
            "answers": {one.id: one.to_wire() for one in self.answers},
            "usage": self.usage.to_wire(),
        }
        if with_timing:
            wire["timing"] = {
                **timing_to_wire(self.timing),
                **({"reused_answers": self.reused} if self.reused is not None else {}),
            }
        return wire
