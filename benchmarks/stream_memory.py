#!/usr/bin/env python3
"""Memory of a long `openjev ask --each --where --reuse`, read at ten points of its input.

    .venv/bin/python benchmarks/stream_memory.py [--lines 1000000] [--output benchmarks/stream_memory.json]

Runs on the tiny generated hybrid, with a cache and a server of its own. A few hundred states come round and round:
each is asked once, then its answer comes from the cache, so that nearly all of the time is openjev's own. Exit 0:
memory did not grow after the first tenth by more than `ALLOWED_MIB`, and every line was answered. 1: it did not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
OPENJEV = [sys.executable, "-m", "openjev_cli"]
JSON = dict[str, Any]
QUESTION = "refund: Does the customer ask for a refund?"
# What an allocator may move between two readings; a line kept by mistake would take a hundred times as much.
ALLOWED_MIB = 2.0


def states(count: int) -> list[bytes]:
    """Return that many different records."""
    return [
        json.dumps(
            {"id": n, "text": f"order {n * 7919 % 100_000} arrived late and the box was open"}
        ).encode()
        + b"\n"
        for n in range(count)
    ]


def memory_mib(pid: int) -> JSON:
    """Return what a process holds now, and the most it ever held."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        name: round(int(status[field].split()[0]) / 1024, 2)
        for name, field in (("rss_mib", "VmRSS"), ("peak_mib", "VmHWM"))
    }


def answered(asked: list[str], records: list[bytes], environment: dict[str, str]) -> list[float]:
    """Return the answers to all records, in order. Fills the cache."""
    run = subprocess.run(
        asked, input=b"".join(records), env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return [float(json.loads(line)["answers"]["refund"]["noul"]) for line in run.stdout.splitlines()]


def lines(count: int, records: list[bytes]) -> Iterator[bytes]:
    """Yield the records in turn, in pieces of some hundred lines."""
    whole = b"".join(records)
    rounds, rest = divmod(count, len(records))
    for _ in range(rounds):
        yield whole
    yield b"".join(records[:rest])


class Passed(threading.Thread):
    """Reads what a stream prints and counts its lines."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.count = 0

    def run(self) -> None:
        """Read to the end."""
        while chunk := self._stream.read1(65536):  # type: ignore[attr-defined]
            self.count += chunk.count(b"\n")


def measure(options: argparse.Namespace, folder: Path) -> JSON:
    """Run the stream and return the receipt."""
    model = folder / "tiny.gguf"
    subprocess.run(
        [sys.executable, ROOT / "scripts/generate_model.py", model], check=True, stdout=subprocess.PIPE
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
    environment["PYTHONPATH"] = str(ROOT)
    if "OPENJEV_LLAMA_SERVER" not in environment:
        environment["OPENJEV_LLAMA_SERVER"] = str(_builds() / "current" / "llama-server")
    environment["OPENJEV_CACHE_DIR"] = str(folder / "cache")
    asked = [*OPENJEV, "ask", "--each", "-", "--as", "ndjson", "--field", "text", "-Q", QUESTION]
    asked += ["--reuse", "--model", str(model), "-f", "jsonl"]
    records = states(options.states)
    try:
        seen = answered(asked, records, environment)
        # Half of the records pass, whatever the generated weights say.
        bound = f"{sorted(seen)[len(seen) // 2]:.9f}"
        holds = [p >= float(bound) for p in seen]
        argv = [*asked, "--where", f"refund >= {bound}"]
        process = subprocess.Popen(
            argv, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        passed = Passed(process.stdout)
        passed.start()
        points: list[JSON] = []
        began_at_s = time.monotonic()
        written, step = 0, max(1, options.lines // 10)
        for piece in lines(options.lines, records):
            process.stdin.write(piece)
            process.stdin.flush()
            written += piece.count(b"\n")
            while len(points) < written // step and len(points) < 10:
                spent_s = round(time.monotonic() - began_at_s, 1)
                points.append({"lines": written, "after_s": spent_s, **memory_mib(process.pid)})
                print(json.dumps(points[-1]), file=sys.stderr)
        process.stdin.close()
        code = process.wait()
        passed.join()
        took_s = time.monotonic() - began_at_s
    finally:
        subprocess.run(
            [*OPENJEV, "server", "stop"], env=environment, cwd=ROOT, check=False, stdout=subprocess.DEVNULL
        )
    rounds, rest = divmod(options.lines, options.states)
    return {
        "made_by": "benchmarks/stream_memory.py",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "lines": options.lines,
        "states": options.states,
        "passed": passed.count,
        "expected": rounds * sum(holds) + sum(holds[:rest]),
        "exit_code": code,
        "seconds": round(took_s, 1),
        "lines_per_s": round(options.lines / took_s),
        "points": points,
        "grown_mib": round(points[-1]["rss_mib"] - points[0]["rss_mib"], 2),
    }


def _builds() -> Path:
    sys.path.insert(0, str(ROOT))
    from openjev_cli import config

    return config.load_from_process({}).builds_dir


def is_good(receipt: JSON) -> bool:
    """Whether memory stayed and exactly those lines came back that had to."""
    is_whole = receipt["exit_code"] == 0 and receipt["passed"] == receipt["expected"]
    return bool(is_whole and receipt["grown_mib"] <= ALLOWED_MIB)


def main() -> int:
    """Measure, print the receipt, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--states", type=int, default=300)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ojm-") as folder:
        receipt = measure(options, Path(folder))
    receipt["is_good"] = is_good(receipt)
    text = json.dumps(receipt, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if receipt["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
