"""The real patched llama-server for the tests of `POST /decide`, and requests made of token ids."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Ordinary tokens of the tiny models: no control token lies in this range.
FIRST_TOKEN, LAST_TOKEN = 20, 390
TOLERANCE = 1e-5

Question = tuple[list[int], list[int]]


class UnixConnection(http.client.HTTPConnection):
    """One HTTP connection over the server's socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Server:
    """A llama-server as openjev starts it: one KV stream per slot, no flash attention."""

    def __init__(self, binary: Path, model: Path, *extra: str | Path, slots: int = 8, context: int = 2048):
        self._folder = Path(tempfile.mkdtemp(prefix="ojd-", dir="/tmp"))  # a socket's path must be short
        self.path = self._folder / "s.sock"
        self.log = self._folder / "log"
        argv = [
            binary, "--model", model, "-fa", "off", "--no-kv-unified", "-np", slots, "-c", slots * context,
            "-t", 1, "--jinja", "--metrics", "--host", self.path, *extra,
        ]  # fmt: skip
        with self.log.open("wb") as out:
            self.child = subprocess.Popen([str(word) for word in argv], stdout=out, stderr=out)
        self._wait_ready()

    def _wait_ready(self, timeout_s: float = 120) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.child.poll() is None:
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        tail = self.log.read_text(errors="replace")[-2000:]
        self.close()
        raise AssertionError(f"the server did not get ready:\n{tail}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(20)
        finally:
            self.child.kill()
            self.child.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 120) -> tuple[int, Any]:
        """Return the status and the parsed reply. body: sent as it is when bytes, else as JSON."""
        connection = UnixConnection(self.path, timeout_s)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, text.decode(errors="replace")

    def decide(
        self, prefix: Sequence[int], questions: Sequence[Question], **fields: object
    ) -> dict[str, Any]:
        """Return the reply to a request made of token ids."""
        status, reply = self.call("POST", "/decide", request(prefix, questions, **fields))
        assert status == 200, reply
        assert isinstance(reply, dict)
        return reply

    def lone(self, prefix: Sequence[int], question: Question) -> dict[str, Any]:
        """Return the one result of a question asked alone with nothing cached."""
        result: dict[str, Any] = self.decide(prefix, [question], cache_prompt=False)["results"][0]
        return result

    def is_alive(self) -> bool:
        return self.child.poll() is None and self.call("GET", "/health")[0] == 200

    def counter(self, name: str) -> int:
        """Return one of the counters of /metrics."""
        _, text = self.call("GET", "/metrics")
        for line in str(text).splitlines():
            if line.startswith(f"llamacpp:{name} "):
                return int(float(line.split()[1]))
        raise AssertionError(f"no counter {name} in:\n{text}")

    def processing(self) -> int:
        """Return how many slots are at work."""
        _, slots = self.call("GET", "/slots")
        return sum(slot["is_processing"] for slot in slots)

    def peak_bytes(self) -> int:
        """Return the most memory the server has had so far."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Return as soon as the condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def request(prefix: Sequence[int], questions: Sequence[Question], **fields: object) -> dict[str, Any]:
    """Return the body of a request made of token ids."""
    return {
        "prefix": [{"tokens": list(prefix)}],
        "suffixes": [{"segments": [{"tokens": ids}], "labels": labels} for ids, labels in questions],
        **fields,
    }


def some_tokens(rng: random.Random, count: int) -> list[int]:
    """Return random ordinary tokens."""
    return [rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


def some_questions(
    rng: random.Random, count: int, *, labels: int | None = None, most: int = 40
) -> list[Question]:
    """Return random questions of 1 to `most` tokens. labels: how many each has, None = 2, 26 or 255."""
    pool = range(FIRST_TOKEN, LAST_TOKEN)
    return [
        (some_tokens(rng, rng.randint(1, most)), rng.sample(pool, labels or rng.choice((2, 26, 255))))
        for _ in range(count)
    ]


def difference(first: Sequence[Any], second: Sequence[Any]) -> float:
    """Return the largest difference of any number in two lists of results."""
    assert len(first) == len(second)
    largest = 0.0
    for one, other in zip(first, second, strict=True):
        assert len(one["logits"]) == len(other["logits"])
        pairs = zip([*one["logits"], one["logsumexp"]], [*other["logits"], other["logsumexp"]], strict=True)
        largest = max(largest, *(abs(a - b) for a, b in pairs))
    return largest
