"""Requests to one llama-server over a connection that somebody else opened and verified.

Errors of the transport and of llama-server become ours here and nowhere else.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from openjev_cli import errors
from openjev_cli.engine.wire import ClosedEarly, NotHttp, Wire

Connect = Callable[[], socket.socket]

# A call fails when the engine makes no progress for this long (the command has no fixed deadline).
STALL_S = 60.0
# What helps when the managed server fails.
LOGS = "look at its log: openjev server logs"
# llama-server answers 503 while it loads a model, also after it slept.
_LOADING_POLL_S = 0.1


class Cancelled(errors.EngineError):
    """Somebody called `Client.cancel` while a call waited for its reply."""

    def __init__(self) -> None:
        super().__init__("the request was given up", next_step="ask again if the answer is still wanted")


class Client:
    """Requests to one llama-server, one at a time, over one kept connection.

    connect: opens a verified socket. stall_s: how long the engine may make no progress. host, base: what
    every request says, and the path before its own. name, advice: for errors. Use as a context manager, or
    call `close`: closing the connection also cancels what the engine still does for it.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        stall_s: float = STALL_S,
        api_key: str | None = None,
        host: str = "localhost",
        base: str = "",
        name: str = "llama-server",
        advice: str = LOGS,
    ) -> None:
        self._connect = connect
        self._stall_s = stall_s
        self._host = host
        self._base = base
        self.name = name
        self.advice = advice
        self.has_key = bool(api_key)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._wire: Wire | None = None
        self.requests_sent = 0
        self.is_cancelled = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; llama-server drops the work of a closed connection."""
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None

    def cancel(self) -> None:
        """Make the call that waits in another thread, and every later one, raise Cancelled at once."""
        self.is_cancelled = True
        wire = self._wire
        if wire is not None:
            # Not close: that would not wake a thread that polls the socket, and frees its number for others.
            with suppress(OSError):
                wire.socket.shutdown(socket.SHUT_RDWR)

    def get(self, path: str) -> Any:
        """Return the parsed JSON reply to a GET."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the parsed JSON reply to a POST of `body`.

        Raises InputError when the prompt does not fit, ConnectionLost when the server went away before the
        first byte of the reply, EngineError for anything else.
        """
        # Surrogates cannot be in `body`: the readers refuse them. ASCII escapes would only cost bytes.
        return self._call("POST", path, json.dumps(body, ensure_ascii=False).encode())

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        return self._parse(*self.exchange(method, path, body), path)

    def exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Return status and body of the reply, whatever they are. Raises as `post` for the transport."""
        while True:
            status, raw = self._exchange(method, self._base + path, body)
            if status != 503 or b"oading model" not in raw:
                return status, raw
            time.sleep(_LOADING_POLL_S)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self.is_cancelled:
            raise Cancelled
        is_fresh = self._wire is None
        wire = self._wire or Wire(self._connect(), host=self._host)
        self._wire = wire
        self.requests_sent += 1
        # Again, behind the assignment: a cancel that did not see this connection has set the flag before.
        if self.is_cancelled:
            self.close()
            raise Cancelled
        try:
            wire.socket.settimeout(self._stall_s)
            wire.send(method, path, body, self._headers)
            self._await_reply(wire.socket)
            reply = wire.receive()
        except (ClosedEarly, ConnectionError) as exc:
            self.close()
            if self.is_cancelled:
                raise Cancelled from exc
            if isinstance(exc, ClosedEarly) and exc.began:
                raise errors.EngineError(
                    f"{self.name} stopped in the middle of its reply to {path}",
                    next_step=self.advice,
                ) from exc
            if not is_fresh:
                # A kept connection may have been closed between two requests; nothing was read of a reply.
                return self._exchange(method, path, body)
            raise errors.ConnectionLost(
                f"the connection to {self.name} closed before a reply to {path}",
                next_step=self.advice,
            ) from exc
        except TimeoutError as exc:
            self.close()
            raise errors.EngineError(
                f"{self.name} made no progress for {self._stall_s:.0f} s ({path})",
                next_step=f"{self.advice}; then: openjev server stop" if self.advice == LOGS else self.advice,
            ) from exc
        except OSError as exc:  # TLS, a route that is gone
            self.close()
            if self.is_cancelled:
                raise Cancelled from exc
            raise errors.EngineError(
                f"the connection to {self.name} broke: {exc.strerror or exc}", next_step=self.advice
            ) from exc
        except NotHttp as exc:
            self.close()
            raise errors.EngineError(
                f"what answers {path} does not speak HTTP",
                next_step="check what listens there: openjev server status"
                if self.advice == LOGS
                else self.advice,
            ) from exc
        except BaseException:
            # Ctrl-C above all: the engine stops working for a connection that is closed.
            self.close()
            raise
        if not wire.keeps_alive:
            self.close()
        return reply

    def _await_reply(self, connection: socket.socket) -> None:
        """Wait for the first byte of the reply, for as long as the engine works on anything.

        When a wait of `stall_s` ends without a byte, the engine's slots are compared with those a wait ago.
        They change while it works for us or for those before us in its queue.
        """
        before: Any = None
        while not _readable(connection, self._stall_s):
            now = self._work_done()
            if now is None or now == before:
                raise TimeoutError
            before = now

    def _work_done(self) -> Any:
        """Return what tells one moment of the engine's work from another, or None if it does not say."""
        try:
            wire = Wire(self._connect(), host=self._host)
        except (OSError, errors.OpenjevError):
            return None
        try:
            wire.socket.settimeout(self._stall_s)
            wire.send("GET", f"{self._base}/slots", None, self._headers)
            status, raw = wire.receive()
        except (ClosedEarly, NotHttp, OSError):
            return None
        finally:
            wire.socket.close()
        return raw if status == 200 else None

    def _parse(self, status: int, raw: bytes, path: str) -> Any:
        try:
            reply = json.loads(raw)
        except ValueError as exc:
            raise errors.EngineError(
                f"{self.name} answered {path} with status {status} and something that is not JSON",
                next_step=self.advice,
            ) from exc
        if status < 400:
            return reply
        error = reply.get("error") if isinstance(reply, dict) else None
        detail = error if isinstance(error, dict) else {}
        if detail.get("type") == "exceed_context_size_error":
            raise does_not_fit(int(detail.get("n_prompt_tokens") or 0), int(detail.get("n_ctx") or 0))
        if status == 503 and "shutting down" in str(detail.get("message")):
            # Idle exit or `server stop` got there first: as if it had been gone already.
            raise errors.ConnectionLost(f"{self.name} was shutting down", next_step=self.advice)
        raise errors.EngineError(
            f"{self.name} refused {path} with status {status}: {_one_line(detail.get('message'))}",
            next_step=self.advice,
        )


def _readable(sock: socket.socket, timeout_s: float) -> bool:
    import select

    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(timeout_s * 1000.0))


def does_not_fit(needed: int, available: int) -> errors.InputError:
    """Return the error for a prompt longer than a request's context; both in tokens."""
    return errors.InputError(
        f"the state and its question need {needed} tokens, but {available} are available; nothing was cut",
        next_step="shorten the state, or choose a profile with a longer context: openjev models list",
    )


def no_words(why: str) -> errors.InputError:
    """Return the error for options that cannot be told by their tokens."""
    return errors.InputError(
        f"the options of a question cannot be read by their own text: {why}",
        next_step="rename that option, or read letters instead: --readout letters",
    )


def _one_line(message: object) -> str:
    text = " ".join(str(message or "no reason given").split())
    return text if len(text) <= 300 else text[:297] + "..."
