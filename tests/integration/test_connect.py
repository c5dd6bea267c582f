"""`--connect`: a llama-server by its socket, and `openjev serve` as a Jev endpoint, give the managed answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from openjev_cli import server
from openjev_cli.binary import find_binary
from tests.conftest import Command
from tests.integration.test_serve import serving

WORDS = ("ask", "--text", "I paid twice, give it back.", "-Q", "refund: A refund?")
WORDS += ("-Q", "team: Which? [billing | sales]", "-Q", "urgency: How? [Low < Mid < High]", "-f", "json")


def answers(done: subprocess.CompletedProcess[bytes]) -> object:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_float=lambda text: round(float(text), 4))["answers"]


def test_a_jev_endpoint_gives_the_answers_of_the_managed_server(
    openjev: Command, tmp_path: Path, tiny_hybrid: Path
) -> None:
    direct = openjev(*WORDS)
    environment = {**openjev.environment, "OPENJEV_API_KEY": "s3cret"}
    (tmp_path / "serve").mkdir()
    with serving(environment, tmp_path / "serve", "--port", "0") as service:
        # Proxies of the environment must not see what is asked.
        env = {
            "OPENJEV_API_KEY": "s3cret",
            "http_proxy": "http://127.0.0.1:9",
            "all_proxy": "http://127.0.0.1:9",
        }
        there = openjev(*WORDS, "--connect", service.url, env=env)
        locked = openjev(*WORDS, "--connect", service.url)
        (tmp_path / "states.txt").write_text("one\ntwo\nthree\n")
        many = openjev("ask", "--each", "states.txt", *WORDS[3:-2], "--connect", service.url, env=env)
        assert service.end() == 0
    assert answers(there) == answers(direct)
    assert json.loads(there.stdout)["timing"]["inference_ms"] > 0
    assert (locked.returncode, locked.stdout) == (5, b"")
    assert locked.stderr.decode().endswith("wants a key (status 401)\nnext: Set OPENJEV_API_KEY.\n")
    assert (many.returncode, len(many.stdout.splitlines())) == (0, 3), many.stderr


def test_a_llama_server_is_asked_by_its_socket(
    openjev: Command, runtime_dir: Path, llama_server: Path, tiny_hybrid: Path
) -> None:
    direct = openjev(*WORDS)
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir)}
    running = server.find(server.Spec(find_binary(llama_server, None, environ), tiny_hybrid), environ)
    assert running is not None
    running.close()
    there = openjev(*WORDS, "--connect", running.socket)
    assert answers(there) == answers(direct)
    assert json.loads(there.stdout)["model"] == str(running.socket)
