"""One request: a state and the questions asked of it; the wire body it may come from.

All problems of a body are found in one pass, each with the path of its field and without the value that was
sent, so that the command line and HTTP can show the same list. Fields that are not known are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from openjev_cli import errors, images, questions, reading
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


def parse(body: reading.Value, *, compact: bool = True, image_tokens: int = images.DEFAULT_TOKENS) -> Request:
    """Return the request a wire body holds. Raises RequestError with all problems at once.

    image_tokens: what each of its images (`images`, or parts of a chat) may cost.
    """
    if not isinstance(body, dict):
        raise RequestError((reading.Problem((), "must be an object with state and questions"),))
    problems: list[reading.Problem] = []
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        problems.append(reading.Problem(("model",), "must be a text"))
    state = _state(body, problems, compact=compact, image_tokens=image_tokens)
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
    body: dict[str, reading.Value], problems: list[reading.Problem], *, compact: bool, image_tokens: int
) -> states.State | None:
    """Return the body's state with its images, or None after noting why there is none."""
    shown = _images(body.get("images"), problems, image_tokens)
    if "state" not in body:
        problems.append(reading.Problem(("state",), "is missing"))
        return None
    value = body["state"]
    if not isinstance(value, str | list | dict):
        problems.append(reading.Problem(("state",), "must be a text, an object or an array"))
        return None
    try:
        state = states.from_value(value, compact=compact, image_tokens=image_tokens)
        return states.with_images(state, shown)
    except errors.InputError as exc:
        problems.extend(reading.Problem(("state",), message) for message in exc.problems)
        return None


def _images(
    value: reading.Value, problems: list[reading.Problem], image_tokens: int
) -> tuple[images.Image, ...]:
    """Return the images of a body, noting each that cannot be used."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(reading.Problem(("images",), "must be an array of data URLs"))
        return ()
    shown: list[images.Image] = []
    try:
        images.refuse_too_many(len(value))
    except errors.InputError as exc:
        problems.append(reading.Problem(("images",), exc.message))
        return ()
    for at, url in enumerate(value):
        if not isinstance(url, str):
            problems.append(reading.Problem(("images", at), "must be a data URL"))
            continue
        try:
            shown.append(images.from_data_url(url, name="image", max_tokens=image_tokens))
        except errors.InputError as exc:
            problems.append(reading.Problem(("images", at), exc.message.removeprefix("image: ")))
    return tuple(shown)
