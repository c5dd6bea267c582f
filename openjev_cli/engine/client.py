"""HTTP to one llama-server over a connection that somebody else opened and verified.

Small on purpose: `http.client` starts ten times faster than a full HTTP library, and one kept connection is all
a warm call needs. Errors of the transport and of llama-server become ours here and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from openjev_cli import errors

Connect = Callable[[], socket.socket]

# A call fails when the engine makes no progress for this long (DESIGN: the CLI has no fixed deadline).
STALL_S = 60.0
# llama-server answers 503 while it loads a model, also after it slept.
_LOADING_POLL_S = 0.1


class _Connection(http.client.HTTPConnection):
    """An HTTP/1.1 connection whose socket comes from `connect`."""

    def __init__(self, connect: Connect, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._open = connect
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = self._open()
        self.sock.settimeout(self._timeout_s)


class Client:
    """Requests to one llama-server, one at a time, over one kept connection.

    connect: opens a verified socket. stall_s: how long the engine may make no progress. Use as a context
    manager, or call `close`: closing the connection also cancels what the engine still does for it.
    """

    def __init__(self, connect: Connect, *, stall_s: float = STALL_S, api_key: str | None = None) -> None:
        self._connect = connect
        self._stall_s = stall_s
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: _Connection | None = None
        self.requests_sent = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; llama-server drops the work of a closed connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
        while True:
            status, raw = self._exchange(method, path, body)
            if status == http.client.SERVICE_UNAVAILABLE and b"oading model" in raw:
                time.sleep(_LOADING_POLL_S)
                continue
            return _parse(status, raw, path)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        is_fresh = self._connection is None
        connection = self._connection or _Connection(self._connect, self._stall_s)
        self._connection = connection
        self.requests_sent += 1
        try:
            connection.request(method, path, body, self._headers)
            response = self._await_reply(connection)
            return response.status, response.read()
        except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError) as exc:
            self.close()
            if not is_fresh and not isinstance(exc, ConnectionRefusedError):
                # A kept connection may have been closed between two requests; nothing was read of a reply.
                return self._exchange(method, path, body)
            raise errors.ConnectionLost(
                f"the connection to llama-server closed before a reply to {path}",
                next_step="look at its log: openjev server logs",
            ) from exc
        except http.client.IncompleteRead as exc:
            self.close()
            raise errors.EngineError(
                f"llama-server stopped in the middle of its reply to {path}",
                next_step="look at its log: openjev server logs",
            ) from exc
        except TimeoutError as exc:
            self.close()
            raise errors.EngineError(
                f"llama-server made no progress for {self._stall_s:.0f} s ({path})",
                next_step="look at its log: openjev server logs; then: openjev server stop",
            ) from exc
        except http.client.HTTPException as exc:
            self.close()
            raise errors.EngineError(
                f"llama-server sent a reply to {path} that is not HTTP ({type(exc).__name__})",
                next_step="check what listens there: openjev server status",
            ) from exc

    def _await_reply(self, connection: _Connection) -> http.client.HTTPResponse:
        """Wait for the reply's first line, for as long as the engine works on anything.

        The kernel's own wait is used in slices: when one ends without a byte, the engine's slots are compared
        with those a slice ago. They change while it works for us or for those before us in its queue.
        """
        if connection.sock is not None:
            before: Any = None
            while not _readable(connection.sock, self._stall_s):
                now = self._work_done()
                if now is None or now == before:
                    raise TimeoutError
                before = now
        return connection.getresponse()

    def _work_done(self) -> Any:
        """Return what tells one moment of the engine's work from another, or None if it does not say."""
        probe = Client(self._connect, stall_s=self._stall_s)
        try:
            with probe:
                # Not through _call: a probe never waits for another probe.
                status, raw = probe._simple_get("/slots")
        except (errors.EngineError, OSError, http.client.HTTPException):
            return None
        return raw if status == http.client.OK else None

    def _simple_get(self, path: str) -> tuple[int, bytes]:
        connection = _Connection(self._connect, self._stall_s)
        self._connection = connection
        connection.request("GET", path, None, self._headers)
        response = connection.getresponse()
        return response.status, response.read()


def _readable(sock: socket.socket, timeout_s: float) -> bool:
    import select

    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(timeout_s * 1000.0))


def _parse(status: int, raw: bytes, path: str) -> Any:
    try:
        reply = json.loads(raw)
    except ValueError as exc:
        raise errors.EngineError(
            f"llama-server answered {path} with status {status} and something that is not JSON",
            next_step="look at its log: openjev server logs",
        ) from exc
    if status < http.client.BAD_REQUEST:
        return reply
    error = reply.get("error") if isinstance(reply, dict) else None
    detail = error if isinstance(error, dict) else {}
    if detail.get("type") == "exceed_context_size_error":
        raise does_not_fit(int(detail.get("n_prompt_tokens") or 0), int(detail.get("n_ctx") or 0))
    raise errors.EngineError(
        f"llama-server refused {path} with status {status}: {_one_line(detail.get('message'))}",
        next_step="look at its log: openjev server logs",
    )


def does_not_fit(needed: int, available: int) -> errors.InputError:
    """Return the error for a prompt longer than a request's context; both in tokens."""
    return errors.InputError(
        f"the state and its question need {needed} tokens, but {available} are available; nothing was cut",
        next_step="shorten the state, or choose a profile with a longer context: openjev models list",
    )


def _one_line(message: object) -> str:
    text = " ".join(str(message or "no reason given").split())
    return text if len(text) <= 300 else text[:297] + "..."
