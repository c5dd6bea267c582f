"""The server that is wanted (`Spec`), the one that runs (`Running`), and the files beside its socket.

Whether one is started, adopted or stopped is decided in `server`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openjev_cli import argv as argv_table
from openjev_cli import binary, runtime
from openjev_cli.errors import ModelError
from openjev_cli.runtime import Process

if TYPE_CHECKING:
    import socket as sockets

VERSION = 1
# The server appends; past this size its log is cut to nothing, so that a long life can't fill the disk.
MAX_LOG_BYTES = 8 << 20
# What the binary's `--help` named, beside the records.
OPTIONS_FILE = "options.json"
# llama-server closes a connection on which nothing was asked for 5 s (CPPHTTPLIB_KEEPALIVE_TIMEOUT_SECOND).
_HELD_CONNECTION_S = 2.0


def digest(text: str) -> str:
    """Return 16 hex digits that stand for `text`."""
    try:
        # hashlib loads OpenSSL, which costs 10 ms of every call.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Spec:
    """The server that is wanted. n_ctx: tokens of one request. keep_alive_s: idle seconds until it goes; None
    or a negative number = never. keep_alive_s, threads and what free memory decides are settled when a server
    starts and are not part of its key: a running one is used as it is."""

    binary: binary.Binary
    model: Path
    mmproj: Path | None = None
    adapter: Path | None = None
    n_ctx: int = 8192
    slots: int = argv_table.SLOTS
    keep_alive_s: int | None = 600

    def settings(self) -> argv_table.Settings:
        """The wanted settings, without what the machine decides. Paths are real ones, links resolved."""
        return argv_table.Settings(
            model=self.model.resolve(),
            mmproj=self.mmproj.resolve() if self.mmproj else None,
            adapter=self.adapter.resolve() if self.adapter else None,
            backend=self.binary.backend,
            n_ctx=self.n_ctx,
            slots=self.slots,
        )

    def key(self) -> str:
        """16 hex digits over the files (path, size, time of change), the build and the wanted argv.
        Raises ModelError when a file is missing."""
        files = [_identity(path) for path in (self.model, self.mmproj, self.adapter)]
        wanted = argv_table.build_argv(self.settings())
        return digest(json.dumps([VERSION, self.binary.identity, files, wanted]))


def _identity(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror}", next_step="openjev models list") from exc
    return f"{path.resolve()}:{found.st_size}:{found.st_mtime_ns}"


@dataclass(frozen=True)
class Files:
    """Where everything of one key lies: `<key>.json`, `.sock`, `.lock`, `.log`, `<key>.*.memory.json`."""

    folder: Path
    key: str

    @property
    def record(self) -> Path:
        """The record (`Record`)."""
        return self.folder / f"{self.key}.json"

    @property
    def socket(self) -> Path:
        """Where the server listens."""
        return self.folder / f"{self.key}.sock"

    @property
    def lock(self) -> Path:
        """Held by whoever starts or cleans up."""
        return self.folder / f"{self.key}.lock"

    @property
    def log(self) -> Path:
        """What the server writes."""
        return self.folder / f"{self.key}.log"

    def memory(self, process: Process) -> Path:
        """What was learnt about this very process; another one, even with the same pid, has another file."""
        return self.folder / f"{self.key}.{digest(f'{process.pid} {process.start_time}')}.memory.json"

    def remove(self, *, with_log: bool = False) -> None:
        """Delete what belongs to a dead server, except the lock, which the caller holds, and the log, which
        may say why it died."""
        kept = {self.lock.name} if with_log else {self.lock.name, self.log.name}
        for path in self.folder.iterdir():
            # A leading dot: what a writer that was killed left half written.
            if path.name.removeprefix(".").startswith(f"{self.key}.") and path.name not in kept:
                path.unlink(missing_ok=True)


def all_files(folder: Path) -> list[Files]:
    """Return every key of which something lies in the folder, in order."""
    names = {path.name.removeprefix(".").split(".")[0] for path in folder.iterdir()}
    return [
        Files(folder, name)
        for name in sorted(names)
        if len(name) == 16 and set(name) <= set("0123456789abcdef")
    ]


@dataclass(frozen=True)
class Record:
    """What `<key>.json` holds: who the process is, whether it got ready, and what it was started with."""

    process: Process
    is_ready: bool
    facts: Mapping[str, Any]


def read(files: Files) -> Record | None:
    """Return the record, or None: there is none, or it is damaged. One of another version counts: its key is
    another one too, so it is never used, but it can still be stopped."""
    try:
        facts = json.loads(files.record.read_bytes())
        if facts["key"] != files.key:
            return None
        process = Process(int(facts["pid"]), str(facts["start_time"]))
        return Record(process, facts["ready"] is True, facts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(files: Files, facts: Mapping[str, Any]) -> None:
    """Write the record. A reader sees the old one or the new one, never half of one."""
    partial = files.record.with_name(f".{files.record.name}.{os.getpid()}")
    partial.write_text(json.dumps(facts), encoding="utf-8")
    partial.replace(files.record)


@dataclass(frozen=True)
class Running:
    """A server of ours that is ready. was_started: this call waited for it. notices: what the user should see
    once, only when it was started by this call."""

    files: Files
    process: Process
    facts: Mapping[str, Any]
    was_started: bool = False
    notices: tuple[str, ...] = ()
    held: list[tuple[float, sockets.socket]] = field(default_factory=list, compare=False, repr=False)

    @property
    def key(self) -> str:
        """Names the server in `status` and in the folder."""
        return self.files.key

    @property
    def pid(self) -> int:
        """Process id; only together with `start_time` does it name a process."""
        return self.process.pid

    @property
    def start_time(self) -> str:
        """Opaque; compared for equality."""
        return self.process.start_time

    @property
    def socket(self) -> Path:
        """The Unix socket it listens on."""
        return self.files.socket

    @property
    def record_path(self) -> Path:
        """The record, JSON."""
        return self.files.record

    @property
    def memory_path(self) -> Path:
        """Where to keep what was learnt about this process. Deleted with the record, never another's."""
        return self.files.memory(self.process)

    @property
    def log_path(self) -> Path:
        """What the server wrote."""
        return self.files.log

    @property
    def n_ctx(self) -> int:
        """Tokens of one request; may be less than was wanted (then there was a notice)."""
        return int(self.facts["n_ctx"])

    @property
    def slots(self) -> int:
        """Questions read at once."""
        return int(self.facts["slots"])

    @property
    def argv(self) -> tuple[str, ...]:
        """The options it was started with, without the program."""
        return tuple(self.facts["argv"])

    @property
    def kind(self) -> str:
        """patched or stock."""
        return str(self.facts["kind"])

    def connect(self) -> sockets.socket:
        """Return a connection to this very server, proven before a byte is sent: our uid, the recorded pid
        with the recorded start time. Raises runtime.Gone (call `server.ensure` again) or its NotOurs."""
        for made_at_s, connection in self._take():
            if time.monotonic() - made_at_s < _HELD_CONNECTION_S:
                return connection
            connection.close()
        return runtime.connect(self.files.socket, self.process)

    def close(self) -> None:
        """Close the connection that proved the server, if nobody took it."""
        for _, connection in self._take():
            connection.close()

    def _take(self) -> Iterator[tuple[float, sockets.socket]]:
        while self.held:
            yield self.held.pop()
