"""Which model is asked and why, and a model that this machine cannot hold."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from openjev_cli import profiles
from tests.conftest import Command

ASK = ("ask", "--text", "x", "-Q", "Is it?")


def sparse_model(path: Path, size_bytes: int) -> Path:
    """A file that says it is a model of 4 layers, of which the disk holds nothing."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(key: str, value: int) -> bytes:
        return text(f"llama.{key}") + struct.pack("<II", 4, value)

    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    values += [number("context_length", 8192), number("block_count", 4), number("embedding_length", 256)]
    values += [number("attention.head_count", 4)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values))
        file.truncate(size_bytes)
    return path


@pytest.fixture
def with_a_program(offline: Command, tmp_path: Path) -> Command:
    """The command with something in place of llama-server that would fail at once if it were started."""
    return Command({**offline.environment, "OPENJEV_LLAMA_SERVER": "/bin/true"}, tmp_path)


def test_a_model_that_cannot_fit_is_refused_with_the_numbers_and_a_smaller_one(
    with_a_program: Command, tmp_path: Path
) -> None:
    sparse_model(tmp_path / "huge.gguf", 4 << 40)
    done = with_a_program(*ASK, "--model", "huge.gguf", "--quiet")
    assert (done.returncode, done.stdout) == (3, b"")
    error, step = done.stderr.decode().splitlines()
    start = (
        "error: huge.gguf does not fit into memory: 4096.5 GiB are needed (4096.0 GiB of weights, the rest"
    )
    assert error.startswith(start + " for 1 x 2048 tokens of context and computing), ")
    assert error.endswith(" GiB are free")
    assert step.startswith("next: openjev models pull ")
    assert "--profile" in step
    assert not list((tmp_path / "openjev").iterdir())


def test_nothing_is_fetched_before_there_is_an_engine_to_load_it(offline: Command, tmp_path: Path) -> None:
    done = offline(*ASK, "-p", "tiny", env={"OPENJEV_LLAMA_SERVER": ""})
    assert (done.returncode, done.stdout) == (4, b"")
    assert [line.split(" (")[0] for line in done.stderr.decode().splitlines()] == [
        "error: llama-server not found",
        "next: run scripts/build-llama.sh, or set OPENJEV_LLAMA_SERVER to a llama-server",
    ]


def test_a_small_model_is_not_refused(with_a_program: Command, tmp_path: Path) -> None:
    sparse_model(tmp_path / "small.gguf", 1 << 20)
    done = with_a_program(*ASK, "--model", "small.gguf")
    assert (done.returncode, b"is not a llama-server" in done.stderr) == (4, True)


def installed(tmp_path: Path, name: str) -> Path:
    wanted = profiles.PROFILES[name].weights
    folder = tmp_path / "home" / ".cache" / "openjev" / "models" / name
    path = sparse_model(folder / wanted.name, wanted.size_bytes)
    now = path.stat()
    stamp = {"size_bytes": now.st_size, "mtime_ns": now.st_mtime_ns, "inode": now.st_ino}
    path.with_name(f"{path.name}.verified").write_text(json.dumps({"sha256": wanted.sha256, **stamp}))
    return path


def test_status_and_config_tell_what_is_asked_and_why(offline: Command, tmp_path: Path) -> None:
    def asked(**env: str) -> tuple[str, list[str]]:
        note = offline("server", "status", env=env).stderr.decode().splitlines()[-1]
        shown = offline("config", "show", "-f", "tsv", env=env).stdout.decode()
        rows = [line.split("\t") for line in shown.splitlines()]
        return note.removeprefix("note: the next question asks "), next(r for r in rows if r[0] == "profile")

    assert asked() == (
        "profile tiny (no better profile is installed)",
        ["profile", "tiny", "no better profile is installed"],
    )
    installed(tmp_path, "fast")
    assert offline("config", "get", "profile").stdout == b"fast\n"
    assert asked() == (
        "profile fast (best installed profile)",
        ["profile", "fast", "best installed profile"],
    )
    assert asked(OPENJEV_PROFILE="max") == (
        "profile max (environment OPENJEV_PROFILE)",
        ["profile", "max", "environment OPENJEV_PROFILE"],
    )
    user_file = tmp_path / "home" / ".config" / "openjev" / "config.toml"
    user_file.parent.mkdir(parents=True)
    user_file.write_text('model = "/m/own.gguf"\n')
    assert asked()[0] == f"/m/own.gguf (user file {user_file})"


def test_the_best_installed_profile_is_the_one_that_is_started(
    with_a_program: Command, tmp_path: Path
) -> None:
    installed(tmp_path, "fast")
    # /bin/true is no llama-server: with `tiny` there would have been a download first.
    done = with_a_program(*ASK, env={"PIP_NO_INDEX": "1"})
    assert (done.returncode, b"/bin/true is not a llama-server" in done.stderr) == (4, True)
