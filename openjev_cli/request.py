"""One request: a state and the questions asked of it; the wire body it may come from.

All problems of a body are found in one pass, each with the path of its field and without the value that was
sent, so that the command line and HTTP can show the same list.
"""

from __future__ import annotations

from dataclasses import dataclass

from openjev_cli import errors, questions, reading
from openjev_cli import state as states


@dataclass(frozen=True)
class Request:
    """A state and its questions. model: the name the body asked for, or None."""

    state: states.State
    questions: tuple[questions.Question, ...]
    model: str | None = None


class RequestError(errors.InputError):
    """A wire body that cannot be answered. details: every problem, with paths inside the body."""

    def __init__(self, details: tuple[reading.Problem, ...]) -> None:
        raise NotImplementedError


def parse(body: reading.Value, *, compact: bool = True) -> Request:
    """Return the request a wire body holds. Raises RequestError with all problems at once."""
    raise NotImplementedError
