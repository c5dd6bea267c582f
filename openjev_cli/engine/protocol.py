"""What every readout takes and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from openjev_cli import prompt
from openjev_cli.engine.facts import Facts


@dataclass(frozen=True)
class Reading:
    """One question, read. scores: natural log, one per label in order, up to a shared offset. n_tokens: length
    of its full prompt. cached: how many of them the engine did not have to read again. label_mass: share of
    the probability that lies on the labels, None where the engine cannot say."""

    scores: tuple[float, ...]
    n_tokens: int
    cached: int
    label_mass: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """A request, read. Times are the engine's own, in milliseconds."""

    readings: tuple[Reading, ...]
    queue_ms: float
    inference_ms: float
    prefix_tokens: int


@dataclass(frozen=True)
class Caching:
    """Which caches a request may use. prompts: the engine's prompt cache at all. shared_prefix and
    repeated_state: prime the engine so that the prefix is kept (stock engine only)."""

    prompts: bool = True
    shared_prefix: bool = True
    repeated_state: bool = True


# Called with (tokens read, tokens in all) while a request is evaluated, first with none read. It may raise.
Progress = Callable[[int, int], None]


class Readout(Protocol):
    """A way of reading the labels' scores at the end of each question of a prompt."""

    def evaluate(
        self, asked: prompt.Prompt, facts: Facts, caching: Caching, progress: Progress | None
    ) -> tuple[Evaluation, Facts]:
        """Return the readings in question order, and the facts with what was learnt on the way."""
        ...
