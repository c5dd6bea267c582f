#!/usr/bin/env python3
"""What the adapter of `tiny` costs: the same weights, read by words, with it and without.

    .venv/bin/python benchmarks/adapter_cost.py [--trials 15] [--output benchmarks/readout/adapter_cost.json]

Both servers run already and take turns in one run. A trial asks the four questions of the ticket about a state that
begins with a fresh identifier ("new state"), then the same again ("again", which reads the questions' ends alone).
The times are those of the session: everything but the start of Python. Medians count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import latency  # noqa: E402 - scripts/ is no package
import latency_machine  # noqa: E402

from openjev_cli import config, decide, models, profiles, questions, reading, request, state  # noqa: E402
from openjev_cli.timing import Stages  # noqa: E402

EXAMPLES = ROOT / "examples"
JSON = dict[str, Any]


def fresh() -> state.State:
    """Return the ticket of the examples with an identifier at its start that no state had before."""
    ticket = json.loads((EXAMPLES / "ticket.json").read_text(encoding="utf-8"))
    written = json.dumps({"request": latency.fresh(), **ticket})
    return state.from_value(reading.parse_json(written, name="ticket"), name="ticket")


def asked_ms(session: decide.Session, asked: request.Request) -> tuple[float, int]:
    """Return the milliseconds of a call, and the tokens of its prompts."""
    began_at_s = time.perf_counter()
    decision = session.decide(asked, Stages(began_at_s))
    return (time.perf_counter() - began_at_s) * 1000.0, decision.usage.input_tokens


def measure(trials: int) -> JSON:
    """Run all trials and return the receipt."""
    path = EXAMPLES / "questions.txt"
    asked = questions.load([questions.Source(path.name, path.read_bytes())])
    with_it = config.load_from_process({"profile": "tiny", "quiet": True, "calibration": "off"})
    weights = models.path_of(profiles.named("tiny"), with_it)
    without = config.load_from_process(
        {"model": weights, "readout": "words", "quiet": True, "calibration": "off"}
    )
    times: dict[str, dict[str, list[float]]] = {
        name: {"new state": [], "again": []} for name in ("with", "without")
    }
    tokens = 0
    with decide.Session(with_it, os.environ) as one, decide.Session(without, os.environ) as other:
        sessions = {"with": one, "without": other}
        for session in sessions.values():
            session.decide(request.Request(fresh(), asked), Stages(time.perf_counter()))
        for trial in range(trials):
            turn = list(sessions.items())
            for name, session in turn if trial % 2 else reversed(turn):
                about = request.Request(fresh(), asked)
                for kind in ("new state", "again"):
                    took_ms, tokens = asked_ms(session, about)
                    times[name][kind].append(took_ms)
        shown = one.provenance().to_json()["adapter_sha256"]
    rows = {}
    for kind in ("new state", "again"):
        medians = {name: statistics.median(times[name][kind]) for name in times}
        rows[kind] = {
            "with_ms": round(medians["with"], 1),
            "without_ms": round(medians["without"], 1),
            "ratio": round(medians["with"] / medians["without"], 3),
        }
    return {
        "script": "adapter_cost.py",
        "machine": latency_machine.facts(),
        "adapter_sha256": shown,
        "questions": len(asked),
        "tokens": tokens,
        "trials": trials,
        "rows": rows,
    }


def main() -> int:
    """Measure, print a table and write the receipt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    receipt = measure(options.trials)
    for kind, one in receipt["rows"].items():
        print(f"{kind:10} with {one['with_ms']:8} ms, without {one['without_ms']:8} ms: {one['ratio']}")
    if options.output:
        options.output.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
