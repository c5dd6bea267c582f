"""The life of the managed llama-server: find the recorded one or start one under a lock, stop it, report it.

One server per key. What is asked of it is not known here; what lies beside its socket is in `record`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openjev_cli import binary, record, runtime
from openjev_cli.errors import ServerError
from openjev_cli.record import Files, Record, Running, Spec
from openjev_cli.runtime import Gone, NotOurs

if TYPE_CHECKING:
    from openjev_cli import launch
    from openjev_cli.config import Config
    from openjev_cli.models import Model

__all__ = [
    "Gone",
    "NotOurs",
    "Running",
    "Spec",
    "Status",
    "ensure",
    "find",
    "newest_log",
    "program_for",
    "spec_for",
    "status",
    "stop",
]


def program_for(settings: Config, environ: Mapping[str, str]) -> binary.Binary:
    """Return the llama-server these settings name. Raises ServerError without one; ask for it before a model,
    which may have to be fetched."""
    return binary.find_binary(settings.llama_server, settings.known_cache_dir, environ)


def spec_for(settings: Config, model: Model, program: binary.Binary) -> Spec:
    """Return the server that these settings and this model want."""
    return Spec(
        program,
        model.path,
        mmproj=model.mmproj,
        adapter=model.readout.adapter.path if model.readout.adapter else None,
        n_ctx=model.n_ctx,
        keep_alive_s=settings.keep_alive_s,
    )


def find(spec: Spec, environ: Mapping[str, str]) -> Running | None:
    """Return the ready server of this spec, proven ours, or None. Never starts or waits."""
    return _find(Files(runtime.folder(environ), spec.key()))


def _find(files: Files) -> Running | None:
    recorded = record.read(files)
    if recorded is None or not recorded.is_ready:
        return None
    try:
        connection = runtime.connect(files.socket, recorded.process)
    except Gone:
        return None
    with suppress(OSError):
        os.utime(files.record)  # when it was last used: the longest unused is stopped first
        if files.log.stat().st_size > record.MAX_LOG_BYTES:
            os.truncate(files.log, 0)
    return Running(files, recorded.process, recorded.facts, held=[(time.monotonic(), connection)])


def ensure(
    spec: Spec,
    *,
    environ: Mapping[str, str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    patience: launch.Patience | None = None,
) -> Running:
    """Return the running server of this spec; start it when there is none, and wait until it is ready.

    Several callers at once start one. A server whose starter died is waited for, a dead one is cleaned up.
    on_progress: called about every two seconds while waiting. Raises ServerError (with the last lines of the
    log) when it dies or gives no sign of life, ModelError when a file is missing."""
    environ = os.environ if environ is None else environ
    files = Files(runtime.folder(environ), spec.key())
    found = _find(files)
    if found is not None:
        return found
    # From here on nothing is fast anyway: only a call that starts or waits loads what that takes.
    from openjev_cli import launch

    patience = patience or launch.Patience()
    report = launch.Reporter(on_progress, patience.report_s)
    with _translated(), _start_lock(files, report, patience) as other:
        if other is not None:
            return other
        return (
            _find(files)
            or launch.adopt(files, report, patience)
            or launch.start(spec, files, environ, report, patience)
        )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ServerError(
            f"{exc.filename or 'the runtime folder'}: {exc.strerror or exc}",
            next_step="free space there, or set XDG_RUNTIME_DIR to another folder that only you can write to",
        ) from exc


@contextmanager
def _start_lock(files: Files, report: launch.Reporter, patience: launch.Patience) -> Iterator[Running | None]:
    """Hold the start lock, or give the server that another holder made ready meanwhile."""
    from openjev_cli import launch

    lock = runtime.Lock(files.lock)
    changed_at_s, seen = time.monotonic(), None
    while not lock.try_acquire():
        report.waiting("waiting for the llama-server that another openjev starts")
        time.sleep(0.05)
        # A holder that was itself stopped (Ctrl-Z) must not block anybody once its server is ready.
        found = _find(files) or launch.ready_now(files)
        if found is not None:
            yield replace(found, was_started=True, notices=tuple(found.facts["notices"]))
            return
        signs = launch.signs(files, record.read(files))
        if signs != seen:
            changed_at_s, seen = time.monotonic(), signs
        if time.monotonic() - changed_at_s > patience.loading_s:
            raise ServerError(
                f"another openjev has held {files.lock} for {patience.loading_s:.0f} s without progress",
                next_step="openjev server stop",
            )
    try:
        yield None
    finally:
        # Without a record there is nothing left to guard, and a lock file would be litter.
        lock.release(delete=not files.record.exists())


def stop(key: str | None = None, *, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Stop the server with this key, or all of ours, and delete everything beside it. Returns the pids that
    were ended. Never touches a process that is not the recorded one. Raises ServerError when one survives."""
    folder = runtime.folder(os.environ if environ is None else environ)
    chosen = [files for files in record.all_files(folder) if key is None or files.key == key]
    with _translated():
        ended = tuple(pid for files in chosen if (pid := _stop(files)) is not None)
        if key is None:
            (folder / record.OPTIONS_FILE).unlink(missing_ok=True)
    return ended


def _stop(files: Files, *, wait_s: float = 10.0) -> int | None:
    from openjev_cli import child

    recorded = record.read(files)
    ended = None
    if recorded is not None and runtime.is_alive(recorded.process):
        # Without the lock: a starter that waits for this server holds it, and sees its end at once.
        child.terminate(recorded.process)
        ended = recorded.process.pid
    lock = runtime.Lock(files.lock)
    deadline_s = time.monotonic() + wait_s
    while not lock.try_acquire():
        if time.monotonic() > deadline_s:
            return ended
        time.sleep(0.02)
    now = record.read(files)
    if now is not None and runtime.is_alive(now.process):
        lock.release()  # somebody wanted it again meanwhile
        return ended
    files.remove(with_log=True)
    lock.release(delete=True)
    return ended


@dataclass(frozen=True)
class Status:
    """One server of ours. state: "ready", "loading", "sleeping" (model unloaded), "suspended" (SIGSTOP) or
    "not answering". when_idle: what happens after keep_alive_s, in words. memory_bytes: resident now."""

    key: str
    pid: int
    state: str
    model: str
    mmproj: str | None
    binary: str
    kind: str
    n_ctx: int
    slots: int
    checkpoints: int
    cache_ram_mib: int
    when_idle: str
    memory_bytes: int | None
    started_at_s: float
    socket: Path
    log: Path


def status(*, environ: Mapping[str, str] | None = None) -> list[Status]:
    """Return every server of ours that lives, without keeping one awake. Deletes what dead ones left."""
    folder = runtime.folder(os.environ if environ is None else environ)
    found = []
    for files in record.all_files(folder):
        recorded = record.read(files)
        if recorded is not None and runtime.is_alive(recorded.process):
            found.append(_status(files, recorded))
        else:
            _sweep(files)
    return found


def _sweep(files: Files) -> None:
    lock = runtime.Lock(files.lock)
    if not lock.try_acquire():
        return
    recorded = record.read(files)
    if recorded is not None and runtime.is_alive(recorded.process):
        lock.release()
        return
    files.remove()
    lock.release(delete=True)


def _status(files: Files, recorded: Record) -> Status:
    facts = recorded.facts
    return Status(
        key=files.key,
        pid=recorded.process.pid,
        state=_state(files, recorded),
        model=str(facts["model"]),
        mmproj=facts["mmproj"],
        binary=str(facts["binary"]),
        kind=str(facts["kind"]),
        n_ctx=int(facts["n_ctx"]),
        slots=int(facts["slots"]),
        checkpoints=int(facts["checkpoints"]),
        cache_ram_mib=int(facts["cache_ram_mib"]),
        when_idle=_when_idle(str(facts["idle"]), facts["keep_alive_s"]),
        memory_bytes=runtime.resident_bytes(recorded.process.pid),
        started_at_s=float(facts["started_at"]),
        socket=files.socket,
        log=files.log,
    )


def _state(files: Files, recorded: Record) -> str:
    from openjev_cli import child

    if runtime.is_suspended(recorded.process.pid):
        return "suspended"
    try:
        # /props makes no task, so it does not reset the idle timer as /slots would.
        code, body = child.request(files.socket, recorded.process, "/props", timeout_s=2.0)
    except Gone:
        return "not answering" if recorded.is_ready else "loading"
    if code == 503:
        return "loading"
    if code != 200:
        return "not answering"
    try:
        return "sleeping" if json.loads(body).get("is_sleeping") is True else "ready"
    except (ValueError, AttributeError):
        return "ready"


def _when_idle(idle: str, keep_alive_s: int | None) -> str:
    if idle == "exit":
        return f"exits after {keep_alive_s} s"
    if idle == "sleep":
        return f"unloads after {keep_alive_s} s, the process stays until `openjev server stop`"
    return "stays until `openjev server stop`"


def newest_log(*, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the log that was written to last, also of a server that died; None when there is none."""
    folder = runtime.folder(os.environ if environ is None else environ)
    logs = [files.log for files in record.all_files(folder) if files.log.exists()]
    return max(logs, key=lambda log: log.stat().st_mtime, default=None)
