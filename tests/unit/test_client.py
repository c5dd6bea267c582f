"""The client against a real local server that sends what it is told to: odd, cut and slow replies."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from openjev_cli import errors
from openjev_cli.engine.client import Cancelled, Client

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'


class Canned:
    """Answers request number n with the n-th reply (bytes; None closes at once), noting what was asked."""

    def __init__(self, path: Path, replies: list[bytes | None], *, then_close: bool = False) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._replies = list(replies)
        self._then_close = then_close
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._path = path
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._path))
        return connection

    def _serve(self) -> None:
        while self._replies:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):  # the client may be gone
                while self._replies and self._answer(connection):
                    pass

    def _answer(self, connection: socket.socket) -> bool:
        request = b""
        while b"\r\n\r\n" not in request:
            piece = connection.recv(65536)
            if not piece:
                return False
            request += piece
        head, _, body = request.partition(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                while len(body) < int(line.split(b":")[1]):
                    body += connection.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        reply = self._replies.pop(0)
        if reply is None:
            return False
        connection.sendall(reply)
        return not self._then_close

    def close(self) -> None:
        self._replies.clear()
        self._listener.close()


Serve = Callable[..., Canned]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Canned] = []

    def start(*replies: bytes | None, then_close: bool = False) -> Canned:
        started.append(Canned(tmp_path / f"{len(started)}.sock", list(replies), then_close=then_close))
        return started[-1]

    yield start
    for server in started:
        server.close()


def _error(status: int, **detail: object) -> bytes:
    body = json.dumps({"error": detail}).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_replies_come_over_one_kept_connection(serve: Serve) -> None:
    server = serve(OK, OK)
    with Client(server.connect) as client:
        assert client.post("/x", {"text": "schön"}) == {"a": 1}
        assert client.get("/y") == {"a": 1}
    assert server.connections == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert json.loads(body) == {"text": "schön"}


def test_a_chunked_reply_is_joined(serve: Serve) -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n5;x=y\r\n": 1}\r\n0\r\n\r\n'
    with Client(serve(chunked).connect) as client:
        assert client.get("/") == {"a": 1}


def test_a_reply_without_a_length_ends_with_the_connection(serve: Serve) -> None:
    with Client(serve(b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}', then_close=True).connect) as client:
        assert client.get("/") == {"a": 1}


def test_a_kept_connection_that_was_closed_meanwhile_is_opened_again(serve: Serve) -> None:
    server = serve(OK, None, OK)
    with Client(server.connect) as client:
        client.get("/1")
        assert client.get("/2") == {"a": 1}
    assert server.connections == 2


def test_a_server_that_closes_before_its_reply_is_a_lost_connection(serve: Serve) -> None:
    with Client(serve(None).connect) as client, pytest.raises(errors.ConnectionLost) as caught:
        client.get("/slow")
    assert caught.value.message == "the connection to llama-server closed before a reply to /slow"


def test_a_reply_that_is_cut_is_an_error_and_never_tried_again(serve: Serve) -> None:
    cut = serve(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a"', OK, then_close=True)
    with Client(cut.connect) as client, pytest.raises(errors.EngineError) as caught:
        client.get("/x")
    assert not isinstance(caught.value, errors.ConnectionLost)
    assert caught.value.message == "llama-server stopped in the middle of its reply to /x"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "what answers / does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "what answers / does not speak HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "what answers / does not speak HTTP",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
            "llama-server answered / with status 200 and something that is not JSON",
        ),
        (
            b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops",
            "llama-server answered / with status 500 and something that is not JSON",
        ),
        (_error(500, message="a\nb"), "llama-server refused / with status 500: a b"),
        (
            b"HTTP/1.1 400 X\r\nContent-Length: 2\r\n\r\n[]",
            "llama-server refused / with status 400: no reason given",
        ),
    ],
)
def test_a_reply_that_makes_no_sense_is_one_line(serve: Serve, reply: bytes, message: str) -> None:
    with Client(serve(reply).connect) as client, pytest.raises(errors.EngineError) as caught:
        client.get("/")
    assert caught.value.message == message


def test_a_prompt_that_does_not_fit_is_an_input_error_with_both_numbers(serve: Serve) -> None:
    reply = _error(
        400, type="exceed_context_size_error", n_prompt_tokens=9000, n_ctx=8192, message="too long"
    )
    with Client(serve(reply).connect) as client, pytest.raises(errors.InputError) as caught:
        client.post("/completion", {})
    assert caught.value.message == (
        "the state and its question need 9000 tokens, but 8192 are available; nothing was cut"
    )


def test_a_server_that_is_shutting_down_is_a_lost_connection(serve: Serve) -> None:
    reply = _error(503, type="unavailable_error", message="The server is shutting down")
    with Client(serve(reply).connect) as client, pytest.raises(errors.ConnectionLost):
        client.post("/decide", {})


def test_a_model_that_loads_is_waited_for(serve: Serve) -> None:
    loading = _error(503, type="unavailable_error", message="Loading model")
    with Client(serve(loading, loading, OK).connect) as client:
        assert client.get("/props") == {"a": 1}


def test_an_engine_without_progress_is_given_up(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "silent.sock"))
    listener.listen()

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(tmp_path / "silent.sock"))
        return connection

    with listener, Client(connect, stall_s=0.05) as client, pytest.raises(errors.EngineError) as caught:
        client.get("/x")
    assert "made no progress" in caught.value.message


def test_an_engine_that_works_for_others_is_waited_for(tmp_path: Path) -> None:
    """The slots it shows change between two waits, so our reply may still come."""
    path = tmp_path / "busy.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    probes: list[int] = []

    def serve() -> None:
        waiting, _ = listener.accept()
        waiting.recv(65536)
        while len(probes) < 3:
            probe, _ = listener.accept()
            with probe:
                probe.recv(65536)
                probes.append(len(probes))
                body = b"[%d]" % len(probes)
                probe.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        with waiting:
            waiting.sendall(OK)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        return connection

    with listener, Client(connect, stall_s=0.05) as client:
        assert client.get("/x") == {"a": 1}
    thread.join(timeout=5)
    assert len(probes) == 3


def _cancel_while_it_waits(client: Client, canned: Canned) -> BaseException:
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            client.get("/slow")
        except errors.OpenjevError as exc:
            raised.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    while not canned.requests:  # until the reply is waited for
        thread.join(0.01)
    client.cancel()
    thread.join(10.0)
    assert not thread.is_alive()
    return raised[0]


def test_a_cancelled_call_ends_at_once_and_is_not_asked_again(serve: Serve) -> None:
    canned = serve(OK, b"", b"")  # b"": the reply never comes
    with Client(canned.connect, stall_s=60.0) as client:
        client.get("/warm")  # on a kept connection a lost reply would be asked for again
        canned.requests.clear()
        raised = _cancel_while_it_waits(client, canned)
        assert isinstance(raised, Cancelled)
        assert len(canned.requests) == 1
        with pytest.raises(Cancelled):
            client.get("/later")
        assert len(canned.requests) == 1
