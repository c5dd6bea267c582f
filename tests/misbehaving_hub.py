"""A stand-in for a model hub: one file, served as a list of behaviours says. Standard library only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """content: the file. behaviours: one a request, in order; the last one stays. asked: (path, headers) of
    every request.

    "good", "drop:N" (N bytes, then the connection breaks), "no-ranges", "no-ranges-drop:N" (N bytes of every
    whole reply), "wrong-range" (another part, and says so), "lying-range" (the start, said to be the part),
    "short" (says and sends fewer bytes), "long" (more bytes), "long-chunked", "corrupt", "slow" (half of it,
    the rest when the gate opens), "silent" (not a byte of it), or a status ("429:0" with a Retry-After)."""

    content: bytes
    behaviours: list[str] = field(default_factory=lambda: ["good"])
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    redirect_to: str | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def ranges(self) -> list[str | None]:
        """The Range header of every request."""
        return [headers.get("range") for _, headers in self.asked]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            hub.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            behaviour = hub.behaviours.pop(0) if len(hub.behaviours) > 1 else hub.behaviours[0]
            if hub.redirect_to is not None:
                self.send_response(302)
                self.send_header("Location", hub.redirect_to + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            try:
                self.act(*behaviour.partition(":")[::2])
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def act(self, name: str, value: str) -> None:
            if name.isdigit():
                self.send_response(int(name))
                if value:
                    self.send_header("Retry-After", value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            wanted = self.headers.get("Range", "bytes=0-")
            start = 0 if name.startswith("no-ranges") else int(wanted.removeprefix("bytes=").rstrip("-"))
            body, claimed = hub.content[start:], start
            if name == "wrong-range" and start:
                claimed, body = start + 1, hub.content[start + 1 :]
            if name == "lying-range":
                body = hub.content[: len(body)]
            if name == "corrupt":
                body = body[:-1] + bytes([body[-1] ^ 1])
            body += b"more" if name.startswith("long") else b""
            body = body[:-3] if name == "short" else body
            self.reply(name, body, claimed if start else None)
            if name.endswith("drop"):
                self.wfile.write(body[: int(value)])
                self.close_connection = True
            elif name == "long-chunked":
                self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            elif name == "silent":
                hub.gate.wait(20)
                self.close_connection = True
            elif name == "slow":
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                hub.gate.wait(20)
                self.wfile.write(body[len(body) // 2 :])
            else:
                self.wfile.write(body)

        def reply(self, name: str, body: bytes, start: int | None) -> None:
            self.send_response(200 if start is None else 206)
            if start is not None:
                total = len(hub.content)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            if name == "long-chunked":
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
