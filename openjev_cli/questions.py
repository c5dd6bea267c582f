"""The three kinds of question and how they are written: plain text, JSON, YAML.

Holds the text grammar (a hand-written scanner), the wire shapes, and the checks of both. It does not say how a
question looks in a prompt, and knows nothing of states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openjev_cli import reading

MIN_OPTIONS, MAX_OPTIONS = 2, 255
MIN_LEVELS, MAX_LEVELS = 2, 64


@dataclass(frozen=True)
class Noul:
    """A yes/no question. yes, no: what counts as each, or None."""

    id: str
    text: str
    yes: str | None = None
    no: str | None = None


@dataclass(frozen=True)
class Option:
    """One option of a choice. `name` is exactly what was written (also its control characters)."""

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
    """A question answered by a place on an ordered rubric of 2-64 levels, lowest first."""

    id: str
    text: str
    levels: tuple[Level, ...]


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
    return Source("-Q", text.encode("utf-8", "surrogateescape"), is_inline=True)


def load(sources: Sequence[Source]) -> tuple[Question, ...]:
    """Return the questions of all sources, in order. Raises one InputError that lists every problem with its
    file, line and column; none at all is a problem too."""
    raise NotImplementedError


def from_wire(value: reading.Value) -> tuple[tuple[Question, ...], tuple[reading.Problem, ...]]:
    """Return the questions of a wire `questions` object and every problem found, with paths inside it."""
    raise NotImplementedError


def to_wire(question: Question) -> reading.Plain:
    """Return the question as the JSON object of the wire (without its id, which is its key)."""
    raise NotImplementedError
