"""Asking a Jev-compatible endpoint: its own `POST /v1/systemone` with the state and the questions as they are.

Such an endpoint makes its own prompt and reads its own labels; what comes back are probabilities, and nothing of
it is trusted to be complete: an answer that lacks an option is an error, never a zero.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from openjev_cli import answers, errors, questions
from openjev_cli import state as states
from openjev_cli.engine.client import Client, does_not_fit
from openjev_cli.request import Request

PATH = "/v1/systemone"
# Every such endpoint knows this name; which model it stands for is in the reply.
MODEL = "jev-latest"
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


def ask(client: Client, path: str, request: Request) -> Reply:
    """Return the endpoint's answers. Raises InputError (it refuses the request), EngineError, ReadoutError."""
    status, raw = client.exchange("POST", path, body(request))
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


def body(request: Request) -> bytes:
    """Return the wire body. The numbers of a JSON state stay as they were written."""
    state = request.state
    if state.all_images:
        raise errors.InputError(
            "images are not sent to a Jev endpoint",
            next_step="connect to a llama-server, or leave --connect out to use the managed one",
        )
    rest = {
        "questions": {one.id: questions.to_wire(one) for one in request.questions},
        "model": request.model or MODEL,
    }
    text = json.dumps(state.text, ensure_ascii=False) if _is_text(state) else state.text
    return f'{{"state":{text},{json.dumps(rest, ensure_ascii=False)[1:]}'.encode()


def _is_text(state: states.State) -> bool:
    return state.kind == "text"


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
