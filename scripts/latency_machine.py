"""What the machine does beside the measurement: foreign load, caches, and the facts a receipt states."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A sample is loud when others used more than this share of one core while it was taken.
LOUD_CORES = 0.10
# The kernel counts in ticks of 10 ms; two of them say nothing.
_TICKS_OF_SLACK = 2
_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Ticks:
    """Processor time used so far: by everything, and by the processes of this measurement."""

    at_s: float
    every: int
    own: int


def ticks(pids: Iterable[int]) -> Ticks:
    """Return the processor time used so far. Raises OSError where there is no /proc."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    own = sum(_of_process(pid) for pid in (*pids, os.getpid()))
    return Ticks(time.monotonic(), user + nice + system + irq + softirq + steal, own)


def _of_process(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def foreign_cores(before: Ticks, after: Ticks) -> float:
    """Return how many cores others kept busy between two moments, on average; 0 where it cannot be told."""
    foreign = (after.every - before.every) - (after.own - before.own)
    if foreign <= _TICKS_OF_SLACK:
        return 0.0
    return foreign / os.sysconf("SC_CLK_TCK") / max(1e-3, after.at_s - before.at_s)


class Watch:
    """Says of each sample whether others worked meanwhile. pids: of the servers, asked anew each time."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self.works = Path("/proc/stat").exists()

    def begin(self) -> Ticks | None:
        """Return the moment before a sample."""
        return ticks(self._pids()) if self.works else None

    def end(self, began: Ticks | None) -> float | None:
        """Return the foreign load of the sample, in cores; None where it cannot be told."""
        return None if began is None else foreign_cores(began, ticks(self._pids()))


def flush() -> None:
    """Fill the processor's caches with something else."""
    held = bytearray(_FLUSH_BYTES)
    held[::64] = b"\1" * len(held[::64])


def facts() -> dict[str, Any]:
    """Return what a receipt says about the machine."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    flags = ("amx_int8", "avx512_vnni", "avx512f", "avx2")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return {
        "cpu": model or platform.processor(),
        "features": [flag for flag in flags if f" {flag} " in text],
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
