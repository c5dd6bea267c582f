#!/usr/bin/env python3
"""Prove that a freshly built llama-server reads prompts and answers batches as it answers single questions.

    scripts/prove-llama.py LLAMA_SERVER [--model FILE.gguf] [--timeout S]

Starts the server on a generated hybrid model, has it read one prompt, asks four questions in one batch and
each alone, and compares. Exit 0: proven. 1: the binary crashes or answers wrongly (one line says how), do not
use it. 2: the proof itself could not run. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import generate_model

# Batched and single answers sum the same products in the same order under SERVER_FLAGS: 0 was measured.
MAX_DIFFERENCE = 1e-5
# What the generated model answers (first option of each question), measured with the AVX2 kernels. Other
# kernels round activations otherwise and move these a little; a faulty kernel moves them anywhere.
EXPECTED = {"noul": 0.2817, "choice": 0.0520, "score": 0.1735, "other": 0.0639}
MAX_DEVIATION = 0.04
# One KV stream per slot and no flash attention, as openjev runs it; nothing cached, so that every answer is a
# full reading of its prompt.
SERVER_FLAGS = (
    *("-fa", "off", "--no-kv-unified", "--parallel", "8", "--ctx-size", "8192"),
    *("--cache-ram", "0", "--ctx-checkpoints", "0", "--offline", "--threads", "2"),
)

STATE = {
    "subject": "Charged twice for order 1182",
    "body": "Hello, my card was charged twice this month. Please return one payment, I need the money today.",
    "plan": "business",
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "noul": {"type": "noul", "instructions": "Does the customer ask for a refund?"},
    "choice": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "Payments and refunds", "technical": "Bugs", "sales": None, "other": None},
    },
    "score": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["Routine", "This week", "Today", "Blocked right now"],
    },
    "other": {"type": "noul", "instructions": "Is the message spam, phishing or advertising of any kind?"},
}


class ProofFailed(Exception):
    """The binary crashed or answered wrongly; the message says how."""


class ProofNotRun(Exception):
    """Nothing was shown either way: a busy machine is no reason to distrust a binary."""


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Server:
    """One llama-server of our own on a private socket, stopped on exit from the `with` block."""

    def __init__(self, binary: Path, model: Path, folder: Path, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.socket = folder / "llama.sock"
        self.log = folder / "log.txt"
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LLAMA_ARG_", "LLAMA_MEDIA_MARKER"))
        }
        # On a busy machine threads that spin while they wait take the time of those they wait for.
        clean["OMP_WAIT_POLICY"] = "passive"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [binary, "--model", model, "--host", self.socket, *SERVER_FLAGS],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def wait_ready(self) -> None:
        while True:
            try:
                if self.request("GET", "/health", None, "starting")[0] == 200:
                    return
            except (FileNotFoundError, ConnectionRefusedError):
                self.check_alive("starting")
            if time.monotonic() > self.deadline:
                raise ProofNotRun("the server did not get ready in time")
            time.sleep(0.05)

    def request(self, method: str, path: str, body: object, doing: str) -> tuple[int, Any]:
        """Return status and parsed reply. Raises ProofFailed when the server dies while `doing`."""
        connection = UnixConnection(self.socket, max(1.0, self.deadline - time.monotonic()))
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        except (FileNotFoundError, ConnectionRefusedError):
            raise
        except TimeoutError as exc:
            raise ProofNotRun(f"the server did not answer in time while {doing}") from exc
        except (OSError, http.client.HTTPException, ValueError) as exc:
            # The connection breaks a moment before the process is gone.
            time.sleep(0.5)
            self.check_alive(doing)
            raise ProofFailed(f"the server sent no usable reply while {doing}: {exc}") from exc
        finally:
            connection.close()

    def check_alive(self, doing: str) -> None:
        code = self.process.poll()
        if code is None:
            return
        how = f"exited with code {code}"
        if code < 0:
            how = f"died with signal {-code} ({signal.Signals(-code).name})"
        tail = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ProofFailed(f"the server {how} while {doing}" + "".join(f": {line}" for line in tail))

    def ask(self, ids: list[str], doing: str) -> dict[str, list[float]]:
        """Return the probabilities of each question: P(yes) alone, or one per option."""
        body = {"state": STATE, "questions": {key: QUESTIONS[key] for key in ids}}
        status, reply = self.request("POST", "/v1/systemone", body, doing)
        if status != 200:
            raise ProofFailed(f"the server refused {doing}: {json.dumps(reply)[:300]}")
        answers = reply["answers"]
        return {key: probabilities(answers[key]) for key in ids}


def probabilities(answer: dict[str, Any]) -> list[float]:
    """Return an answer's probabilities. Raises ProofFailed when one is none (a NaN is sent as null)."""
    values = [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())
    for value in values:
        if not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
            raise ProofFailed(f"the server answered with {value!r} instead of a probability")
    return values


def difference(first: dict[str, list[float]], second: dict[str, list[float]]) -> tuple[float, str]:
    """Return the largest difference between the two sets of answers, and the question it belongs to."""
    return max(
        (abs(a - b), key)
        for key in second
        for a, b in zip(first[key], second[key], strict=True)
    )  # fmt: skip


def prove(binary: Path, model: Path, folder: Path, timeout_s: float) -> str:
    """Return one line that says what was shown. Raises ProofFailed."""
    with Server(binary, model, folder, timeout_s) as server:
        server.wait_ready()
        prompt = {"prompt": "Please answer the question. " * 40, "n_predict": 1, "temperature": 0}
        status, reply = server.request("POST", "/completion", prompt, "reading one prompt")
        if status != 200:
            raise ProofFailed(f"the server refused one prompt: {json.dumps(reply)[:300]}")
        together = server.ask(list(QUESTIONS), "four questions in one batch")
        alone: dict[str, list[float]] = {}
        for key in QUESTIONS:
            alone |= server.ask([key], "one question alone")
        server.check_alive("answering")
    worst, question = difference(together, alone)
    if not worst <= MAX_DIFFERENCE:
        raise ProofFailed(
            f"four questions in one batch differ from the four alone by {worst:.2g} ({question})"
        )
    for key, expected in EXPECTED.items():
        if not abs(alone[key][0] - expected) <= MAX_DEVIATION:
            raise ProofFailed(f"a known answer is wrong: {alone[key][0]:.4f} instead of {expected} ({key})")
    return f"one prompt read; four questions in one batch equal the four alone (difference {worst:.1g})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove that a llama-server computes what it should.")
    parser.add_argument("binary", type=Path, metavar="LLAMA_SERVER")
    parser.add_argument("--model", type=Path, help="tagged hybrid model; generated when absent")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S")
    args = parser.parse_args()
    # The server must not outlive a proof that is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    # Short: a socket path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="openjev-proof-", dir="/tmp" if Path("/tmp").is_dir() else None))
    try:
        model = args.model
        if model is None:
            model = folder / "hybrid.gguf"
            generate_model.write_model(model, decision=True)
        print(prove(args.binary.resolve(), model, folder, args.timeout))
    except ProofFailed as exc:
        print(f"proof failed: {exc}", file=sys.stderr)
        return 1
    except (ProofNotRun, OSError) as exc:
        print(f"proof not run: {exc}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
