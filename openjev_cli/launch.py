"""Start one llama-server and wait until it is ready, or wait for one that somebody else started.

The caller (`server`) holds the start lock. Apart from `server`, because a call that finds a running server
needs none of this.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openjev_cli import argv as argv_table
from openjev_cli import binary, capacity, child, models, record, runtime
from openjev_cli.errors import ModelError, ServerError
from openjev_cli.record import Files, Record, Running, Spec
from openjev_cli.runtime import Gone, Process

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Patience:
    """How long a start may take. silent_s: without any sign (log, processor time, an answer). loading_s: with
    "still loading" as the only sign. report_s: between two progress messages."""

    silent_s: float = 60.0
    loading_s: float = 900.0
    report_s: float = 2.0


class Reporter:
    """Calls back at most once per interval, with the seconds since it was made."""

    def __init__(self, on_progress: Progress | None, interval_s: float) -> None:
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._began_at_s = self._last_at_s = time.monotonic()

    def waiting(self, what: str) -> None:
        now_s = time.monotonic()
        if self._on_progress is not None and now_s - self._last_at_s >= self._interval_s:
            self._last_at_s = now_s
            self._on_progress(f"{what} ({now_s - self._began_at_s:.0f} s)")

    def say(self, what: str) -> None:
        if self._on_progress is not None:
            self._on_progress(what)


def signs(files: Files, recorded: Record | None) -> tuple[int, int, int]:
    """What changes while a server loads: its pid, the size of its log, its processor time."""
    if recorded is None:
        return 0, 0, 0
    try:
        size = files.log.stat().st_size
    except OSError:
        size = 0
    return recorded.process.pid, size, runtime.cpu_ticks(recorded.process.pid)


def adopt(files: Files, report: Reporter, patience: Patience) -> Running | None:
    """Under the lock: wait for a server whose starter died, or clean up after one that can't be used."""
    recorded = record.read(files)
    if recorded is None or not runtime.is_alive(recorded.process):
        return None
    if recorded.is_ready:
        # Ours and alive, but another socket (or none) is where its own was: nobody can reach it any more.
        report.say(f"llama-server (pid {recorded.process.pid}) can't be reached: starting another one")
        child.terminate(recorded.process)
        return None
    try:
        return _wait_ready(files, recorded, report, patience)
    except ServerError:
        return None  # start one of our own, whose end can be explained


def start(
    spec: Spec, files: Files, environ: Mapping[str, str], report: Reporter, patience: Patience
) -> Running:
    files.remove()
    settings, plan = _settle(spec, files, report)
    known = (
        None if _is_known(spec.binary) else binary.options_of(spec.binary, files.folder / record.OPTIONS_FILE)
    )
    words = argv_table.build_argv(_with_idle(settings, spec, known), known)
    facts: dict[str, Any] = {
        "version": record.VERSION,
        "key": files.key,
        "ready": False,
        "started_at": time.time(),
        "binary": str(spec.binary.path),
        "kind": spec.binary.kind,
        "build": spec.binary.build,
        "model": str(settings.model),
        "mmproj": str(settings.mmproj) if settings.mmproj else None,
        "adapter": str(settings.adapter) if settings.adapter else None,
        "decision_type": capacity.decision_type(settings.model),
        "argv": words,
        "n_ctx": plan.n_ctx,
        "slots": plan.slots,
        "checkpoints": plan.checkpoints,
        "cache_ram_mib": plan.cache_ram_mib,
        "idle": next((how for how in ("exit", "sleep") if f"--{how}-idle-seconds" in words), "never"),
        "keep_alive_s": spec.keep_alive_s,
        "notices": [plan.notice] if plan.notice else [],
    }
    report.say(f"starting llama-server for {spec.model.name}")

    def note(process: Process) -> None:
        facts.update(pid=process.pid, start_time=process.start_time)
        record.write(files, facts)

    process = child.spawn(spec.binary.path, words, log=files.log, environ=environ, on_spawned=note)
    return _wait_ready(files, Record(process, False, facts), report, patience)


def _is_known(program: binary.Binary) -> bool:
    """True when the build script says which release it is: its options need not be asked for."""
    return bool(program.release)


def _settle(spec: Spec, files: Files, report: Reporter) -> tuple[argv_table.Settings, capacity.Plan]:
    """Decide what the machine decides: room for the model, context, caches, threads."""
    shape = capacity.read_shape(spec.model)
    parts = [path for path in (spec.model, spec.mmproj, spec.adapter) if path is not None]
    weights_bytes = sum(path.stat().st_size for path in parts)
    make_room(files, capacity.need_bytes(spec.n_ctx, spec.slots, weights_bytes, shape), report)
    available_bytes = capacity.available_bytes()
    plan = capacity.plan(
        n_ctx=spec.n_ctx,
        slots=spec.slots,
        weights_bytes=weights_bytes,
        shape=shape,
        available_bytes=available_bytes,
    )
    if available_bytes is not None and not _may_hold_weights_elsewhere(spec.binary):
        _require_memory(spec.model.name, plan, weights_bytes, available_bytes)
    settings = replace(
        spec.settings(),
        n_ctx=plan.n_ctx,
        slots=plan.slots,
        socket=str(files.socket),
        threads=capacity.threads(),
        checkpoints=plan.checkpoints,
        cache_ram_mib=plan.cache_ram_mib,
    )
    return settings, plan


def _may_hold_weights_elsewhere(program: binary.Binary) -> bool:
    """Whether the weights may go into a device's own memory, which is not seen from here. A binary that does
    not say what it was built for may use whatever device there is."""
    if program.release or program.backend != "cpu":
        return program.backend != "cpu"
    return sys.platform == "darwin" or any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd"))


def _require_memory(name: str, plan: capacity.Plan, weights_bytes: int, available_bytes: int) -> None:
    """Refuse a model that does not fit even with the least context: loading it would only push the machine
    into swap. Raises ModelError with the numbers and the next smaller profile."""
    if plan.need_bytes <= available_bytes:
        return
    smaller = models.largest_below(weights_bytes, available_bytes)
    freed = "free some memory (openjev server stop ends the servers of openjev)"
    raise ModelError(
        f"{name} does not fit into memory: {capacity.gib(plan.need_bytes)} are needed"
        f" ({capacity.gib(weights_bytes)} of weights, the rest for {plan.slots} x {plan.n_ctx} tokens of context"
        f" and computing), {capacity.gib(available_bytes)} are free",
        next_step=f"openjev models pull {smaller.name}, then ask with --profile {smaller.name}; or {freed}"
        if smaller
        else freed[0].upper() + freed[1:],
    )


def _with_idle(
    settings: argv_table.Settings, spec: Spec, known: frozenset[str] | None
) -> argv_table.Settings:
    if spec.keep_alive_s is None or spec.keep_alive_s < 0:
        return settings
    if "exit_idle" in spec.binary.abilities:
        idle = "exit"
    elif known is None or "--sleep-idle-seconds" in known:
        idle = "sleep"
    else:
        return settings
    # llama-server refuses 0; one second is as good as at once.
    return replace(settings, idle=idle, keep_alive_s=max(1, spec.keep_alive_s))


def make_room(files: Files, need_bytes: int, report: Reporter) -> None:
    """Stop idle servers of ours, the longest unused first, while the memory does not suffice."""
    others = [
        other for other in record.all_files(files.folder) if other.key != files.key and record.read(other)
    ]
    for other in sorted(others, key=_last_used_s):
        available = capacity.available_bytes()
        if available is None or available * capacity.USABLE >= need_bytes:
            return
        # Never waits for another key's lock: two starts that wait for each other would wait for ever.
        lock = runtime.Lock(other.lock)
        if not lock.try_acquire():
            continue
        recorded = record.read(other)
        if recorded is not None and runtime.is_alive(recorded.process):
            if not _is_idle(other, recorded):
                lock.release()
                continue
            report.say(f"stopping the idle server of {Path(recorded.facts['model']).name} to make room")
            child.terminate(recorded.process)
        other.remove()
        lock.release(delete=True)


def _last_used_s(files: Files) -> float:
    try:
        return files.record.stat().st_mtime
    except OSError:
        return 0.0


def _is_idle(files: Files, recorded: Record) -> bool:
    clients = runtime.connections(files.socket)
    if clients is not None:
        return clients == 0
    # Where the system does not list connections: unused for as long as it is kept alive at most.
    return time.time() - _last_used_s(files) > 600


def _wait_ready(files: Files, recorded: Record, report: Reporter, patience: Patience) -> Running:
    """Wait until the server answers /health with 200, mark the record, and return it as just started."""
    process = recorded.process
    sign_at_s = answer_at_s = time.monotonic()
    seen, delay_s = signs(files, recorded), 0.01
    while (answer := _health(files, process)) != 200:
        if not runtime.is_alive(process):
            raise _died(files, recorded)
        now_s = time.monotonic()
        if (now_seen := signs(files, recorded)) != seen:
            seen, sign_at_s = now_seen, now_s
        if answer == 503:
            answer_at_s = now_s
        if runtime.is_suspended(process.pid):
            report.waiting(f"llama-server (pid {process.pid}) is stopped: waiting for it to be continued")
        silent_s = now_s - max(sign_at_s, answer_at_s)
        if silent_s > patience.silent_s or now_s - sign_at_s > patience.loading_s:
            raise _gave_up(files, recorded, now_s - sign_at_s)
        report.waiting(f"loading {Path(recorded.facts['model']).name}")
        time.sleep(delay_s)
        delay_s = min(0.1, delay_s * 1.3)
    facts = {**recorded.facts, "ready": True}
    record.write(files, facts)
    return Running(files, process, facts, was_started=True, notices=tuple(facts["notices"]))


def ready_now(files: Files) -> Running | None:
    """Return the recorded server if it answers that it is ready, whoever waits for it; never waits itself."""
    recorded = record.read(files)
    if recorded is None or _health(files, recorded.process) != 200:
        return None
    return Running(files, recorded.process, recorded.facts)


def _health(files: Files, process: Process) -> int:
    """Status of /health, 0 when there is no socket yet or no answer. Asks nobody but this process."""
    try:
        return child.request(files.socket, process, "/health", timeout_s=2.0)[0]
    except Gone:
        return 0


def _died(files: Files, recorded: Record) -> ServerError:
    code = child.exit_code(recorded.process)
    lines = child.tail(files.log)
    line = child.decisive_line(lines)
    files.remove()
    how = child.describe_exit(code)
    name = Path(recorded.facts["model"]).name
    if child.is_out_of_memory(code, line):
        next_step = "free memory or use a smaller model; openjev server stop ends the servers that still run"
    else:
        next_step = "openjev server logs shows all it wrote; openjev doctor checks the binary and the model"
    return ServerError(
        f"llama-server {how} while it loaded {name}" + (f": {line}" if line else "; it wrote nothing"),
        next_step=next_step,
        log_tail=lines,
    )


def _gave_up(files: Files, recorded: Record, waited_s: float) -> ServerError:
    lines = child.tail(files.log)
    child.terminate(recorded.process)
    files.remove()
    line = f"; its last line: {lines[-1]}" if lines else "; it wrote nothing"
    return ServerError(
        f"llama-server did not get ready: no progress for {waited_s:.0f} s{line}",
        next_step="openjev server logs shows all it wrote; openjev doctor checks the binary and the model",
        log_tail=lines,
    )
