"""A project file in a cloned folder cannot run a program, read another file, or send a state anywhere; and
homes that cannot be written to give one clear line."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Command

ASK = ("ask", "--text", "secret state", "-f", "json")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where a state would arrive if it were sent."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(0.2)
        yield found


def planted(folder: Path) -> tuple[Path, Path]:
    """A program that leaves a mark when it is run, and the mark."""
    mark, program = folder / "was-run", folder / "llama-server"
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    return program, mark


@pytest.mark.parametrize(
    "setting",
    [
        'llama_server = "{program}"',
        'llama_server = "./llama-server"',
        'connect = "http://127.0.0.1:{port}"',
        'connect = "./some.sock"',
        'model = "/etc/passwd"',
        'mmproj = "/etc/passwd"',
        'cache_dir = "."',
        'model_source = "modelscope"',
        'api_key = "k"',
        'questions = "/etc/passwd"',
        'questions = ["ok.txt", "../../etc/passwd"]',
        'questions = "link"',
        'questions = "~/etc/passwd"',
        "debug = true",
    ],
)
def test_a_hostile_project_file_is_refused_before_anything_happens(
    setting: str, offline: Command, listener: socket.socket, tmp_path: Path
) -> None:
    program, mark = planted(tmp_path)
    (tmp_path / "ok.txt").write_text("q: Is it?\n")
    (tmp_path / "link").symlink_to("/etc/passwd")
    text = setting.format(program=program, port=listener.getsockname()[1])
    (tmp_path / ".openjev.toml").write_text(text + "\n")
    question = () if "questions" in setting else ("-Q", "Is it?")
    done = offline(*ASK, *question, env={"HOME": "/" if "~" in setting else str(tmp_path / "home")})
    assert (done.returncode, done.stdout) == (2, b"")
    error, step = done.stderr.decode().splitlines()
    assert error.startswith(f"error: {tmp_path / '.openjev.toml'}: {setting.split()[0]}")
    assert "root:" not in error
    assert step.startswith("next: ")
    assert not mark.exists()
    with pytest.raises(TimeoutError):
        listener.accept()


def test_a_program_of_the_folder_is_not_run_although_the_path_says_so(
    offline: Command, tmp_path: Path
) -> None:
    _, mark = planted(tmp_path)
    env = {"PATH": ".::/usr/bin:/bin", "OPENJEV_LLAMA_SERVER": "", "OPENJEV_PROFILE": ""}
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(60))
    done = offline(*ASK, "-Q", "Is it?", "--model", "m.gguf", env=env)
    assert (done.returncode, mark.exists()) == (4, False)
    assert b"llama-server not found" in done.stderr


def test_a_harmless_project_file_is_followed(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("q: Is it [a | b] or?\n")
    (tmp_path / ".openjev.toml").write_text('questions = "q.txt"\nprofile = "fast"\nformat = "tsv"\n')
    done = offline(*ASK[:-2])
    # The list was read: its fault is what stops the call.
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"error: {tmp_path}/q.txt:1:")


# Homes (D08).


def read_only_home(tmp_path: Path) -> list[str]:
    """What comes before a command to give it a home that nobody can write to, not even root."""
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this system does not let a user mount a read-only disk (unshare)")
    return [*words, "sh", "-c", 'mount -t tmpfs -o ro none "$0" && exec "$@"', str(tmp_path / "home")]


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("models", "pull", "fast"), "OPENJEV_CACHE_DIR"),
        (("models", "pull", "tiny"), "OPENJEV_CACHE_DIR"),
        (("config", "set", "profile", "fast"), "XDG_CONFIG_HOME"),
        (("ask", "--text", "x", "-Q", "Is it?", "-p", "tiny"), "OPENJEV_CACHE_DIR"),
    ],
)
def test_a_read_only_home_is_one_line_with_the_path_and_the_variable(
    words: tuple[str, ...], variable: str, offline: Command, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*read_only_home(tmp_path), *offline.argv(*words)],
        env={**offline.environment, "OPENJEV_LLAMA_SERVER": "/bin/true"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    error, step = done.stderr.decode().splitlines()
    assert (done.returncode in (2, 3), done.stdout) == (True, b"")
    assert error.startswith("error: cannot ")
    assert str(tmp_path / "home") in error
    assert "Read-only file system" in error
    assert step == f"next: Set {variable} to a folder that you can write to."


@pytest.mark.parametrize("home", ["/proc/nonexistent", "long"])
def test_a_home_that_is_missing_or_long_is_one_line_or_works(
    home: str, offline: Command, tmp_path: Path
) -> None:
    where = home if home != "long" else str(tmp_path / "/".join(["x" * 60] * 4))
    env = {"HOME": where, "HF_ENDPOINT": "http://127.0.0.1:9"}
    listed = offline("models", "list", "-f", "tsv", env=env)
    assert (listed.returncode, len(listed.stdout.splitlines()), listed.stderr) == (0, 5, b"")
    pulled = offline("models", "pull", "fast", "--quiet", env=env)
    error, step = pulled.stderr.decode().splitlines()
    assert pulled.returncode == 3
    if home == "long":
        assert error.startswith(
            "error: Qwen3.5-0.8B-Q4_K_M.gguf could not be fetched: Hugging Face cannot be"
        )
        assert f" at {where}/.cache/openjev/models/fast/Qwen3.5-0.8B-Q4_K_M.gguf." in step
    else:
        assert error.startswith("error: cannot use /proc/nonexistent")
        assert step == "next: Set OPENJEV_CACHE_DIR to a folder that you can write to."
