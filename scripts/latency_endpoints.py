"""The ways of asking that scripts/latency.py compares.

`before`: the stock build, every question its own full prompt, nothing cached. `primed-stock`, `after`: openjev
itself on the stock and on the patched build. `native`: the stock build's own POST /v1/systemone, also the way
any NAME=URL is asked. Only `ask` is timed; prompts of `before` are token ids made beforehand.
"""

from __future__ import annotations

import base64
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from latency_servers import Server

from openjev_cli import answers, config, decide, labels, prompt, questions
from openjev_cli.engine import facts as facts_
from openjev_cli.engine import patched, stock, stock_images
from openjev_cli.engine.client import Client
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Caching
from openjev_cli.request import Request
from openjev_cli.timing import Stages

JSON = dict[str, Any]
# What openjev's own prompt is, written for the template of a native decision model, so that `native` reads
# about as many tokens (openjev_cli/prompt.py holds the wording).
NATIVE_TEMPLATE = r"""
{%- set letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz' -%}
{{- '<|im_start|>user\n' -}}
{%- for image in images -%}{{- image -}}{%- endfor -%}
{{- state + '<|im_end|>\n<|im_start|>user\nQuestion: ' + instructions -}}
{%- if type == 'score' -%}{{- '\nLevels, from lowest to highest:' -}}{%- else -%}{{- '\nOptions:' -}}{%- endif -%}
{%- for o in options -%}
{%- set name = {'true': 'yes', 'false': 'no'}[o.key] if type == 'noul' else o.key -%}
{{- '\n' + letters[loop.index0] + ': ' + (o.description if type == 'score' else name) -}}
{%- if type != 'score' and o.description -%}{{- ': ' + o.description -}}{%- endif -%}
{%- endfor -%}
{{- '\nReply with the letter of the ' + ('level' if type == 'score' else 'option') + ' that fits best.' -}}
{{- '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' -}}
""".strip()


@dataclass(frozen=True)
class Reply:
    """One request, answered. answers: probabilities of each question in option order. tokens: of all prompts
    together, as if nothing was cached; None where it is not said. engine_ms: the engine's own time."""

    answers: tuple[tuple[float, ...], ...]
    tokens: int | None = None
    cached: int | None = None
    engine_ms: float | None = None


@dataclass(frozen=True)
class Asked:
    """One request with everything an endpoint may want prepared. ids: the whole prompt in token ids, None
    with pictures. files: the pictures as they were read from disk."""

    request: Request
    built: prompt.Prompt | None
    ids: stock.Tokens | None
    texts: stock_images.Texts | None
    files: tuple[bytes, ...] = ()

    @property
    def prefix(self) -> int:
        """Tokens all questions share."""
        return len(self.ids.prefix) if self.ids else self.texts.prefix_tokens if self.texts else 0

    @property
    def suffixes(self) -> tuple[int, ...]:
        """Tokens of each question's own part."""
        if self.ids:
            return tuple(len(ids) for ids in self.ids.suffixes)
        return self.texts.suffix_tokens if self.texts else ()


class Endpoint(Protocol):
    """Something that answers requests. name: as in the receipt."""

    name: str

    def ask(self, asked: Asked) -> Reply:
        """Answer; this call is what is timed."""
        ...

    def tokens_read(self) -> int | None:
        """Return how many prompt tokens its engine has read so far; None where it does not say."""
        ...


# ----------------------------------------------------------------------------------------------- prompts


class Prompter:
    """Makes a request's prompt as openjev does, outside of what is timed."""

    def __init__(self, server: Server) -> None:
        self.client = Client(server.connect)
        self.facts: Facts = facts_.learn(self.client)

    def build(self, request: Request) -> prompt.Prompt:
        """Return the request's prompt."""
        frame, _ = facts_.frame_for(self.client, self.facts, request.state)
        longest = max(len(prompt.options_of(question)) for question in request.questions)
        offered = labels.take(self.facts.labels, longest)
        return prompt.build(frame, request.state, request.questions, offered, self.facts.markup)

    def prepare(self, request: Request, files: tuple[bytes, ...]) -> Asked:
        """Return the request with its prompt in token ids, or in texts when it has pictures."""
        built = self.build(request)
        if built.images:
            texts = stock_images.to_texts(self.client, built, self.facts)
            return Asked(request, built, None, texts, files)
        tokens, self.facts = stock.to_tokens(self.client, built, self.facts)
        return Asked(request, built, tokens, None)


# ----------------------------------------------------------------------------------------------- endpoints


class Before:
    """The stock build: one completion for each question, of its whole prompt, nothing cached."""

    def __init__(self, server: Server, prompter: Prompter, name: str = "before") -> None:
        self.name = name
        self._server = server
        self._client = Client(server.connect)
        self._facts = prompter.facts

    def ask(self, asked: Asked) -> Reply:
        """See Endpoint."""
        assert asked.built is not None
        answered = []
        tokens = 0
        engine_ms = 0.0
        for i, suffix in enumerate(asked.built.suffixes):
            offered = [label.token for label in suffix.labels]
            body = stock.completion_body(self._sent(asked, i), offered, is_cached=False, slot=0)
            reply = self._client.post("/completion", body)
            answered.append(labels.probabilities(stock.label_scores(reply, offered)))
            tokens += int(reply["tokens_evaluated"])
            timings = reply["timings"]
            engine_ms += float(timings["prompt_ms"]) + float(timings.get("predicted_ms") or 0.0)
        return Reply(tuple(answered), tokens, 0, engine_ms)

    def tokens_read(self) -> int | None:
        """See Endpoint."""
        return self._server.prompt_tokens()

    def _sent(self, asked: Asked, i: int) -> list[int] | JSON:
        if asked.ids is not None:
            return [*asked.ids.prefix, *asked.ids.suffixes[i]]
        assert asked.texts is not None
        assert asked.built is not None
        return {
            "prompt_string": asked.texts.prefix + asked.texts.suffixes[i],
            "multimodal_data": [image.base64 for image in asked.built.images],
        }


class Openjev:
    """openjev on one of the servers: what `openjev ask` does from the parsed request to the answers."""

    def __init__(self, name: str, server: Server, *, caches: bool = True) -> None:
        self.name = name
        self.server = server
        flags: JSON = {"connect": str(server.socket), "cache": caches}
        # No home of a user: a setting there must not get into a measurement.
        settings = config.load(flags, env={"HOME": str(server.socket.parent)}, cwd=Path("/"))
        self.session = decide.Session(settings, {})
        self.last: answers.Decision | None = None

    def ask(self, asked: Asked) -> Reply:
        """See Endpoint."""
        decision = self.session.decide(asked.request, Stages(time.perf_counter()))
        self.last = decision
        return Reply(
            answered(decision),
            decision.usage.input_tokens,
            decision.usage.cached_tokens,
            decision.timing.queue_ms + decision.timing.inference_ms,
        )

    def tokens_read(self) -> int | None:
        """See Endpoint."""
        return self.server.prompt_tokens()


def answered(decision: answers.Decision) -> tuple[tuple[float, ...], ...]:
    """Return the probabilities of a decision's answers, in option order (noul: yes, no)."""
    found: list[tuple[float, ...]] = []
    for one in decision.answers:
        if isinstance(one, answers.NoulAnswer):
            found.append((one.noul, 1.0 - one.noul))
        elif isinstance(one, answers.ChoiceAnswer):
            found.append(tuple(one.probabilities.values()))
        else:
            found.append(one.probabilities)
    return tuple(found)


Post = Callable[[JSON], tuple[JSON, int | None]]


class Systemone:
    """Anything that offers POST /v1/systemone. post: sends a body and returns the reply, and how many tokens
    it says were cached. server: ours, which gets pictures at the size openjev sends them (it would read a photo
    at six times the tokens); others get the files."""

    def __init__(self, name: str, post: Post, server: Server | None = None) -> None:
        self.name = name
        self._post = post
        self._server = server

    def ask(self, asked: Asked) -> Reply:
        """See Endpoint."""
        body: JSON = {
            # As a text: what a JSON state is written like is openjev's choice and not part of this comparison.
            "state": asked.request.state.text,
            "questions": {one.id: questions.to_wire(one) for one in asked.request.questions},
        }
        seen = asked.request.state.all_images
        if seen:
            files = asked.files if self._server is None else [image.data for image in seen]
            body["images"] = [_data_url(data) for data in files]
        reply, cached = self._post(body)
        found = []
        for one in asked.request.questions:
            answer = reply["answers"][one.id]
            if answer["type"] == "noul":
                found.append((answer["noul"], 1.0 - answer["noul"]))
            else:
                found.append(tuple(answer["probabilities"].values()))
        tokens = (reply.get("usage") or {}).get("input_tokens")
        if any(not math.isfinite(p) for one in found for p in one):
            raise SystemExit(f"{self.name}: an answer is no number")
        return Reply(tuple(found), tokens, cached)

    def tokens_read(self) -> int | None:
        """See Endpoint."""
        return None if self._server is None else self._server.prompt_tokens()


def _data_url(data: bytes) -> str:
    kind = {b"\x89P": "png", b"\xff\xd8": "jpeg"}.get(data[:2], "bmp")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def native(server: Server) -> Systemone:
    """Return the endpoint of a server's own /v1/systemone."""
    client = Client(server.connect)
    return Systemone("native", lambda body: (client.post("/v1/systemone", body), None), server)


def remote(name: str, url: str) -> Systemone:
    """Return the endpoint at a URL. A key is taken from OPENJEV_API_KEY."""
    import httpx

    key = os.environ.get("OPENJEV_API_KEY")
    client = httpx.Client(timeout=600.0, headers={"Authorization": f"Bearer {key}"} if key else {})

    def post(body: JSON) -> tuple[JSON, int | None]:
        reply = client.post(f"{url.rstrip('/')}/v1/systemone", json=body)
        if reply.status_code != 200:
            raise SystemExit(f"{name}: status {reply.status_code}: {reply.text[:300]}")
        cached = reply.headers.get("x-openjev-cached-tokens")
        found: JSON = reply.json()
        return found, int(cached) if cached and cached.isdigit() else None

    return Systemone(name, post)


def encode_ms(prompter: Prompter, asked: Asked) -> float:
    """Return how long the patched engine takes to encode the pictures of a request."""
    built = prompter.build(asked.request)
    nothing_kept = Caching(prompts=False, shared_prefix=False, repeated_state=False)
    body = patched.body(built, built.suffixes[:1], prompter.facts, nothing_kept)
    return float(prompter.client.post("/decide", body)["timings_ms"]["encode"])


def decide_times(prompter: Prompter, request: Request) -> JSON:
    """Return the times of one /decide of the request, the engine's own and the whole round trip, in ms."""
    began_at_s = time.perf_counter()
    built = prompter.build(request)
    body = patched.body(built, built.suffixes, prompter.facts, Caching())
    built_at_s = time.perf_counter()
    reply = prompter.client.post("/decide", body)
    ended_at_s = time.perf_counter()
    return {
        **{name: float(ms) for name, ms in reply["timings_ms"].items()},
        "python": (built_at_s - began_at_s) * 1000.0,
        "round_trip": (ended_at_s - built_at_s) * 1000.0,
        "tokens_read": int(reply["tokens"]["evaluated"]),
    }


def close(endpoints: Sequence[Endpoint]) -> None:
    """Close the sessions of openjev."""
    for endpoint in endpoints:
        if isinstance(endpoint, Openjev):
            endpoint.session.close()
