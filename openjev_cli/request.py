"""One request: a state and the questions asked of it; the wire body it may come from.

All problems of a body are found in one pass, each with the path of its field and without the value that was
sent, so that the command line and HTTP can show the same list. Fields that are not known are ignored.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from openjev_cli import errors, images, questions, reading
from openjev_cli import state as states
from openjev_cli.questions import Question


@dataclass(frozen=True)
class Request:
    """A state and its questions. model: the name the body asked for, or None. orders: in how many orders of
    its options each question is read, at most. reversed_of: by id, which question another one is with its options in
    reverse order: it is calibrated as that one."""

    state: states.State
    questions: tuple[Question, ...]
    model: str | None = None
    orders: int = 1
    reversed_of: Mapping[str, Question] = field(default_factory=dict)


class RequestError(errors.InputError):
    """A wire body that cannot be answered. details: every problem, with paths inside the body; their
    `message` never holds what was sent (their `value` may, and is not for HTTP)."""

    def __init__(self, details: tuple[reading.Problem, ...]) -> None:
        problems = [reading.describe(problem) for problem in details]
        super().__init__(problems[0], next_step="Correct these fields of the request.", problems=problems)
        self.details = details


def parse(
    body: reading.Value,
    *,
    compact: bool = True,
    image_tokens: int = images.DEFAULT_TOKENS,
    files: Mapping[str, bytes] | None = None,
) -> Request:
    """Return the request a wire body holds. Raises RequestError with all problems at once.

    image_tokens: what each of its images (`images`, `assets`, or parts of a chat) may cost. files: what came
    beside the body, by name, for assets that say `part`.
    """
    if not isinstance(body, dict):
        raise RequestError((reading.Problem((), "must be an object with state and questions"),))
    problems: list[reading.Problem] = []
    assets: tuple[images.Image, ...] = ()
    if body.get("assets"):
        body, assets = _place_assets(body, files or {}, problems, image_tokens)
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        problems.append(reading.Problem(("model",), "must be a text"))
    state = _state(body, problems, compact=compact, image_tokens=image_tokens, assets=assets)
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
    body: dict[str, reading.Value],
    problems: list[reading.Problem],
    *,
    compact: bool,
    image_tokens: int,
    assets: Sequence[images.Image],
) -> states.State | None:
    """Return the body's state with its images, or None after noting why there is none."""
    listed = _images(body.get("images"), problems, image_tokens)
    shown = (*listed, *assets)
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


# Assets: the official API's way to send images. Their placeholders stand in texts; the model sees the images
# before everything else, and [image N] where the placeholder was.


def _place_assets(
    body: dict[str, reading.Value],
    files: Mapping[str, bytes],
    problems: list[reading.Problem],
    image_tokens: int,
) -> tuple[dict[str, reading.Value], tuple[images.Image, ...]]:
    """Return the body with references to its assets, and the images in the order of their numbers.

    An asset that is referred to nowhere is not shown. `images` of the body come first.
    """
    assets = body["assets"]
    if not isinstance(assets, dict):
        problems.append(reading.Problem(("assets",), "must be an object of placeholders and images"))
        return body, ()
    if "" in assets:
        problems.append(reading.Problem(("assets",), "a placeholder is empty"))
        return body, ()
    # The longest first: one placeholder may begin like another.
    pattern = re.compile("|".join(re.escape(key) for key in sorted(assets, key=len, reverse=True)))
    texts = (body.get("state"), body.get("questions"))
    referred = {key for text in _texts(texts) for key in pattern.findall(text)}
    used = [key for key in assets if key in referred]
    listed = body.get("images")
    before = len(listed) if isinstance(listed, list) else 0
    try:
        images.refuse_too_many(before + len(used))
    except errors.InputError as exc:
        problems.append(reading.Problem(("assets",), exc.message))
        return body, ()
    numbers = {key: number for number, key in enumerate(used, start=before + 1)}

    def put(text: str) -> str:
        return pattern.sub(lambda found: f"[image {numbers[found[0]]}]", text)

    placed = {**body, "questions": _mapped(body.get("questions"), put)} if "questions" in body else dict(body)
    if "state" in body:
        # A state that is an image and nothing else needs no words.
        alone = isinstance(body["state"], str) and body["state"] in numbers and len(used) + before == 1
        placed["state"] = "" if alone else _mapped(body["state"], put)
    shown = (_asset(key, assets[key], files, problems, image_tokens) for key in used)
    return placed, tuple(image for image in shown if image is not None)


def _texts(values: Iterable[reading.Value]) -> Iterator[str]:
    """Give every text inside the values. Keys are names, not content: nothing is placed in them."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts(value.values())
        elif isinstance(value, list):
            yield from _texts(value)


def _mapped(value: reading.Value, put: Callable[[str], str]) -> reading.Value:
    if isinstance(value, str):
        return put(value)
    if isinstance(value, dict):
        return {key: _mapped(held, put) for key, held in value.items()}
    return [_mapped(held, put) for held in value] if isinstance(value, list) else value


def _asset(
    key: str,
    value: reading.Value,
    files: Mapping[str, bytes],
    problems: list[reading.Problem],
    image_tokens: int,
) -> images.Image | None:
    """Return the image of an asset, or None after noting why there is none."""
    loc = ("assets", key)
    if not isinstance(value, dict) or value.get("type", "image") not in ("image", None):
        problems.append(reading.Problem(loc, "must be an object of type image"))
        return None
    part, encoded = value.get("part"), value.get("data_base64")
    if isinstance(part, str):
        data = files.get(part)
        if data is None:
            problems.append(reading.Problem((*loc, "part"), "no part of the request has this name"))
            return None
    elif isinstance(encoded, str):
        try:
            data = binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError:  # binascii.Error, and characters beyond ASCII
            problems.append(reading.Problem((*loc, "data_base64"), "its base64 is broken"))
            return None
    else:
        problems.append(reading.Problem(loc, "needs data_base64, or part in a multipart request"))
        return None
    try:
        return images.from_bytes(data, name="image", max_tokens=image_tokens)
    except errors.InputError as exc:
        problems.append(reading.Problem(loc, exc.message.removeprefix("image: ")))
        return None
