"""Which llama-server is used, and what it can do. Nothing is started here except `--help`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openjev_cli.errors import ServerError

# The first release whose options and replies openjev relies on.
OLDEST_RELEASE = "b9670"


@dataclass(frozen=True)
class Binary:
    """A llama-server. kind: "patched" (built by scripts/build-llama.sh) or "stock" (any other).
    build: the key of the build, "" when unknown. abilities: options its patches add: "exit_idle" or none.
    backend: "cpu", "cuda", "metal" or "vulkan". notice: one line to show once per start, or None."""

    path: Path
    kind: str
    build: str = ""
    release: str = ""
    abilities: frozenset[str] = field(default=frozenset())
    backend: str = "cpu"
    notice: str | None = None

    @property
    def identity(self) -> str:
        """Path, size, time of change and build: another one is another program."""
        found = self.path.stat()
        return f"{self.path}:{found.st_size}:{found.st_mtime_ns}:{self.build}"


def find_binary(explicit: Path | None, cache_dir: Path | None, environ: Mapping[str, str]) -> Binary:
    """Return the llama-server to use: `explicit` (OPENJEV_LLAMA_SERVER), else the build of
    scripts/build-llama.sh under `cache_dir` (None: no such folder), else the one on PATH (as stock, with a
    notice).

    Raises ServerError when there is none, or when `explicit` can't be run: a named program is never replaced
    by another one."""
    if explicit is not None:
        if not _is_program(explicit):
            raise ServerError(
                f"OPENJEV_LLAMA_SERVER: {explicit} is not an executable file",
                next_step="set it to a llama-server, or unset it and run scripts/build-llama.sh",
            )
        return _describe(explicit.resolve())
    built = cache_dir / "llama" / "current" / "llama-server" if cache_dir else None
    if built is not None and _is_program(built):
        return _describe(built.resolve())
    for directory in environ.get("PATH", "").split(os.pathsep):
        # A relative PATH entry would make the choice depend on the current folder.
        candidate = Path(directory) / "llama-server"
        if directory.startswith("/") and _is_program(candidate):
            return _on_path(candidate.resolve())
    raise ServerError(
        f"llama-server not found (looked {f'in {built} and ' if built else ''}on PATH)",
        next_step="run scripts/build-llama.sh, or set OPENJEV_LLAMA_SERVER to a llama-server",
    )


def _is_program(path: Path) -> bool:
    # Not Path.is_file: that raises for a folder of PATH that this user may not enter.
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def _on_path(path: Path) -> Binary:
    found = _describe(path)
    notice = f"using {path} from PATH as a stock llama-server; scripts/build-llama.sh builds the faster one"
    return Binary(path, found.kind, found.build, found.release, found.abilities, found.backend, notice=notice)


def _describe(path: Path) -> Binary:
    try:
        facts: Any = json.loads((path.parent / "build.json").read_bytes())
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        return Binary(path, "stock")
    patches = facts.get("patches")
    names = [str(name) for name in patches] if isinstance(patches, list) else []
    return Binary(
        path,
        "patched" if facts.get("kind") == "patched" else "stock",
        build=str(facts.get("key", "")),
        release=str(facts.get("llama_cpp", "")),
        abilities=frozenset({"exit_idle"} if any("exit-when-idle" in name for name in names) else ()),
        backend=str(facts.get("backend") or "cpu").lower(),
    )


def options_of(binary: Binary, memo: Path) -> frozenset[str]:
    """Return every option `--help` names, read once per binary and remembered in the file `memo`.
    Raises ServerError when the program does not run, or does not look like llama-server."""
    import re
    import subprocess

    remembered = _read_memo(memo)
    identity = binary.identity
    if identity in remembered:
        return frozenset(remembered[identity])
    try:
        shown = subprocess.run(
            [binary.path, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise ServerError(
            f"{binary.path} does not run: {exc}",
            next_step="run scripts/build-llama.sh, or set OPENJEV_LLAMA_SERVER to a llama-server",
        ) from exc
    text = shown.stdout.decode("utf-8", "replace")
    options = frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    if "--ctx-size" not in options:
        tail = tuple(text.strip().splitlines()[-5:])
        raise ServerError(
            f"{binary.path} is not a llama-server: `--help` ended with status {shown.returncode}"
            + (f" and {tail[-1]!r}" if tail else ""),
            next_step="run scripts/build-llama.sh, or set OPENJEV_LLAMA_SERVER to a llama-server",
            log_tail=tail,
        )
    # Only the newest binary is kept: the file can't grow.
    temporary = memo.with_name(f".{memo.name}.{os.getpid()}")
    temporary.write_text(json.dumps({identity: sorted(options)}))
    temporary.replace(memo)
    return options


def _read_memo(memo: Path) -> dict[str, list[str]]:
    try:
        read = json.loads(memo.read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
