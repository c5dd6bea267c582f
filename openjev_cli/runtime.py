"""The private folder of sockets and records, who a process is, and locks on files.

Everything here is about *proof*: a folder that is ours alone, a process that is the one that was recorded, a
peer of a socket that is that process. What is started, stopped and recorded is decided in `server`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openjev_cli.errors import ServerError

# sockaddr_un.sun_path: 108 bytes with its NUL on Linux, 104 on macOS and the BSDs.
MAX_SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
_LONGEST_NAME = "0123456789abcdef.sock"


class Gone(ServerError):
    """The recorded server can't be reached: dead, stopped, or its socket is gone. Call `ensure` again."""


class NotOurs(Gone):
    """Something else listens on the socket. Nothing was sent to it, and it is never killed."""


@dataclass(frozen=True)
class Process:
    """One process, named so that a reused pid is another one. start_time: opaque, compared for equality."""

    pid: int
    start_time: str


def folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of sockets and records, made on first use: ours, mode 0700, no link, and short enough
    for a socket path. `$XDG_RUNTIME_DIR/openjev` when that is set, absolute and usable, else
    `openjev-<uid>` in `$TMPDIR` or /tmp. Raises ServerError when no candidate can be trusted."""
    problems: list[str] = []
    for candidate in _candidates(environ):
        problem = _claim(candidate)
        if problem is None:
            return candidate
        problems.append(problem)
    raise ServerError(
        f"no private folder for the server's socket: {'; '.join(problems)}",
        next_step="set XDG_RUNTIME_DIR to a short absolute path of a folder that only you can write to",
    )


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    # XDG base directory specification: an empty value counts as unset, a relative one is ignored.
    found = []
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.path.isdir(runtime):  # noqa: PTH112  never raises
        found.append(Path(runtime) / "openjev")
    name = f"openjev-{os.getuid()}"
    temporary = environ.get("TMPDIR", "")
    if temporary.startswith("/"):
        found.append(Path(temporary) / name)
    found.append(Path("/tmp") / name)
    return list(dict.fromkeys(found))


def _claim(path: Path) -> str | None:
    """Make `path` or check the one that is there; return why it can't be used, or None."""
    if len(os.fsencode(path / _LONGEST_NAME)) > MAX_SOCKET_PATH_BYTES:
        return f"{path} is too long for a socket path ({MAX_SOCKET_PATH_BYTES} bytes)"
    try:
        # mkdir is exclusive: what another user planted is never taken over, a link is never followed.
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    try:
        found = path.lstat()
    except OSError as exc:
        return f"{path}: {exc.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a folder"
    if found.st_uid != os.getuid():
        return f"{path} belongs to uid {found.st_uid}, not to you"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"{path} can be entered by others (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 it"
    return None


def identify(pid: int) -> Process | None:
    """Return the process of ours that has this pid now, or None: none, a zombie, or not our uid."""
    if sys.platform == "darwin":
        return _identify_darwin(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  read on every call: no Path object
            # The second field is the command in parentheses and may hold anything, so count from its end.
            fields = file.read().rpartition(b")")[2].split()
            uid = os.fstat(file.fileno()).st_uid
    except OSError:
        return None
    if fields[0] in (b"Z", b"X") or uid != os.getuid():
        return None
    # Ticks since boot repeat after a reboot, and a temporary folder may outlive one.
    return Process(pid, f"{fields[19].decode()}@{_boot_id()}")


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def _identify_darwin(pid: int) -> Process | None:
    import ctypes

    # struct proc_bsdinfo of <sys/proc_info.h>: 136 bytes; pbi_status at 4, pbi_uid at 20, start time at 120.
    info = ctypes.create_string_buffer(136)
    library = ctypes.CDLL("/usr/lib/libproc.dylib", use_errno=True)
    if library.proc_pidinfo(pid, 3, ctypes.c_uint64(0), info, 136) != 136:
        return None
    status, uid = struct.unpack_from("=I", info, 4)[0], struct.unpack_from("=I", info, 20)[0]
    zombie = 5
    if status == zombie or uid != os.getuid():
        return None
    seconds, micros = struct.unpack_from("=QQ", info, 120)
    return Process(pid, f"{seconds}.{micros:06d}")


def is_alive(process: Process) -> bool:
    """True while exactly this process runs under our uid (not merely one with its pid)."""
    return identify(process.pid) == process


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process that listens at the other end of a Unix socket, as the kernel knows
    it. Nothing is sent. Raises OSError where the kernel does not say."""
    if sys.platform == "darwin":
        # <sys/un.h>: SOL_LOCAL 0, LOCAL_PEERCRED 1 gives struct xucred (version, uid, ...), LOCAL_PEERPID 2.
        _, uid = struct.unpack_from("=II", connection.getsockopt(0, 1, 76))
        (pid,) = struct.unpack("=i", connection.getsockopt(0, 2, 4))
        return pid, uid
    pid, uid, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def connect(path: Path, process: Process, *, timeout_s: float = 60.0) -> socket.socket:
    """Return a connection to the Unix socket at `path` whose other end is proven to be `process` under our
    uid, before a byte is sent. timeout_s bounds the wait for a place in the backlog; the socket that comes
    back has no timeout. Raises Gone, or NotOurs."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    again = "run the command again: it starts a new server"
    try:
        # SO_SNDTIMEO, because a socket with a Python timeout fails at once when the backlog is full.
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(os.fspath(path))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        pid, uid = peer(connection)
    except BlockingIOError as exc:
        connection.close()
        raise Gone(
            f"llama-server (pid {process.pid}) accepted no connection for {timeout_s:.0f} s",
            next_step="openjev server status; openjev server stop",
        ) from exc
    except OSError as exc:
        connection.close()
        raise Gone(f"{path}: {exc.strerror}", next_step=again) from exc
    if uid != os.getuid() or pid != process.pid or not is_alive(process):
        connection.close()
        raise NotOurs(
            f"{path}: pid {pid} (uid {uid}) listens there, not the recorded server", next_step=again
        )
    return connection


def cpu_ticks(pid: int) -> int:
    """Return user + system time used by the process in clock ticks; 0 where it can't be read."""
    fields = _stat_fields(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def is_suspended(pid: int) -> bool:
    """True when the process was stopped by a signal (SIGSTOP, Ctrl-Z) and waits for SIGCONT."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] in (b"T", b"t")


def resident_bytes(pid: int) -> int | None:
    """Return the memory the process holds now, in bytes; None where the system does not say."""
    fields = _stat_fields(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else None


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state (field 3 of proc(5)) on; empty where there are none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def connections(path: Path) -> int | None:
    """Return how many clients are connected to the listening socket at `path`, or wait to be; None where the
    system does not list them."""
    try:
        lines = Path("/proc/net/unix").read_bytes().splitlines()[1:]
    except OSError:
        return None
    # State 01 is the listener itself; 02 waits to be accepted, 03 is connected (enum socket_state + 1).
    name, listening = os.fsencode(path), b"01"
    return sum(1 for line in lines if (f := line.split(None, 7))[-1] == name and f[5] != listening)


class Lock:
    """An exclusive flock on a file that may be deleted by its holder; released when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; never waits."""
        import fcntl

        while True:
            # O_CLOEXEC is Python's default: a started server must not keep the lock of its starter.
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return False
            # The holder may have deleted the file between open and flock: then this lock guards nothing.
            try:
                current = self.path.stat()
            except FileNotFoundError:
                current = None
            if current is not None and current.st_ino == os.fstat(fd).st_ino:
                self._fd = fd
                return True
            os.close(fd)

    def release(self, *, delete: bool = False) -> None:
        """Give the lock up; `delete` removes the file first, while it is still held."""
        if self._fd < 0:
            return
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1
