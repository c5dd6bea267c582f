"""Measure `openjev ask --each`: speed against one call a state, and answers under concurrency.

    python scripts/measure_streams.py --model MODEL.gguf [--out benchmarks/streams.json]

One run, one machine, one server. `loop` calls `openjev ask` once a state; `one at a time` is `--each` fed one
record after another; `each` is `--each` on the whole file. The answers of two streams at once are compared with
those given one by one. Memory of a long run is benchmarks/stream_memory.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPENJEV = [sys.executable, "-m", "openjev_cli"]
REFUND = "refund: Does the customer ask for a refund?"
TEAM = "team: Which team should handle this? [billing | technical | sales]"
QUESTIONS = ["-Q", REFUND, "-Q", TEAM]
TRIALS = 3


def states(count: int, marker: str) -> list[str]:
    """Return short states, no two alike, so that no cache of an earlier part helps a later one."""
    return [
        f"{marker} {n}: order {n * 7919 % 100000} arrived late and the box was open" for n in range(count)
    ]


def each(lines: Sequence[str], *arguments: str) -> list[dict[str, Any]]:
    """Return the lines that one `--each` prints for a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        run = subprocess.run(
            [*OPENJEV, "ask", "--each", file.name, *QUESTIONS, *arguments], stdout=subprocess.PIPE, check=True
        )
    return [json.loads(line) for line in run.stdout.splitlines()]


def loop(lines: Sequence[str]) -> None:
    """Ask once a state, as a shell loop does."""
    for line in lines:
        subprocess.run(
            [*OPENJEV, "ask", "--text", line, *QUESTIONS, "-f", "json"], stdout=subprocess.DEVNULL, check=True
        )


def one_at_a_time(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Feed one `--each` a record, wait for its answer, feed the next."""
    with subprocess.Popen(
        [*OPENJEV, "ask", "--each", "-", "--as", "lines", *QUESTIONS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for line in lines:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
    return answers


def speed(count: int) -> dict[str, float]:
    """Return states a second of the three ways, medians of rotating trials."""
    ways = {"loop": loop, "one_at_a_time": one_at_a_time, "each": each}
    each(states(4, "warm"))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for trial in range(TRIALS):
        names = list(ways)
        for name in names[trial % 3 :] + names[: trial % 3]:
            lines = states(count, f"{name} {trial}")
            began_s = time.perf_counter()
            ways[name](lines)
            seconds[name].append(time.perf_counter() - began_s)
    return {name: round(count / statistics.median(took), 2) for name, took in seconds.items()}


def mixed_up(count: int) -> dict[str, Any]:
    """Return how the answers of two streams at once differ from those given one by one."""
    lines = {name: states(count, f"{name} mixed") for name in ("ticket", "invoice")}
    together: dict[str, list[dict[str, Any]]] = {}
    threads = [
        threading.Thread(target=lambda name=name: together.__setitem__(name, each(lines[name])))
        for name in lines
    ]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began_s
    largest, other_decisions, wrong_lines = 0.0, 0, 0
    for name, given in lines.items():
        for got, wanted in zip(together[name], one_at_a_time(given), strict=True):
            wrong_lines += got["line"] != wanted["line"]
            mine, theirs = got["answers"], wanted["answers"]
            other_decisions += mine["team"]["choice"] != theirs["team"]["choice"]
            pairs = zip(
                mine["team"]["probabilities"].values(), theirs["team"]["probabilities"].values(), strict=True
            )
            moved = [abs(a - b) for a, b in pairs] + [abs(mine["refund"]["noul"] - theirs["refund"]["noul"])]
            largest = max(largest, *moved)
    return {
        "records": 2 * count,
        "seconds_together": round(took_s, 1),
        "wrong_lines": wrong_lines,
        "other_decisions": other_decisions,
        "largest_difference": largest,
    }


def main() -> None:
    """Run all parts and write the receipt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the GGUF file to ask")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/streams.json"))
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--records", type=int, default=1000)
    given = parser.parse_args()
    global QUESTIONS
    QUESTIONS = [*QUESTIONS, "--model", str(Path(given.model).resolve())]
    receipt: dict[str, Any] = {
        "model": Path(given.model).name,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load_before": os.getloadavg()[0],
    }
    for name, part in (
        ("states_per_s", lambda: speed(given.states)),
        ("two_streams", lambda: mixed_up(given.records)),
    ):
        receipt[name] = part()
        print(json.dumps({name: receipt[name]}))
        given.out.write_text(json.dumps(receipt, indent=2) + "\n")


if __name__ == "__main__":
    main()
