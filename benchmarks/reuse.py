#!/usr/bin/env python3
"""What an identical `openjev ask --reuse` costs against its own cold time, both without start-up.

    .venv/bin/python benchmarks/reuse.py [--trials 5] [--output benchmarks/reuse.json]

Every trial asks about a state that begins with a fresh identifier, so that neither the engine nor the answer cache
has seen it, and then the same again. The server runs already. Start-up is what the same interpreter takes for
`openjev --version`. Of each the median of the trials counts. The model is generated, with random weights and the
shape of a real one; what it says does not matter here. Cases are those of cases/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import latency  # noqa: E402 - scripts/ is no package
import latency_machine  # noqa: E402

from openjev_cli import config  # noqa: E402

OPENJEV = [sys.executable, "-m", "openjev_cli"]
CASES = {"ticket": "ticket.json", "policy": "policy.txt", "page": "page.json"}
GOAL = 0.02
# An identical request is cheap: asked several times a trial, the median counts.
REPEATS = 3
JSON = dict[str, Any]


def wall_ms(argv: list[str], environment: dict[str, str]) -> tuple[float, bytes]:
    """Return how long a call took, and its stdout."""
    began_at_s = time.perf_counter()
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return (time.perf_counter() - began_at_s) * 1000.0, done.stdout


def fresh(name: str, folder: Path) -> Path:
    """Write a case's state with an identifier at its start that no state had before."""
    text = (ROOT / "benchmarks" / "cases" / CASES[name]).read_text(encoding="utf-8")
    if CASES[name].endswith(".txt"):
        text = f"{latency.fresh()}\n{text}"
    else:
        text = json.dumps({"id": latency.fresh(), **json.loads(text)})
    path = folder / CASES[name]
    path.write_text(text, encoding="utf-8")
    return path


def a_trial(name: str, model: Path, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Return the milliseconds of the three kinds of calls, and the engine's share of the cold one."""
    questions = ROOT / "benchmarks" / "cases" / f"{name}.questions.json"
    asked = ["ask", str(fresh(name, folder)), "-q", str(questions), "--model", str(model)]
    asked = [*OPENJEV, *asked, "--reuse", "-f", "json"]
    cold_ms, stdout = wall_ms(asked, environment)
    cold = json.loads(stdout)
    if cold["timing"]["reused_answers"] or "start_ms" in cold["timing"]:
        raise SystemExit(f"{name}: the first call was not cold, or had to start the server")
    again_ms, version_ms = [], []
    for _ in range(REPEATS):
        version_ms.append(wall_ms([*OPENJEV, "--version"], environment)[0])
        took_ms, stdout = wall_ms(asked, environment)
        again_ms.append(took_ms)
        reply = json.loads(stdout)
        if reply["answers"] != cold["answers"] or reply["timing"]["reused_answers"] != len(cold["answers"]):
            raise SystemExit(f"{name}: the second call was not answered from the cache, or differently")
    return {
        "cold_ms": cold_ms,
        "again_ms": statistics.median(again_ms),
        "start_up_ms": statistics.median(version_ms),
        "engine_ms": cold["timing"]["inference_ms"],
        "tokens": cold["usage"]["input_tokens"],
    }


def row(trials: list[dict[str, float]]) -> JSON:
    """Return the medians of a case and its ratio."""
    seen = {name: statistics.median(trial[name] for trial in trials) for name in trials[0]}
    cold_ms, again_ms = (seen[name] - seen["start_up_ms"] for name in ("cold_ms", "again_ms"))
    return {
        **{name: round(value, 1) for name, value in seen.items()},
        "ratio": round(again_ms / cold_ms, 4),
        "goal": GOAL,
    }


def measure(options: argparse.Namespace, folder: Path) -> JSON:
    """Run all trials and return the receipt."""
    settings = config.load_from_process({})
    kept = settings.cache_dir / "benchmarks"
    kept.mkdir(parents=True, exist_ok=True)
    model = (options.model or latency.generated(kept, "0.8B", "Q8_0")).resolve()
    binary = settings.llama_server or settings.builds_dir / "current" / "llama-server"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENJEV_")}
    environment |= {"XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    environment |= {"OPENJEV_CACHE_DIR": str(folder / "cache"), "OPENJEV_LLAMA_SERVER": str(binary)}
    load = os.getloadavg()[0]
    try:
        wall_ms([*OPENJEV, "server", "start", "--model", str(model), "--quiet"], environment)
        ask = [*OPENJEV, "ask", "--text", "warm up", "-Q", "Is it?", "--reuse", "--model", str(model)]
        wall_ms([*ask, "-f", "json"], environment)
        trials: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
        for _ in range(options.trials):
            for name, done in trials.items():
                done.append(a_trial(name, model, folder, environment))
    finally:
        subprocess.run([*OPENJEV, "server", "stop"], env=environment, check=False, stdout=subprocess.DEVNULL)
    return {
        "made_by": "benchmarks/reuse.py",
        "machine": latency_machine.facts(),
        "load_average": load,
        "model": model.name,
        "trials": options.trials,
        "start_up": "openjev --version",
        "rows": {name: row(done) for name, done in trials.items()},
    }


def main() -> int:
    """Measure, print a table and write the receipt; 0 if every case reaches the goal, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a GGUF file instead of the generated 0.8B")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ojr-") as folder:
        receipt = measure(options, Path(folder))
    for name, one in receipt["rows"].items():
        print(
            f"{name:8} cold {one['cold_ms']:8} ms, again {one['again_ms']:6} ms, start-up"
            f" {one['start_up_ms']:6} ms: {one['ratio']} of it (goal {GOAL})"
        )
    if options.output:
        options.output.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    return 0 if all(one["ratio"] <= GOAL for one in receipt["rows"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
