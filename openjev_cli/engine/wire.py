"""HTTP/1.1 as far as one llama-server and we need it: a request with a JSON body, a reply of known length.

`http.client` would do, but it imports `email` and `ssl`, which takes 50 ms of the 130 ms that a warm call may
cost beyond its `import typer` (benchmarks/start.md). RFC 9112 sections 6 and 7 say how a body is framed.
"""

from __future__ import annotations

import socket

MAX_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024


class NotHttp(Exception):
    """The peer does not speak HTTP/1.x, or frames a body in a way we do not read."""


class ClosedEarly(Exception):
    """The peer closed the connection. began: some of a reply had been read."""

    def __init__(self, *, began: bool) -> None:
        super().__init__("closed early")
        self.began = began


class Wire:
    """One connection: `send` a request, then `receive` its reply. Closing it is up to the owner."""

    def __init__(self, connection: socket.socket, *, host: str = "localhost") -> None:
        self.socket = connection
        self._host = host
        self.keeps_alive = True
        self._buffer = bytearray()

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
        """Send one request. Raises OSError."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        self.socket.sendall(head + body if body is not None else head)

    def receive(self) -> tuple[int, bytes]:
        """Return status and body of the next reply. Raises ClosedEarly, NotHttp, TimeoutError, OSError."""
        while True:
            status, headers = self._head()
            if status >= 200:  # 1xx replies are followed by the one that counts
                break
        self.keeps_alive = headers.get("connection", "").lower() != "close"
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return status, self._chunked()
        if "content-length" in headers:
            return status, self._exactly(_number(headers["content-length"], 10))
        self.keeps_alive = False
        return status, self._rest()

    def _head(self) -> tuple[int, dict[str, str]]:
        end = self._until(b"\r\n\r\n", MAX_HEAD_BYTES)
        lines = end.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise NotHttp
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise NotHttp
            headers[name.strip().lower()] = value.strip()
        return _number(rest[:3], 10), headers

    def _chunked(self) -> bytes:
        body = bytearray()
        while True:
            size = _number(self._until(b"\r\n", MAX_HEAD_BYTES).partition(b";")[0].decode("latin-1"), 16)
            if size == 0:
                while self._until(b"\r\n", MAX_HEAD_BYTES):
                    pass  # trailers
                return bytes(body)
            body += self._exactly(size)
            if self._exactly(2) != b"\r\n":
                raise NotHttp

    def _until(self, mark: bytes, limit: int) -> bytes:
        at = self._buffer.find(mark)
        while at < 0:
            if len(self._buffer) > limit:
                raise NotHttp
            self._more()
            at = self._buffer.find(mark)
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _rest(self) -> bytes:
        try:
            while True:
                self._more()
        except ClosedEarly:
            return bytes(self._buffer)

    def _more(self) -> None:
        piece = self.socket.recv(_CHUNK_BYTES)
        if not piece:
            raise ClosedEarly(began=bool(self._buffer))
        self._buffer += piece


def _number(text: str, base: int) -> int:
    try:
        value = int(text, base)
    except ValueError as exc:
        raise NotHttp from exc
    if value < 0:
        raise NotHttp
    return value
