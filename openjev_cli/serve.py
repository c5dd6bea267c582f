"""The life of `openjev serve`: it listens, gets its engine ready, drains, ends. `api` says what is answered.

Needs the extra `serve` (starlette, uvicorn).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from openjev_cli import api, decide
from openjev_cli.admission import Gate
from openjev_cli.config import Config

DEFAULT_QUEUE = 64
# A client that needs longer to send the head of a request only holds a connection open.
HEAD_TIMEOUT_S = 15.0
# After the last answer of a connection; longer than most clients keep an idle one themselves.
KEEP_ALIVE_S = 75


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a limit on how long a client may take to send a request's head."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_head_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        reply = self.config.app.state.service.no_http()  # type: ignore[union-attr]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=400, headers=reply.raw_headers, reason=b"Bad Request")
            for event in (head, h11.Data(data=reply.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        is_between = self.cycle is None or self.cycle.response_complete
        if not is_between:
            self._unset_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class Listener(uvicorn.Server):
    """uvicorn's server, which drains at SIGTERM or Ctrl-C and ends instead of dying by the signal again."""

    interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, _: object) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.force_exit = self.should_exit  # asked twice: now
        self.should_exit = True


def listener(service: api.Service, *, drain_s: int) -> Listener:
    """Return what listens for a service; `run([socket])` it. drain_s: how long its end waits for answers."""
    return Listener(
        uvicorn.Config(
            service.app,
            http=_Protocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=drain_s,
        )
    )


def run(
    config: Config,
    environ: Mapping[str, str],
    bound: socket.socket,
    *,
    host: str | None,
    is_local: bool,
    queue: int = DEFAULT_QUEUE,
    report: decide.Report | None = None,
    on_ready: Callable[[str, int], None] = lambda model, slots: None,
    on_notices: Callable[[Sequence[str]], None] = lambda notices: None,
) -> bool:
    """Serve on a bound socket until SIGTERM or Ctrl-C, and finish what was accepted by then. Return whether it
    was Ctrl-C.

    on_ready: called once the model has answered, with its name and how many requests it reads at once. Raises
    what kept the engine from starting.
    """
    session = decide.Session(config, environ, report=report)
    service = api.Service(config, session, host=host, is_local=is_local)
    server = listener(service, drain_s=config.request_timeout_s + 5)
    failed: list[BaseException] = []

    def get_ready(loop: asyncio.AbstractEventLoop) -> None:
        try:
            slots, decision = api.first_answer(session)
        except BaseException as exc:
            failed.append(exc)
            server.should_exit = True
            return
        on_notices([notice for notice in decision.notices if api.READY not in notice])
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(service.open, decision.model, Gate(workers=slots, queue=queue))
            on_ready(decision.model, slots)

    def start() -> None:
        # A daemon: a model that takes minutes to load must not hold up the end.
        loop = asyncio.get_running_loop()
        threading.Thread(target=get_ready, args=(loop,), daemon=True, name="get ready").start()

    service.on_start = start
    server.run([bound])
    if failed:
        raise failed[0]
    if not server.force_exit and service.is_open:
        session.close()
    return server.interrupted
