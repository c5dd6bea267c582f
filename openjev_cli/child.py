"""One llama-server process: spawn it detached, ask whether it is ready, end it, and say how it died.

Which server is wanted, and what is recorded about it, is for `server`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from openjev_cli import runtime
from openjev_cli.errors import ServerError
from openjev_cli.runtime import Process

if TYPE_CHECKING:
    import subprocess

_TAIL_BYTES = 64 << 10

# The shell waits for one line before it becomes llama-server. Whoever starts it records the pid first and
# sends the line then; if the starter is killed in between, the shell reads the end of the pipe and exits.
# So a server that nobody knows of can't exist. The pid stays the same over `exec`.
_WAIT_THEN_BECOME = 'IFS= read -r go && exec "$0" "$@" </dev/null'

# Children of this very process, so that a dead one can be reaped and its exit status known.
_children: dict[int, subprocess.Popen[bytes]] = {}


# How long a thread of llama-server spins at a barrier before it sleeps (libgomp; about 30 us). Its default
# burns a time slice whenever another process holds the core it waits for: beside two busy loops on two cores
# a request of four questions took 3.4 s by default and 2.3 s with this; on an idle machine 0.96 s and 0.95 s.
SPIN_COUNT = "10000"


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what would change the server behind our back: every LLAMA_ variable (options,
    API key, media marker) and the proxies; with a bounded spin unless the user set one."""
    return {"GOMP_SPINCOUNT": SPIN_COUNT} | {
        name: value
        for name, value in environ.items()
        if not name.startswith("LLAMA_") and not name.lower().endswith("_proxy")
    }


def spawn(
    program: Path,
    argv: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str],
    on_spawned: Callable[[Process], None],
) -> Process:
    """Start `program` in its own session, without inherited descriptors, its output in `log`, and return it.
    on_spawned is called with the process before the program itself begins; when it raises, nothing runs."""
    import subprocess

    class Detached(subprocess.Popen[bytes]):
        # The server outlives us on purpose, so no ResourceWarning about it.
        def __del__(self, _warn: object = None) -> None:
            pass

    for pid in [pid for pid, child in _children.items() if child.poll() is not None]:
        del _children[pid]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        child = Detached(
            ["/bin/sh", "-c", _WAIT_THEN_BECOME, os.fspath(program), *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            cwd="/",
            env=clean_environment(environ),
        )
    except OSError as exc:
        raise ServerError(
            f"can't start a process: {exc.strerror}", next_step="free memory or processes and run it again"
        ) from exc
    finally:
        os.close(output)
    _children[child.pid] = child
    assert child.stdin is not None
    try:
        process = runtime.identify(child.pid)
        if process is None:
            raise ServerError(
                f"{program} ended before it began", next_step=f"look at {log} and run the command again"
            )
        on_spawned(process)
        # It may have died meanwhile; the caller finds that out, with its exit status.
        with suppress(BrokenPipeError):
            child.stdin.write(b"go\n")
            child.stdin.flush()
    finally:
        with suppress(BrokenPipeError):
            child.stdin.close()
    return process


def exit_code(process: Process) -> int | None:
    """Return the exit status of a dead child of ours (negative: the signal), None when it isn't known."""
    child = _children.get(process.pid)
    if child is None:
        return None
    try:
        return child.wait(timeout=1.0)
    except Exception:  # subprocess.TimeoutExpired, without importing subprocess here
        return None


def describe_exit(code: int | None) -> str:
    """Return "exited with status 1", "was killed by SIGKILL ..." and the like."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = {
        "SIGKILL": " (the system does that when memory runs out)",
        "SIGILL": " (an instruction this CPU does not have)",
    }.get(name, "")
    return f"was killed by {name}{why}"


def tail(log: Path, lines: int = 20) -> tuple[str, ...]:
    """Return the last non-empty lines of a log, oldest first, with control characters shown as escapes."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    found = [line.rstrip() for line in text.split("\n") if line.strip()]
    return tuple(
        re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", line) for line in found[-lines:]
    )


_DECISIVE = (
    re.compile(
        r"out of memory|bad_alloc|(failed|unable) to allocate|cannot allocate|alloc_buffer.*failed"
        r"|resource temporarily unavailable",
        re.I,
    ),
    re.compile(
        r"unknown (model )?architecture|invalid magic|corrupt|not within the file bounds|mmproj", re.I
    ),
    re.compile(r"\berror\b|\bfailed\b|\bassert|invalid|unknown|cannot|couldn't|not found", re.I),
)


def decisive_line(lines: Sequence[str]) -> str | None:
    """Return the line that most likely says why a server died: the first about memory, else about the model,
    else any other error, else the last line. llama-server's time and level columns are removed."""
    for pattern in _DECISIVE:
        for line in lines:
            if pattern.search(line):
                return _bare(line)
    return _bare(lines[-1]) if lines else None


def _bare(line: str) -> str:
    return re.sub(r"^[\d.]+ [A-Z] ", "", line).strip()[:300]


def is_out_of_memory(code: int | None, line: str | None) -> bool:
    """True when a child died for want of memory."""
    return code == -signal.SIGKILL or bool(line and _DECISIVE[0].search(line))


def request(path: Path, process: Process, target: str, *, timeout_s: float) -> tuple[int, bytes]:
    """GET `target` over the verified socket: (status, body), or (0, b"") when no answer came in time.
    Raises runtime.Gone, runtime.NotOurs."""
    with runtime.connect(path, process, timeout_s=timeout_s) as connection:
        connection.settimeout(timeout_s)
        reply = b""
        try:
            connection.sendall(
                f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("ascii")
            )
            while block := connection.recv(1 << 16):
                reply += block
                if len(reply) > 1 << 24:
                    return 0, b""
        except OSError:
            if not reply:
                return 0, b""
    found = re.match(rb"HTTP/1\.[01] (\d{3})", reply)
    return (int(found[1]) if found else 0), reply.partition(b"\r\n\r\n")[2]


def terminate(process: Process, *, grace_s: float = 10.0) -> None:
    """End a process that was recorded as ours, and its group: TERM, wait, KILL, wait again. Nothing happens
    when the pid now belongs to another process. Raises ServerError when it outlives KILL by five seconds."""
    _signal(process, signal.SIGTERM)
    if runtime.is_suspended(process.pid):
        _signal(process, signal.SIGCONT)
    if _wait_dead(process, grace_s):
        return
    _signal(process, signal.SIGKILL)
    if not _wait_dead(process, 5.0):
        raise ServerError(
            f"llama-server (pid {process.pid}) does not end, even when killed",
            next_step=f"look at it with: ps -o stat,wchan -p {process.pid}",
        )


def _signal(process: Process, number: signal.Signals) -> None:
    if not runtime.is_alive(process):
        return
    try:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        pass


def _wait_dead(process: Process, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while runtime.is_alive(process):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    child = _children.pop(process.pid, None)
    if child is not None:
        child.wait()
    return True
