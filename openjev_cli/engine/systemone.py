"""Asking `POST /v1/systemone` of a Jev-compatible endpoint, or of llama-server with a native decision model.

Both make their own prompt and read their own labels; the state and the questions go there as they are. What comes
back are probabilities, and nothing of it is trusted to be complete: an answer that lacks an option is an error,
never a zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openjev_cli import answers, errors, questions
from openjev_cli import images as images_
from openjev_cli import state as states
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client, does_not_fit
from openjev_cli.request import Request

PATH = "/v1/systemone"
# Every such endpoint knows this name; which model it stands for is in the reply.
MODEL = "jev-latest"
# What llama-server b11434 takes (tools/server/server-decision.cpp): one letter an option for type openjev.
NATIVE_OPTIONS = {"openjev": 52}
MOST_OPTIONS = 255
NATIVE_LEVELS = 10
# Probabilities may be rounded on their way.
_SUM_TOLERANCE = 0.02


@dataclass(frozen=True)
class Reply:
    """What the endpoint answered. typed: in question order. queue_ms, inference_ms: its own times, 0 where it
    gives none."""

    model: str
    typed: tuple[answers.Answer, ...]
    usage: answers.Usage
    queue_ms: float
    inference_ms: float


def is_llama_server(client: Client) -> bool:
    """Ask whether /props tells of a llama-server; anything else is taken for a Jev endpoint. Raises EngineError
    when it wants a key."""
    status, raw = client.exchange("GET", "/props", None)
    if status in (401, 403):
        raise _refused(client, status, None)
    try:
        props = json.loads(raw)
    except ValueError:
        return False
    return status == 200 and isinstance(props, dict) and "default_generation_settings" in props


def is_native(client: Client) -> bool:
    """Ask whether a llama-server has a native decision model: any other kind refuses /v1/systemone as such,
    and older servers do not know it. Nothing of the user's is sent."""
    status, raw = client.exchange("POST", PATH, b"{}")
    return status == 400 and b"state" in raw


def check_native(client: Client, request: Request, kind: str) -> None:
    """Raise InputError, with every problem, for what a native decision model could not answer: too many options
    or levels, or texts that its server, which parses whole prompts, would read as special tokens."""
    most = NATIVE_OPTIONS.get(kind, MOST_OPTIONS)
    problems = []
    for one in request.questions:
        if isinstance(one, questions.Choice) and len(one.options) > most:
            problems.append(
                f"{one.id}: {len(one.options)} options; this native decision model takes up to {most}"
            )
        if isinstance(one, questions.Score) and len(one.levels) > NATIVE_LEVELS:
            problems.append(
                f"{one.id}: {len(one.levels)} levels; a native decision model takes up to {NATIVE_LEVELS}"
            )
    if problems:
        raise errors.collect(
            problems, next_step="shorten the lists, or ask a model that is no decision model"
        )
    texts = list(dict.fromkeys(_texts(request)))
    is_read_so = facts_.tokenize(client, texts, special=False) != facts_.tokenize(client, texts, special=True)
    if is_read_so or facts_.markup_in(client, texts):
        raise errors.InputError(
            "a native decision model would read a part of the state or the questions as special tokens",
            next_step="take them out (such as <|im_end|>), or ask a model that is no decision model",
        )


def _texts(request: Request) -> Iterator[str]:
    """Every text of the user as the server puts it into its prompt."""
    if request.state.text:
        yield request.state.text
    for one in request.questions:
        yield one.text
        if isinstance(one, questions.Noul):
            yield from (text for text in (one.yes, one.no) if text)
        elif isinstance(one, questions.Choice):
            for option in one.options:
                yield from (text for text in (option.name, option.description) if text)
        else:
            yield from (level.text for level in one.levels)


def ask(client: Client, path: str, request: Request, *, is_native: bool = False) -> Reply:
    """Return the endpoint's answers. is_native: it is a llama-server, which takes images its own way.

    Raises InputError (it refuses the request), EngineError, ReadoutError.
    """
    status, raw = client.exchange("POST", path, body(request, is_native=is_native))
    try:
        reply = json.loads(raw)
    except ValueError as exc:
        raise errors.EngineError(
            f"{client.name} answered {path} with status {status} and something that is not JSON",
            next_step=client.advice,
        ) from exc
    if status != 200:
        raise _refused(client, status, reply)
    try:
        return _reply(reply, request)
    except _Unusable as exc:
        raise errors.ReadoutError(
            f"the reply of {client.name} cannot be used: {exc}", next_step=client.advice
        ) from exc


def body(request: Request, *, is_native: bool = False) -> bytes:
    """Return the wire body. The numbers of a JSON state stay as they were written. Raises InputError for images
    that cannot be sent."""
    state = request.state
    more: dict[str, object] = {}
    text = json.dumps(state.text, ensure_ascii=False) if state.kind == "text" else state.text
    if state.all_images and is_native:
        if len(state.all_images) > len(state.images):
            raise errors.InputError(
                "images inside a chat are not sent to a native decision model",
                next_step="give them with -i, or ask a model that is no decision model",
            )
        more["images"] = [f"data:image/bmp;base64,{image.base64}" for image in state.images]
    elif state.all_images:
        text, more["assets"] = _placed(state, text)
    rest = {
        "questions": {one.id: questions.to_wire(one) for one in request.questions},
        "model": request.model or MODEL,
        **more,
    }
    return f'{{"state":{text},{json.dumps(rest, ensure_ascii=False)[1:]}'.encode()


def _placed(state: states.State, text: str) -> tuple[str, dict[str, object]]:
    """Return the state as JSON text with a placeholder for each image, and the images by placeholder: the
    `assets` of the Jev API, which takes PNG and not what our engine gets."""
    import secrets

    # Not to be found in any text of the user, which would then be taken for an image.
    name = secrets.token_hex(8)
    assets: dict[str, object] = {}

    def placeholder(image: images_.Image) -> str:
        key = f"image-{name}-{len(assets) + 1}"
        assets[key] = {"type": "image", "format": "png", "data_base64": _png_base64(image)}
        return key

    before = [placeholder(image) for image in state.images]
    if state.kind == "chat" and state.messages:
        chat = [
            {
                "role": message.role,
                "content": "".join(
                    part if isinstance(part, str) else placeholder(part) for part in message.parts
                )
                or message.content,
            }
            for message in state.messages
        ]
        text = json.dumps(chat, ensure_ascii=False)
    if not before:
        return text, assets
    if state.kind == "text":
        return json.dumps(
            "\n".join([*before, *([state.text] if state.text else [])]), ensure_ascii=False
        ), assets
    return f'{{"images":{json.dumps(before)},"state":{text}}}', assets


def _png_base64(image: images_.Image) -> str:
    import base64
    import io

    from PIL import Image

    sink = io.BytesIO()
    Image.open(io.BytesIO(image.data)).save(sink, "PNG", compress_level=1)
    return base64.b64encode(sink.getvalue()).decode("ascii")


class _Unusable(Exception):
    """What is wrong with a reply, for the message."""


def _reply(reply: Any, request: Request) -> Reply:
    if not isinstance(reply, dict) or not isinstance(reply.get("answers"), dict):
        raise _Unusable("it has no answers")
    given = reply["answers"]
    found = tuple(_answer(one, given.get(one.id)) for one in request.questions)
    usage = reply.get("usage") if isinstance(reply.get("usage"), dict) else {}
    times = reply.get("timing") if isinstance(reply.get("timing"), dict) else {}
    return Reply(
        model=str(reply.get("model") or MODEL),
        typed=found,
        usage=answers.Usage(_count(usage, "input_tokens"), _count(usage, "output_tokens")),
        queue_ms=_ms(times, "queue_ms"),
        inference_ms=_ms(times, "inference_ms"),
    )


def _answer(question: questions.Question, given: Any) -> answers.Answer:
    if not isinstance(given, dict):
        raise _Unusable(f"{question.id} is not answered")
    if isinstance(question, questions.Noul):
        p_yes = _probability(question, given.get("noul"))
        return answers.answer(question, (p_yes, 1.0 - p_yes))
    if isinstance(question, questions.Choice):
        keys = [option.name for option in question.options]
    else:
        keys = [str(i) for i in range(len(question.levels))]
    held = given.get("probabilities")
    if not isinstance(held, dict) or any(key not in held for key in keys):
        raise _Unusable(f"{question.id} lacks probabilities")
    probabilities = [_probability(question, held[key]) for key in keys]
    if abs(math.fsum(probabilities) - 1.0) > _SUM_TOLERANCE:
        raise _Unusable(f"the probabilities of {question.id} do not sum to 1")
    return answers.answer(question, probabilities)


def _probability(question: questions.Question, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise _Unusable(f"{question.id} has something that is no probability")
    return float(value)


def _count(held: Any, name: str) -> int:
    value = held.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _ms(held: Any, name: str) -> float:
    value = held.get(name)
    is_time = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_time and math.isfinite(value) and value >= 0 else 0.0


def _refused(client: Client, status: int, reply: Any) -> errors.OpenjevError:
    """Return the error for a status that is no answer; the endpoint's own words are quoted."""
    if status in (401, 403):
        has_key = "does not accept the key" if client.has_key else "wants a key"
        return errors.EngineError(
            f"{client.name} {has_key} (status {status})", next_step="Set OPENJEV_API_KEY."
        )
    told = _told(reply)
    if status == 413:
        return errors.InputError(
            f"{client.name}: the request is too large{told}", next_step="Shorten the state."
        )
    if status in (400, 422):
        if isinstance(reply, dict) and isinstance(error := reply.get("error"), dict):
            needed, available = error.get("n_prompt_tokens"), error.get("n_ctx")
            if isinstance(needed, int) and isinstance(available, int):
                return does_not_fit(needed, available)
        return errors.InputError(
            f"{client.name} refuses the request (status {status}){told}",
            next_step="Correct the state or the questions.",
        )
    if status in (429, 503, 529):
        return errors.EngineError(
            f"{client.name} is busy (status {status}){told}", next_step="Ask again later."
        )
    return errors.EngineError(f"{client.name} answered with status {status}{told}", next_step=client.advice)


def _told(reply: Any) -> str:
    if not isinstance(reply, dict):
        return ""
    said: list[str] = []
    detail = reply.get("detail", reply.get("error"))
    for one in detail if isinstance(detail, list) else [detail]:
        if isinstance(one, dict):
            loc = one.get("loc")
            where = ".".join(map(str, loc)) + ": " if isinstance(loc, list) else ""
            said.append(where + str(one.get("msg") or one.get("message") or ""))
        elif isinstance(one, str):
            said.append(one)
    text = " ".join("; ".join(filter(None, said)).split())
    return f": {text[:300]}" if text else ""
