"""One request: a state and the questions asked of it; the wire body it may come from.

All problems of a body are found in one pass, each with the path of its field and without the value that was
sent, so that the command line and HTTP can show the same list. Fields that are not known are ignored.
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
    """A wire body that cannot be answered. details: every problem, with paths inside the body; their
    `message` never holds what was sent (their `value` may, and is not for HTTP)."""

    def __init__(self, details: tuple[reading.Problem, ...]) -> None:
        problems = [reading.describe(problem) for problem in details]
        super().__init__(problems[0], next_step="Correct these fields of the request.", problems=problems)
        self.details = details


def parse(body: reading.Value, *, compact: bool = True) -> Request:
    """Return the request a wire body holds. Raises RequestError with all problems at once."""
    if not isinstance(body, dict):
        raise RequestError((reading.Problem((), "must be an object with state and questions"),))
    problems: list[reading.Problem] = []
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        problems.append(reading.Problem(("model",), "must be a text"))
    state = _state(body, problems, compact=compact)
    asked: tuple[questions.Question, ...] = ()
    if "questions" not in body:
        problems.append(reading.Problem(("questions",), "is missing"))
    else:
        asked, found = questions.from_wire(body["questions"])
        for one in found:
            problems.append(reading.Problem(("questions", *one.loc), one.message, one.value))
    if problems or state is None:
        raise RequestError(tuple(problems))
    return Request(state, asked, model if isinstance(model, str) else None)


def _state(
    body: dict[str, reading.Value], problems: list[reading.Problem], *, compact: bool
) -> states.State | None:
    """Return the body's state, or None after noting why there is none."""
    if "state" not in body:
        problems.append(reading.Problem(("state",), "is missing"))
        return None
    value = body["state"]
    if not isinstance(value, str | list | dict):
        problems.append(reading.Problem(("state",), "must be a text, an object or an array"))
        return None
    try:
        return states.from_value(value, compact=compact)
    except errors.InputError as exc:
        problems.append(reading.Problem(("state",), exc.message))
        return None
