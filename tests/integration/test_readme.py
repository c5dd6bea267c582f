"""Both READMEs hold the same commands, and the commands do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command

READMES = ("README.md", "README.zh-CN.md")
# Need a network, a model that sees, minutes of building, or never end; each has tests of its own.
ELSEWHERE = (
    "scripts/",
    "openjev models pull",
    "openjev ask screenshot.png",
    "openjev serve",
    "openjev doctor",
)


def commands(name: str) -> list[str]:
    """Return the commands of a README, without their comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    shown = [line.strip() for line in lines if re.match(r" {4}(openjev|cat|scripts/)", line)]
    return [re.sub(r"\s+#.*", "", line) for line in shown]


def runnable() -> list[str]:
    """Return the commands that a test can run as they are."""
    return [line for line in dict.fromkeys(commands(READMES[0])) if not line.startswith(ELSEWHERE)]


def test_both_readmes_show_the_same_commands_in_the_same_order() -> None:
    assert commands(READMES[0]) == commands(READMES[1])
    assert len(commands(READMES[0])) > 12


@pytest.mark.parametrize("name", READMES)
def test_every_file_that_a_readme_links_to_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    linked = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in linked if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("line", runnable())
def test_a_command_of_the_readmes_runs(openjev: Command, tmp_path: Path, line: str) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "mail.txt").write_text("You have won a prize! Click here.\n")
    (tmp_path / "tickets.jsonl").write_text('{"body": "Refund me"}\n{"body": "How do I log in?"}\n')
    program = tmp_path / "bin" / "openjev"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m openjev_cli "$@"\n')
    program.chmod(0o755)
    environment = {**openjev.environment, "PATH": f"{program.parent}:{openjev.environment['PATH']}"}
    run = subprocess.run(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    # Verdicts: `is` says no, a gate holds, the random model of the tests does not meet an expectation.
    is_verdict = line.startswith(("openjev is", "openjev record")) or "--fail-if" in line
    assert run.returncode in ((0, 1) if is_verdict else (0,)), run.stderr.decode()
    assert run.stdout or "--where" in line
    assert b"error:" not in run.stderr
