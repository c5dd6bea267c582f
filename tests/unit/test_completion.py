"""Completion: what is offered, that it is fast and silent, and that completions/ is up to date."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openjev_cli import config
from openjev_cli.cli import COMMANDS, completion

ROOT = Path(__file__).resolve().parent.parent.parent
BASH = ROOT / "completions" / "openjev.bash"


def test_the_scripts_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/generate_completions.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("openjev ", list(COMMANDS)),
        ("openjev se", ["serve", "server"]),
        ("openjev ask -p ", list(config.PROFILE_NAMES)),
        ("openjev ask --profile=b --profile b", ["balanced"]),
        ("openjev ask -f j", ["json", "jsonl"]),
        ("openjev check -f ", ["table", "json", "jsonl"]),
        ("openjev ask --each --as ", ["ndjson", "json", "lines", "csv", "tsv"]),
        ("openjev ask --star", ["--start-at"]),
        ("openjev ask --no-t", ["--no-timing"]),
        ("openjev server ", ["start", "stop", "status", "logs"]),
        ("openjev server stop ", []),
        ("openjev models pull f", ["fast"]),
        ("openjev config get keep", ["keep_alive"]),
        ("openjev --ver", ["--version"]),
        ("openjev ask tick", []),
        ("openjev nonsense ", list(COMMANDS)),
    ],
)
def test_what_is_offered(line: str, expected: list[str]) -> None:
    words = line.split(" ")
    assert completion.candidates(words, len(words) - 1) == expected
    assert from_bash(line) == expected


def from_bash(line: str, cwd: Path | None = None) -> list[str]:
    """What the bash script offers; file names, which readline adds, are not among them."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f'source "{BASH}"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _openjev;'
        ' ((${#COMPREPLY[@]})) && printf "%s\\n" "${COMPREPLY[@]}"; true'
    )
    run = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=cwd, capture_output=True, text=True, check=True, env={}
    )
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_every_option_of_every_command_is_in_every_script() -> None:
    texts = [path.read_text(encoding="utf-8") for path in BASH.parent.iterdir()]
    assert len(texts) == 3
    for command in completion.commands():
        for option in command.options:
            for name in option.names:
                plain = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                assert all(name in text or plain in text for text in texts), name


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", "openjev.bash"), ("zsh", "_openjev"), ("fish", "openjev.fish")]
)
def test_a_script_is_valid_in_its_shell(shell: str, file: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    subprocess.run([shell, "-n", ROOT / "completions" / file], check=True, capture_output=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "words", ["openjev ", "openjev ask -", "openjev 'un", "", "openjev ask 'a b' x:y \"q"]
)
def test_case_h06_a_tab_that_calls_openjev_prints_candidates_only(
    shell: str, words: str, tmp_path: Path
) -> None:
    broken = tmp_path / "config" / "openjev"
    broken.mkdir(parents=True)
    (broken / "config.toml").write_text("this is [ no TOML\n")
    (tmp_path / ".openjev.toml").write_text("neither = is this\n")
    environment = {
        "_OPENJEV_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(max(1, words.count(" "))),
        "_TYPER_COMPLETE_ARGS": words,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "OPENJEV_PROFILE": "nonsense",
        "PATH": os.environ["PATH"],
    }
    result = subprocess.run(
        [sys.executable, "-m", "openjev_cli"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert all(one and " " not in one for one in result.stdout.splitlines())
    if words == "openjev ":
        assert result.stdout.splitlines() == list(COMMANDS)
    assert not (tmp_path / "openjev").exists(), "a folder of servers was made"


def test_case_h06_the_bash_script_starts_no_program_and_is_fast(tmp_path: Path) -> None:
    line = 'COMP_WORDS=(openjev ask -p ""); COMP_CWORD=3'
    program = f'PATH=/nonexistent; source "{BASH}"; {line}; _openjev; echo "${{COMPREPLY[@]}}"'
    began_at_s = time.perf_counter()
    run = subprocess.run(
        [shutil.which("bash") or "bash", "--norc", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    assert (run.stdout.split(), run.stderr) == (list(config.PROFILE_NAMES), "")
    assert time.perf_counter() - began_at_s < 0.5 * max(1, os.getloadavg()[0])


def test_case_h06_files_are_left_to_readline_which_knows_their_names() -> None:
    assert "complete -o bashdefault -o default -F _openjev openjev" in BASH.read_text()
    assert from_bash("openjev ask -q ") == []
    assert from_bash("openjev check ") == []
