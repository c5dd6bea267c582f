"""Measurements of scripts/latency.py that are no lists of requests: a stream of states, preparing a picture,
and where the time of a request goes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import latency_numbers as numbers
from latency_cases import Library
from latency_endpoints import Openjev, Prompter, answered, decide_times

from openjev_cli import reading, records, stream
from openjev_cli.engine.client import Client
from openjev_cli.request import Request

JSON = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
Fresh = Callable[[], str]
Answers = list[tuple[tuple[float, ...], ...]]
# Prompt lengths at which llama-bench is asked for its rate: about a ticket, a policy, a page.
BENCH_TOKENS = (256, 1280, 2560)


# ------------------------------------------------------------------------------------------------- a stream


def each(after: Openjev, library: Library, fresh: Fresh, *, trials: int) -> JSON:
    """Measure 64 short states, one at a time and as `ask --each` asks them, and compare every answer with the
    one of its state asked alone with nothing cached."""
    plan = stream.Plan(library.questions("each"))
    workers = after.session.slots()
    walls: dict[int, list[float]] = {1: [], workers: []}
    pairs = numbers.Pairs()
    for trial in range(-1, trials):
        for count in (1, workers) if trial % 2 else (workers, 1):
            held = [{"request": fresh(), **record} for record in library.records()]
            if trial < 0:
                held = held[:workers]  # only to warm up
            began_at_s = time.perf_counter()
            found = _streamed(after, held, plan, count)
            wall_ms = (time.perf_counter() - began_at_s) * 1000.0
            if trial >= 0:
                walls[count].append(wall_ms)
            if trial == 0 and count == workers:
                _compare_alone(after, held, plan, found, pairs)
    alone_ms, together_ms = (statistics.median(walls[count]) for count in (1, workers))
    row: JSON = {
        "goal": "faster",
        "median_ms": {"one at a time": alone_ms, "after": together_ms},
        "states_a_second": {
            "one at a time": len(library.records()) / alone_ms * 1000.0,
            "after": len(library.records()) / together_ms * 1000.0,
        },
        "ratio": together_ms / alone_ms,
        "ideal": None,
        "limit": 1.0,
        "is_met": together_ms < alone_ms and pairs.flipped == 0 and pairs.largest <= numbers.TOLERANCE,
        "pairs": {"after": pairs.to_json()},
    }
    return {
        "kind": "single",
        "workers": workers,
        "wall_ms": {str(n): ms for n, ms in walls.items()},
        "row": row,
    }


def _streamed(
    after: Openjev, held: Sequence[dict[str, reading.Value]], plan: stream.Plan, workers: int
) -> Answers:
    """Return the answers to all records, in order."""
    data = "".join(reading.dumps(record, compact=True) + "\n" for record in held).encode()
    chunks = iter([data])
    source = records.stream_of("each.ndjson", lambda: next(chunks, b""))
    found: Answers = []
    for outcome in stream.Run(source, plan, after.session, workers=workers):
        if outcome.decision is None:
            raise SystemExit(f"each_64: line {outcome.record.line}: {outcome.error}")
        found.append(answered(outcome.decision))
    return found


def _compare_alone(
    after: Openjev,
    held: Sequence[dict[str, reading.Value]],
    plan: stream.Plan,
    found: Answers,
    pairs: numbers.Pairs,
) -> None:
    lone = Openjev("alone", after.server, caches=False)
    try:
        for one, other in zip(_streamed(lone, held, plan, 1), found, strict=True):
            pairs.add({"tokens": None, "answers": one}, {"tokens": None, "answers": other})
    finally:
        lone.session.close()


# ------------------------------------------------------------------------------------------------ a picture


def prepare(size: str, trials: int) -> JSON:
    """Measure what it takes to make a JPEG what the encoder sees, beside decoding it whole and resizing that.
    size: one of the photos of benchmarks/prepare_images.py, which also compares pixels and memory."""
    sys.path.append(str(ROOT))
    from benchmarks import prepare_images

    data = prepare_images.photo(*prepare_images.PHOTOS[size])
    medians = prepare_images.medians(data, trials)
    ratio = medians["after"] / medians["before"]
    row: JSON = {
        "goal": "prepare",
        "median_ms": {"after": medians["after"], "decode + full resize": medians["before"]},
        "ratio": ratio,
        "ideal": None,
        "limit": prepare_images.GOAL,
        "is_met": ratio <= prepare_images.GOAL,
    }
    return {"kind": "single", "size_bytes": len(data), "trials": trials, "row": row}


# -------------------------------------------------------------------------------------- where the time goes


def where(
    prompter: Prompter, after: Openjev, library: Library, fresh: Fresh, trials: int, bench: Path | None
) -> JSON:
    """Return for a ticket, a policy and a page, each read cold and asked again, what every part of a request
    took, in milliseconds; and the bare costs of a round trip and of llama-bench's reading."""
    found: JSON = {}
    for name, count in (("ticket", 4), ("policy", 4), ("page", 12)):
        for kind in ("cold", "again"):
            samples = []
            for _ in range(trials):
                state = library.state(name, fresh())
                request = Request(state, library.questions(name)[:count])
                if kind == "again":
                    decide_times(prompter, request)
                samples.append(decide_times(prompter, request))
            # One whole sample, so that its parts add up.
            middle = sorted(samples, key=lambda sample: sample["round_trip"])[len(samples) // 2]
            found[f"{name} {kind}"] = {part: round(ms, 3) for part, ms in middle.items()}
    return {
        "kind": "where",
        "requests": found,
        "round_trip_ms": _round_trip_ms(after),
        "llama_bench": _rates(bench, after) if bench else [],
    }


def _round_trip_ms(after: Openjev) -> float:
    """Return the median time of a request that does nothing."""
    walls = []
    with Client(after.server.connect) as client:
        for _ in range(50):
            began_at_s = time.perf_counter()
            client.get("/health")
            walls.append((time.perf_counter() - began_at_s) * 1000.0)
    return statistics.median(walls)


def _rates(bench: Path, after: Openjev) -> list[JSON]:
    """Return llama-bench's reading rate at a few prompt lengths, with the server's threads and kernels."""
    words = after.server.words
    model, threads = (words[words.index(name) + 1] for name in ("--model", "--threads"))
    lengths = ",".join(map(str, BENCH_TOKENS))
    options = ["-p", lengths, "-n", "0", "-t", threads, "-fa", "0", "-r", "3", "-o", "json"]
    done = subprocess.run([bench, "-m", model, *options], capture_output=True, check=True)
    return [
        {"tokens": int(run["n_prompt"]), "tokens_per_s": round(float(run["avg_ts"]), 1)}
        for run in json.loads(done.stdout)
    ]
