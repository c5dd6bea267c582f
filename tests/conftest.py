"""Fixtures of all tests: an isolated home, the real llama-server, real models, the command itself.

Nothing of the user's is read or written, except that builds and downloaded models are taken from the real
cache folder. The integration tests share one runtime folder, so that servers are shared as a user's are; what
still runs there at the end is stopped, and a test fails if it left anything else running.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from openjev_cli import config, models, server

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(__file__).resolve().parent / "cases"
REAL_CACHE = config.load({}, env=os.environ, cwd=Path("/")).cache_dir
REAL_LLAMA_SERVER = os.environ.get("OPENJEV_LLAMA_SERVER") or ""
NO_SKIP = os.environ.get("OPENJEV_TEST_NO_SKIP") == "1"
_ENVIRONMENT = dict(os.environ)

# A shell's background job ignores Ctrl-C, and so would every child that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _missing(what: str) -> None:
    reason = f"{what} is missing; run: scripts/build-llama.sh"
    if NO_SKIP:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point home, cache, config and runtime folders at the test's own; no setting of the user gets in."""
    for name in list(os.environ):
        if name.startswith(("OPENJEV_", "XDG_", "LLAMA_ARG_")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """The llama-server under test: OPENJEV_LLAMA_SERVER, else the build in the cache folder."""
    path = Path(REAL_LLAMA_SERVER or REAL_CACHE / "llama" / "current" / "llama-server")
    if not path.is_file():
        _missing(str(path))
    return path.resolve()


@pytest.fixture(scope="session")
def stock_server() -> Path:
    """The stock llama-server that `build-llama.sh --stock` leaves beside the patched one."""
    path = REAL_CACHE / "llama" / "stock" / "llama-server"
    if not path.is_file():
        _missing(str(path))
    return path.resolve()


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for generated models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_hybrid(generated: Path) -> Path:
    """The tiny random hybrid model, plain."""
    path = generated / "tiny-hybrid.gguf"
    subprocess.run([sys.executable, ROOT / "scripts/generate_model.py", path], check=True, cwd=ROOT)
    return path


@pytest.fixture(scope="session")
def tiny_projector(generated: Path) -> Path:
    """The tiny random projector that lets the tiny hybrid see."""
    path = generated / "tiny-projector.gguf"
    subprocess.run([sys.executable, ROOT / "scripts/generate_projector.py", path], check=True, cwd=ROOT)
    return path


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The weights of profile `tiny`, fetched into the real cache folder if they are not there."""
    environment = {k: v for k, v in _ENVIRONMENT.items() if not k.startswith("OPENJEV_")}
    environment["OPENJEV_CACHE_DIR"] = str(REAL_CACHE)
    settings = config.load({"profile": "tiny"}, env=environment, cwd=Path("/"))
    return models.resolve(settings).path


@pytest.fixture(scope="session")
def runtime_dir() -> Iterator[Path]:
    """One short runtime folder for the whole run; its servers are stopped at the end."""
    path = Path(tempfile.mkdtemp(prefix="ojt-", dir="/tmp"))
    yield path
    server.stop(environ={"XDG_RUNTIME_DIR": str(path)})
    left = [found for found in path.rglob("*") if not found.is_dir()]
    shutil.rmtree(path, ignore_errors=True)
    leftover = [name for name in left if name.suffix != ".log"]
    assert leftover == [], "the servers of the run left files behind"


@dataclass(frozen=True)
class Command:
    """Runs the real command in a process of its own."""

    environment: Mapping[str, str]
    cwd: Path

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Return stdout, stderr (bytes) and the exit code. stdin: what is piped in; None = /dev/null."""
        return subprocess.run(
            self.argv(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env={**self.environment, **(env or {})},
            cwd=self.cwd,
            timeout=timeout_s,
            check=False,
        )

    def argv(self, *arguments: str | Path) -> Sequence[str]:
        """The command line of a call."""
        return [sys.executable, "-m", "openjev_cli", *(str(argument) for argument in arguments)]


@pytest.fixture
def offline(tmp_path: Path) -> Command:
    """The command with nothing installed: for everything that must be refused before an engine is needed."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "OPENJEV_LLAMA_SERVER": "/nonexistent/llama-server",
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    return Command(environment, tmp_path)


@pytest.fixture
def openjev(tmp_path: Path, llama_server: Path, tiny_hybrid: Path, runtime_dir: Path) -> Command:
    """The command on the real engine, asking the tiny hybrid unless `--model` or a profile is given."""
    (tmp_path / "config" / "openjev").mkdir(parents=True)
    (tmp_path / "config" / "openjev" / "config.toml").write_text(f'model = "{tiny_hybrid}"\n')
    environment = {
        "PATH": _ENVIRONMENT.get("PATH", "/usr/bin:/bin"),
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(runtime_dir),
        "OPENJEV_LLAMA_SERVER": str(llama_server),
        "OPENJEV_CACHE_DIR": str(tmp_path / "cache"),
    }
    return Command(environment, tmp_path)
