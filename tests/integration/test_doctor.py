"""`openjev doctor` on machines where something is missing, damaged or fine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from openjev_cli import profiles
from tests.conftest import REAL_CACHE, Command

CHECKS = ["settings", "processor", "llama-server", "compiler", "socket folder", "disk"]


def findings(done: subprocess.CompletedProcess[bytes]) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(done.stdout)}


def test_on_a_machine_with_nothing_installed_every_problem_names_a_next_step(offline: Command) -> None:
    done = offline("doctor", "--json")
    seen = findings(done)
    assert (done.returncode, done.stderr) == (1, b"")
    assert list(seen) == [*CHECKS, "model files", "memory", "known question"]
    assert seen["llama-server"] == {
        "check": "llama-server",
        "level": "problem",
        "what": "OPENJEV_LLAMA_SERVER: /nonexistent/llama-server is not an executable file",
        "next": "set it to a llama-server, or unset it and run scripts/build-llama.sh",
    }
    assert seen["model files"]["next"] == "openjev models pull fast"
    assert [name for name, each in seen.items() if each["level"] == "problem"] == [
        "llama-server",
        "known question",
    ]
    assert all(each["next"] for each in seen.values() if each["level"] != "ok")


def test_a_program_that_is_no_llama_server_is_named(offline: Command) -> None:
    seen = findings(offline("doctor", "--json", env={"OPENJEV_LLAMA_SERVER": "/bin/true"}))
    assert seen["llama-server"]["level"] == "problem"
    assert seen["llama-server"]["what"].startswith(f"{Path('/bin/true').resolve()} is not a llama-server")


def test_damaged_and_half_fetched_models_are_found(offline: Command, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".cache" / "openjev" / "models"
    (folder / "fast").mkdir(parents=True)
    (folder / "balanced").mkdir()
    (folder / "fast" / profiles.PROFILES["fast"].weights.name).write_bytes(b"GGUF")
    (folder / "balanced" / ".Qwen3.5-4B-Q4_K_M.gguf.part").write_bytes(bytes(30_000_000))
    seen = findings(offline("doctor", "--json", "-p", "fast"))
    assert seen["model fast"]["what"].endswith(
        "has 4 bytes instead of 532517120: incomplete, or another file"
    )
    assert seen["model fast"]["next"].startswith(
        "Run: openjev models pull fast (0.7 GB with the image projector). Offline: put "
    )
    assert seen["model balanced"] == {
        "check": "model balanced",
        "level": "warning",
        "what": "1% fetched",
        "next": "openjev models pull balanced",
    }
    assert seen["memory"]["level"] == "problem"


def test_a_folder_that_cannot_be_trusted_or_written_is_named(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "openjev").write_text("in the way")
    (tmp_path / "tmp").mkdir(mode=0o755)
    (tmp_path / "file").write_text("")
    env = {"TMPDIR": str(tmp_path / "tmp"), "OPENJEV_CACHE_DIR": str(tmp_path / "file" / "cache")}
    seen = findings(offline("doctor", "--json", env=env))
    assert seen["socket folder"]["level"] == "ok"
    assert seen["disk"] == {
        "check": "disk",
        "level": "problem",
        "what": f"{tmp_path}/file cannot be written to",
        "next": "Set OPENJEV_CACHE_DIR to a folder that you can write to.",
    }


def test_with_an_engine_and_tiny_the_known_question_is_answered_as_expected(
    openjev: Command, tiny_model: Path
) -> None:
    done = openjev("doctor", "--json", "-p", "tiny", env={"OPENJEV_CACHE_DIR": str(REAL_CACHE)})
    seen = findings(done)
    assert done.returncode == 0, seen
    assert list(seen) == [*CHECKS, "model tiny", "memory", "known question", "time", "batching"]
    assert seen["known question"]["level"] == "ok"
    assert "off by 0.0" in seen["known question"]["what"]
    assert seen["batching"]["level"] in ("ok", "warning")


def test_another_model_is_asked_without_an_expectation(openjev: Command, tiny_hybrid: Path) -> None:
    done = openjev("doctor", "--quiet")
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert any(line.startswith(" ok        known question   tiny-hybrid: P(refund) = ") for line in lines)


@pytest.mark.parametrize("words", [("doctor", "--help"), ("doctor", "-h")])
def test_help(words: tuple[str, ...], offline: Command) -> None:
    done = offline(*words)
    assert (done.returncode, done.stdout.decode().lstrip().startswith("Usage: openjev doctor ")) == (0, True)
