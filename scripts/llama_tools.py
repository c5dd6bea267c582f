"""What a build needs from the machine: compiler, cmake, ninja, pip, a backend; and a way to show progress."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CMAKE_MIN = (3, 19)  # cmake_language(DEFER), used by unity.cmake
NINJA_MIN = (1, 8)
TOOL_WHEELS = ["cmake>=3.28,<5", "ninja>=1.11"]
JOB_BYTES = 1_500_000_000  # what the largest compilation takes at its peak
PROGRESS_EVERY_S = 5.0


class BuildError(Exception):
    """What stopped the build, in one line, and what to do about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True)
class Compiler:
    """A C and a C++ compiler that belong together."""

    cc: str
    cxx: str
    version: str
    cpu_flags: tuple[str, ...]  # macros it defines only when it compiles for this very CPU

    @property
    def has_amx(self) -> bool:
        return "__AMX_INT8__" in self.cpu_flags

    @property
    def has_avx2(self) -> bool:
        return "__AVX2__" in self.cpu_flags


class Progress:
    """Shows how far a step is: rewriting one line on a terminal, else a line every few seconds."""

    def __init__(self, out: IO[str], *, is_terminal: bool) -> None:
        self.out = out
        self.is_terminal = is_terminal
        self.shown_at = 0.0
        self.open_line = False

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self.close()
        print(text, file=self.out, flush=True)

    def update(self, text: str, now: float) -> None:
        """Show a passing state; between two of them some time must pass when each one is a line."""
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self.out.write(f"\r\033[K{text[:width]}")
            self.out.flush()
            self.open_line = True
        elif now - self.shown_at >= PROGRESS_EVERY_S:
            self.shown_at = now
            print(text, file=self.out, flush=True)

    def close(self) -> None:
        if self.open_line:
            self.out.write("\r\033[K")
            self.out.flush()
            self.open_line = False


def run(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result with its output as text, both streams in `stdout`."""
    return subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False, **more,
    )  # fmt: skip


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """Return the compiler to use: CXX and CC, else the first that is there. Raises BuildError."""
    pairs = [("c++", "cc"), ("g++", "gcc"), ("clang++", "clang")]
    if environ.get("CXX"):
        pairs = [(environ["CXX"], environ.get("CC") or matching_c(environ["CXX"]))]
    for cxx, cc in pairs:
        found_cxx, found_cc = shutil.which(cxx), shutil.which(cc)
        if found_cxx and found_cc:
            plain, native = macros(found_cxx, []), macros(found_cxx, native_flag())
            version = run([found_cxx, "--version"]).stdout.splitlines()[:1]
            if plain and version:
                return Compiler(found_cc, found_cxx, version[0].strip(), tuple(sorted(native - plain)))
    looked = ", ".join(cxx for cxx, _ in pairs)
    install = "xcode-select --install" if sys.platform == "darwin" else "apt install g++"
    raise BuildError(
        f"no working C++ compiler found (looked for {looked})", f"install one, for example: {install}"
    )


def matching_c(cxx: str) -> str:
    """Return the C compiler that belongs to a C++ one: g++-12 gives gcc-12."""
    path = Path(cxx)
    for ending, replacement in (("clang++", "clang"), ("g++", "gcc"), ("c++", "cc")):
        if ending in path.name:
            return str(path.with_name(path.name.replace(ending, replacement)))
    return "cc"


def native_flag() -> list[str]:
    return ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else ["-mcpu=native"]


def macros(cxx: str, flags: list[str]) -> set[str]:
    """Return the names of the macros a compiler defines by itself; empty when it does not run."""
    result = run([cxx, *flags, "-dM", "-E", "-x", "c++", os.devnull])
    if result.returncode != 0:
        return set()
    return {parts[1] for line in result.stdout.splitlines() if len(parts := line.split()) > 1}


def pick_backend(environ: Mapping[str, str]) -> str:
    """Return the backend for what is there: a GPU only when both its tools and a device are found."""
    if sys.platform == "darwin":
        return "metal" if platform.machine() == "arm64" else "cpu"
    path = environ.get("PATH")

    def works(*command: str) -> bool:
        return shutil.which(command[0], path=path) is not None and run(command).returncode == 0

    if works("nvcc", "--version") and works("nvidia-smi", "-L"):
        return "cuda"
    if works("glslc", "--version") and works("vulkaninfo", "--summary"):
        return "vulkan"
    return "cpu"


def job_count() -> int:
    """Return how many compilations may run at once: as many as CPUs, as far as memory goes."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if found:
            cpus = min(cpus, int(found.group(1)) * 1024 // JOB_BYTES)
    except OSError:
        pass
    return max(1, cpus)


def find_pip(root: Path) -> list[str | Path]:
    """Return the command that runs pip: this Python's, uv's, or that of a private environment."""
    own: list[str | Path] = [sys.executable, "-m", "pip"]
    if run([*own, "--version"]).returncode == 0:
        return own
    uv = shutil.which("uv")
    if uv:
        return [uv, "tool", "run", "pip"]
    return [private_venv(root) / "bin" / "python", "-m", "pip"]


def private_venv(root: Path) -> Path:
    """Return a virtual environment of our own inside the cache, made when it is not there."""
    venv = root / "tools"
    if (venv / "bin" / "pip").exists():
        return venv
    result = run([sys.executable, "-m", "venv", "--clear", venv])
    if result.returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise BuildError(
            "no virtual environment could be made (python3 -m venv fails)",
            "install the venv module, for example: apt install python3-venv (or install cmake and ninja)",
        )
    return venv


def find_tools(root: Path, progress: Progress) -> tuple[str, str]:
    """Return paths of a CMake and a Ninja that are new enough: the machine's, else wheels in the cache."""
    cmake, ninja = new_enough("cmake", CMAKE_MIN), new_enough("ninja", NINJA_MIN)
    if cmake and ninja:
        return cmake, ninja
    venv = private_venv(root)
    private = (str(venv / "bin" / "cmake"), str(venv / "bin" / "ninja"))
    if new_enough(private[0], CMAKE_MIN) and new_enough(private[1], NINJA_MIN):
        return private
    progress.note("fetching cmake and ninja")
    result = run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOL_WHEELS])
    if result.returncode != 0:
        raise BuildError(
            f"cmake and ninja are missing and could not be fetched: {pip_fault(result.stdout)}",
            "check the network, or install them, for example: apt install cmake ninja-build",
        )
    return private


def new_enough(name: str, minimum: tuple[int, ...]) -> str | None:
    """Return the path of a tool that runs and has at least this version."""
    path = shutil.which(name)
    if not path:
        return None
    result = run([path, "--version"])
    return path if result.returncode == 0 and version_of(result.stdout) >= minimum else None


def pip_fault(output: str) -> str:
    """Return the line of pip's output that names the fault."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith("ERROR") or "error" in line.lower()]
    return (faults or lines or ["no output"])[-1][:300]


def version_of(text: str) -> tuple[int, ...]:
    """Return the first dotted number in a text: "cmake version 3.25.1" gives (3, 25, 1)."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def first_fault(output: Sequence[str]) -> str:
    """Return the line of a compiler's or CMake's output that says what went wrong."""
    for line in output:
        if re.search(r"No space left on device|(fatal )?error:|CMake Error|Killed|undefined reference", line):
            return line.strip()[:300]
    return output[-1].strip()[:300] if output else "no output"
