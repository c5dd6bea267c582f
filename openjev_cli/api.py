"""The Jev API over HTTP: a request becomes a `decide`, its decision the wire shape. Nothing is decided here.

Routes, limits, and the answer to every error. What was sent never reaches a log or an error: messages say where
and what is wrong. Sockets, start and end are the business of `serve`. Needs the extra `serve` (starlette).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from openjev_cli import answers, bodies, decide, errors, models, prompt, questions, reading, request, timing
from openjev_cli import state as states
from openjev_cli.admission import Full, Gate
from openjev_cli.config import Config

_log = logging.getLogger("openjev.serve")

# Names every client of the API sends; the model that answers has its own beside them.
ALIASES = ("jev-latest", "openjev-latest")
# The day this API got its shape: GET /v1/models must give one, and weights of unknown origin have none.
RELEASED = "2026-11-29"
MAX_QUESTIONS = 64
# Eight photographs of a few MB in base64, with room for the state.
MAX_BODY_BYTES = 48 * 1024 * 1024
# Of all bodies that are being read or asked about; more clients than this are told to come back.
MAX_BUFFERED_BYTES = 4 * MAX_BODY_BYTES
# What one request may have the engine read: the prefix once and every question's own part.
MAX_TOKENS = 131_072
# The same limit where the engine alone counts tokens: text has about four bytes a token, and never under one.
MAX_TEXT_BYTES = 4 * MAX_TOKENS
# A client that needs longer to send its body only holds memory.
BODY_TIMEOUT_S = 30.0
_LOADING_RETRY_S = 1


# A Host header: [IPv6] or a name, and maybe a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]+)?")


class Refusal(Exception):
    """An error reply: status, the body's `detail`, and more headers."""

    def __init__(self, status: int, detail: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def refusal(
    status: int,
    error_type: str,
    message: str,
    next_step: str = "",
    *,
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    """Return a refusal whose detail is an object, as the API shapes every error but a validation's."""
    detail = {"error_type": error_type, "message": message}
    if next_step:
        detail["next_step"] = next_step
    return Refusal(status, detail, headers)


class _Gone(Exception):
    """The client has left; nobody reads a reply."""


@dataclass
class Call:
    """One HTTP request from its arrival to its reply. is_working: a thread
    is at work on it. buffered: bytes of
    its body that are held."""

    began_at_s: float = field(default_factory=time.perf_counter)
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    cancel: decide.Cancel = field(default_factory=decide.Cancel)
    is_working: bool = False
    buffered: int = 0
    stages: timing.Stages = field(init=False)

    def __post_init__(self) -> None:
        self.stages = timing.Stages(self.began_at_s)

    def left_s(self, allowed_s: float) -> float:
        """Seconds until `allowed_s` after the arrival."""
        return max(0.0, self.began_at_s + allowed_s - time.perf_counter())

    def spent(self) -> timing.Timing:
        """Return where the time of a request went that got no decision."""
        if self.is_working:  # its stopwatch may still be running in another thread
            return timing.Stages(self.began_at_s, current="prepare").finish(queue_ms=0.0, inference_ms=0.0)
        return self.stages.finish(queue_ms=0.0, inference_ms=0.0)


_Handler = Callable[[Request, Call], Awaitable[Response]]


class Service:
    """Everything between the sockets and a `decide.Session`. `app` is the ASGI application.

    host: the name it is bound to, None for a Unix socket. The service refuses with 503 until `open` is called.
    """

    def __init__(self, config: Config, session: decide.Session, *, host: str | None, is_local: bool) -> None:
        self._config = config
        self._session = session
        self._host = host
        self._checks_host = is_local and host is not None
        self._key = _hashed(config.api_key) if config.api_key else None
        self._gate: Gate | None = None
        self._buffered = 0
        # The engine could not be started, or died, at the last request.
        self._is_sick = False
        # Asked once: what is installed later does not change what answers here.
        profile = models.answering(config)
        self._own_names = (profile.name,) if profile is not None else ()
        self.model = profile.name if profile is not None else ALIASES[1]
        self.app = Starlette(
            routes=[
                Route("/v1/systemone", self._endpoint(self._systemone), methods=["POST"]),
                Route("/v1/models", self._endpoint(self._models)),
                Route("/health", self._endpoint(self._health)),
                Route("/health/live", self._endpoint(self._live)),
            ],
            exception_handlers={HTTPException: self._no_route},
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False
        self.app.state.service = self  # for what answers before any route is known
        self.on_start: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.on_start()
        yield

    def open(self, model: str, gate: Gate) -> None:
        """Answer from now on: the engine does. model: its name in answers."""
        self.model = model
        self._gate = gate

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._gate is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The model names a request may give."""
        return tuple(dict.fromkeys((*ALIASES, *self._own_names, self.model)))

    # --------------------------------------------------------------------------------- every request

    def _endpoint(self, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(asked: Request) -> Response:
            call = Call()
            try:
                self._check_caller(asked)
                return await handler(asked, call)
            except Refusal as exc:
                return self._reply(call, exc.status, {"detail": exc.detail}, headers=exc.headers)
            except (_Gone, ClientDisconnect):
                return Response(status_code=499)  # nobody will read it
            except Exception as exc:
                _log.error("a bug in openjev, please report it: %s", _trace(exc))
                failed = refusal(500, "internal_error", "a bug in openjev; its log says where")
                return self._reply(call, 500, {"detail": failed.detail})
            finally:
                self._buffered -= call.buffered

        return endpoint

    async def _no_route(self, asked: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        call = Call()
        try:
            self._check_caller(asked)
        except Refusal as refused:
            return self._reply(call, refused.status, {"detail": refused.detail}, headers=refused.headers)
        kind, message = {
            404: ("not_found", "no such route; questions go to POST /v1/systemone"),
            405: ("method_not_allowed", "this route does not answer this method"),
        }.get(exc.status_code, ("invalid_request", "this request cannot be answered"))
        wrong = refusal(exc.status_code, kind, message)
        return self._reply(call, wrong.status, {"detail": wrong.detail}, headers=exc.headers or {})

    def no_http(self) -> Response:
        """Return the reply to bytes that are no HTTP request."""
        wrong = refusal(400, "invalid_request", "this is no HTTP/1.1 request")
        return self._reply(Call(), 400, {"detail": wrong.detail}, headers={"Connection": "close"})

    def _check_caller(self, asked: Request) -> None:
        """Refuse who must not ask: another site's page through the user's browser, and who lacks the key."""
        if self._checks_host and not self._is_our_name(asked.headers.get("host", "")):
            # DNS rebinding: a page's own host name, pointed at this machine, still stands in Host.
            raise refusal(
                403, "permission_error", "this Host is not served here", "use http://127.0.0.1:PORT"
            )
        origin = asked.headers.get("origin")
        if origin is not None and not self._is_our_name(origin.partition("://")[2]):
            raise refusal(403, "permission_error", "requests from web pages are not answered")
        if self._key is None or asked.url.path.startswith("/health"):
            return
        scheme, _, given = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(_hashed(given.strip()), self._key):
            what = "the API key is wrong" if scheme else "an API key is needed"
            raise refusal(
                401,
                "authentication_error",
                what,
                "send Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _is_our_name(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = (parts[1] or parts[2]).lower()
        return name in ("localhost", "127.0.0.1", "::1") or name == (self._host or "localhost").lower()

    def _reply(
        self,
        call: Call,
        status: int,
        body: Mapping[str, Any],
        *,
        spent: timing.Timing | None = None,
        model: str | None = None,
        cached_tokens: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return a reply with the headers that every one has; `timing` is put into bodies that lack it."""
        stages = answers.timing_to_wire(spent or call.spent())
        if self._config.response_timing and "timing" not in body:
            body = {**body, "timing": stages}
        metrics = {("total" if key == "processing_ms" else key[:-3]): ms for key, ms in stages.items()}
        return Response(
            json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(),
            status,
            {
                "x-openjev-processing-ms": json.dumps(stages["processing_ms"]),
                "server-timing": ", ".join(f"{name};dur={json.dumps(ms)}" for name, ms in metrics.items()),
                "x-openjev-model": (model or self.model).encode("ascii", "backslashreplace").decode(),
                "x-openjev-cached-tokens": str(cached_tokens),
                "x-typesafe-request-id": call.id,
                "cache-control": "no-store",
                **(headers or {}),
            },
            media_type="application/json",
        )

    # ---------------------------------------------------------------------------------------- routes

    async def _live(self, _: Request, call: Call) -> Response:
        return self._reply(call, 200, {"status": "alive"})

    async def _health(self, _: Request, call: Call) -> Response:
        gate = self._open_gate()
        if self._is_sick:
            await self._try_again(gate)
        return self._reply(
            call,
            200,
            {"status": "ready", "model": self.model, "at_work": gate.at_work, "waiting": gate.waiting},
        )

    async def _try_again(self, gate: Gate) -> None:
        """Ask a question of our own; a service that is asked nothing more would stay sick for ever."""
        try:
            await gate.run(lambda: first_answer(self._session))
        except (Full, errors.OpenjevError):
            raise refusal(503, "engine_error", "the engine does not answer") from None
        self._is_sick = False

    async def _models(self, _: Request, call: Call) -> Response:
        own = f"answers with {self.model}, a local model"
        described = [{"name": name, "description": own, "release_date": RELEASED} for name in self.names]
        return self._reply(call, 200, {"models": described})

    async def _systemone(self, asked: Request, call: Call) -> Response:
        gate = self._open_gate()
        body = await self._body(asked, call)
        content_type = asked.headers.get("content-type", "")
        encoding = asked.headers.get("content-encoding", "")

        def work() -> answers.Decision:
            call.is_working = True
            try:
                call.stages.enter("parse")
                return self._decide(bodies_of(), call)
            finally:
                call.is_working = False

        def bodies_of() -> bodies.Body:
            return bodies.read(body, content_type=content_type, encoding=encoding, limit=MAX_BODY_BYTES)

        call.stages.enter("queue")
        try:
            decision = await self._first_of(asked, call, gate.run(work))
        except Full as exc:
            raise refusal(
                529,
                "overloaded_error",
                "too many requests are waiting already",
                "ask again after the seconds in Retry-After",
                headers={"Retry-After": str(exc.retry_after_s)},
            ) from None
        except errors.OpenjevError as exc:
            # It stays so until /health has seen it answer: a bad request does not tell that it is well.
            self._is_sick |= not isinstance(exc, errors.OF_ONE_REQUEST)
            raise _refused(exc) from None
        return self._reply(
            call,
            200,
            decision.to_wire(with_timing=self._config.response_timing, is_http=True),
            spent=decision.timing,
            model=decision.model,
            cached_tokens=decision.usage.cached_tokens,
        )

    async def _first_of(self, asked: Request, call: Call, deciding: Any) -> answers.Decision:
        """Return the decision, unless the client leaves or its time is up before; then the work is dropped."""
        job: asyncio.Task[answers.Decision] = asyncio.ensure_future(deciding)
        leaving = asyncio.ensure_future(_left(asked))
        for task in (job, leaving):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            done, _ = await asyncio.wait(
                (job, leaving),
                timeout=call.left_s(self._config.request_timeout_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if job in done:
                return job.result()
        finally:
            # Also when this task itself is cancelled, at the end of a drain that took too long.
            leaving.cancel()
            if not job.done():
                call.cancel.set()
                job.cancel()
        if leaving in done:
            raise _Gone
        raise refusal(
            504, "timeout_error", f"no answer within {self._config.request_timeout_s} s, waiting included"
        )

    def _open_gate(self) -> Gate:
        if self._gate is None:
            raise refusal(
                503,
                "unavailable_error",
                "the model is still loading",
                headers={"Retry-After": str(_LOADING_RETRY_S)},
            )
        return self._gate

    # ------------------------------------------------------------------------------------ one request

    async def _body(self, asked: Request, call: Call) -> bytes:
        """Return the body, read in bounded time and space."""
        announced = asked.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
            raise _too_large()
        pieces: list[bytes] = []
        allowed_s = min(BODY_TIMEOUT_S, call.left_s(self._config.request_timeout_s))
        try:
            async with asyncio.timeout(allowed_s):
                async for piece in asked.stream():
                    call.buffered += len(piece)
                    self._buffered += len(piece)
                    if call.buffered > MAX_BODY_BYTES:
                        raise _too_large()
                    if self._buffered > MAX_BUFFERED_BYTES:
                        raise refusal(
                            529,
                            "overloaded_error",
                            "too many large requests at once",
                            headers={"Retry-After": "1", "Connection": "close"},
                        )
                    pieces.append(piece)
        except TimeoutError:
            raise refusal(
                408,
                "timeout_error",
                f"the body did not arrive within {allowed_s:.0f} s",
                headers={"Connection": "close"},
            ) from None
        return b"".join(pieces)

    def _decide(self, body: bodies.Body, call: Call) -> answers.Decision:
        """Return the decision about a body. Runs in a thread of its own."""
        problems: list[reading.Problem] = []
        held = body.value if isinstance(body.value, dict) else {}
        many = held.get("questions")
        if isinstance(many, dict) and len(many) > MAX_QUESTIONS:
            message = f"{len(many)} questions: at most {MAX_QUESTIONS} are allowed"
            problems.append(reading.Problem(("questions",), message))
        asked: request.Request | None = None
        try:
            asked = request.parse(body.value, compact=self._config.compact_json, files=body.files)
        except request.RequestError as exc:
            problems += exc.details
        model = held.get("model")
        known = "the models here are " + ", ".join(self.names)
        is_unknown = isinstance(model, str) and model not in self.names
        if problems or asked is None:
            if is_unknown:
                problems.insert(0, reading.Problem(("model",), known))
            raise request.RequestError(tuple(problems))
        if is_unknown:
            raise refusal(404, "not_found", known, "GET /v1/models lists them")
        _refuse_large(asked)
        return self._session.decide(asked, call.stages, progress=_refuse_long, cancel=call.cancel)


async def _left(asked: Request) -> None:
    """Return when the client has closed its connection. The body must have been read."""
    while (await asked.receive())["type"] != "http.disconnect":
        pass


def _refuse_large(asked: request.Request) -> None:
    """Refuse a request whose texts together are too long to be read in reasonable time."""
    size = len(asked.state.text.encode())
    for question in asked.questions:
        size += len(question.text.encode())
        for name, description in prompt.options_of(question):
            size += len(name.encode()) + len((description or "").encode())
    if size > MAX_TEXT_BYTES:
        message = f"{size} bytes of text to read: at most {MAX_TEXT_BYTES} are allowed"
        raise request.RequestError((reading.Problem((), message),))


def _refuse_long(read: int, total: int) -> None:
    """Refuse a request before it is read if it would occupy the engine for too long."""
    if read == 0 and total > MAX_TOKENS:
        message = f"{total} tokens to read: at most {MAX_TOKENS} are allowed"
        raise request.RequestError((reading.Problem((), message),))


def _hashed(key: str) -> bytes:
    # Of equal length, so that the comparison takes the same time for every guess.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


# ---------------------------------------------------------------------------------------------- errors


def _too_large() -> Refusal:
    return refusal(
        413,
        "request_too_large",
        f"the body is larger than {MAX_BODY_BYTES} bytes",
        headers={"Connection": "close"},
    )


def _refused(exc: errors.OpenjevError) -> Refusal:
    """Return the reply to an error of ours: 4xx for what was sent, 503 for the engine's troubles."""
    if isinstance(exc, request.RequestError):
        return Refusal(422, [_detail(problem.loc, problem.message) for problem in exc.details])
    if isinstance(exc, bodies.TooLarge):
        return refusal(413, "request_too_large", exc.message)
    if isinstance(exc, bodies.Unsupported):
        return refusal(415, "unsupported_media_type", exc.message, exc.next_step)
    if isinstance(exc, errors.InputError | errors.SightError):
        return Refusal(422, [_detail((), problem) for problem in exc.problems])
    # An engine's own words may repeat the prompt; ours about servers and model files do not.
    is_ours = not isinstance(exc, errors.EngineError)
    _log.error("%s: %s", type(exc).__name__, exc.message if is_ours else exc.next_step)
    return refusal(
        503,
        "engine_error",
        "the engine could not answer; the log of openjev serve says more",
        headers={"Retry-After": "1"},
    )


# Field names of the API. Other keys in a path are the client's own words: an id may be shown, since answers
# are keyed by it, an option's name is not.
_FIELDS = frozenset({"state", "questions", "model", "images", "assets", "type", "instructions", "criteria"})
_SHOWN_KEY = 64


def _detail(loc: reading.Loc, message: str) -> dict[str, Any]:
    shown: list[str | int] = ["body"]
    for depth, part in enumerate(loc):
        is_id = depth == 1 and loc[0] in ("questions", "assets")
        if isinstance(part, int) or part in _FIELDS or part in ("true", "false"):
            shown.append(part)
        elif is_id:
            shown.append(part if len(part) <= _SHOWN_KEY else part[:_SHOWN_KEY] + "...")
        else:
            break
    kind = "missing" if message.startswith("is missing") else "value_error"
    return {"type": kind, "loc": shown, "msg": message}


def _trace(exc: BaseException) -> str:
    """Return where an exception came from. Not what it says: that may repeat what was sent."""
    frames = traceback.extract_tb(exc.__traceback__)
    places = " <- ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(exc).__name__} at {places}"


# ----------------------------------------------------------------------------------------------- start

# The id of the question that is asked to see whether the model answers.
READY = "openjev-ready"


def first_answer(session: decide.Session) -> tuple[int, answers.Decision]:
    """Return how many requests the engine reads at once, and its answer to a question of ours."""
    slots = session.slots()
    asked = request.Request(states.from_text("Hello."), (questions.Noul(READY, "Is this a greeting?"),))
    return slots, session.decide(asked, timing.Stages(time.perf_counter()))
