"""Sockets that a service listens on, and who holds a port that is not free."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openjev_cli import errors

# sockaddr_un.sun_path holds 108 bytes on Linux, 104 on macOS, one of them the NUL at the end.
MAX_SOCKET_PATH_BYTES = 103
# Connections that wait to be accepted; the kernel may take fewer (net.core.somaxconn).
BACKLOG = 2048


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address of this name."""
    return host in ("localhost", "::1") or host.startswith("127.")


def tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host:port (port 0: any free one). Raises InputError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as exc:  # UnicodeError: a name with an empty or too long part
        raise errors.InputError(
            f"--host {host}: no address of this machine", next_step="use 127.0.0.1, or 0.0.0.0 for all"
        ) from exc
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Until it listens another process could bind the same port, thanks to SO_REUSEADDR.
        bound.listen(BACKLOG)
    except OSError as exc:
        bound.close()
        raise _refused(host, port, exc) from exc
    return bound


def _refused(host: str, port: int, exc: OSError) -> errors.InputError:
    if exc.errno == errno.EADDRINUSE:
        holder = holder_of(port)
        by = f" by {holder}" if holder else ""
        ask = "" if holder else f"; `ss -ltnp 'sport = :{port}'` or `lsof -i :{port}` says who has it"
        return errors.InputError(
            f"port {port} on {host} is in use{by}", next_step=f"choose another with --port{ask}"
        )
    if exc.errno == errno.EACCES:
        return errors.InputError(
            f"port {port} needs more rights than you have", next_step="choose one of 1024 or more with --port"
        )
    return errors.InputError(
        f"cannot listen on {host} port {port}: {exc.strerror}", next_step="choose another --host or --port"
    )


def holder_of(port: int) -> str | None:
    """Return `pid 123 (name)` of whoever listens on a TCP port of this machine, or None if it cannot be told
    (no /proc, or another user's process)."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return f"pid {process.name} ({(process / 'comm').read_text().strip()})"
    return None


def _listening_inodes(port: int) -> set[str]:
    # Columns of /proc/net/tcp: number, local address, remote address, state (0A: listening), ..., inode.
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{columns[9]}]")
    return found


def unix(path: Path) -> socket.socket:
    """Return a socket that listens on `path` and is open to this user only. Raises InputError.

    A socket that nobody listens on any more is replaced; anything else that is there is left alone.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise errors.InputError(
            f"--socket {path}: longer than {MAX_SOCKET_PATH_BYTES} bytes", next_step="choose a shorter path"
        )
    with _alone_in(path.parent):
        _clear(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
            # A socket that does not listen looks like one that was left behind.
            bound.listen(BACKLOG)
        except OSError as exc:
            bound.close()
            raise errors.InputError(
                f"--socket {path}: {exc.strerror}", next_step="choose a path in a folder that you may write"
            ) from exc
        finally:
            os.umask(before)
    return bound


def identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file at `path` from another one that takes its place, None if there is none. The number
    of its inode is not enough: file systems give it to the next file at once."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove(path: Path, own: tuple[int, ...] | None) -> None:
    """Remove the socket at `path` unless another process has put its own there meanwhile. own: its `identity`."""
    with _alone_in(path.parent):
        if own is not None and identity(path) == own:
            with suppress(OSError):
                path.unlink()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time look at a socket in `folder` and replace it."""
    import fcntl

    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _clear(path: Path) -> None:
    """Remove a dead socket. Raises InputError for a live one and for what is no socket."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise errors.InputError(
            f"--socket {path}: something else is there", next_step="choose another path, or remove it"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                path.unlink()
            return
        except OSError:
            pass
    raise errors.InputError(
        f"--socket {path}: in use by another process",
        next_step=f"choose another path, or ask who has it: lsof {path}",
    )
