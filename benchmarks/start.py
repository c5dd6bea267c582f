"""What a call costs beside the engine, as ratios to `python -c "import typer"`, measured side by side.

    python benchmarks/start.py [--trials 31] [--output benchmarks/start.json]

Each round runs every command once, in rotating order. Of each command the median of the rounds counts. From
the warm `ask` the engine's own time in its reply (queue and inference) is taken off, call by call. It asks
the profile `tiny`; the first, unmeasured call starts its server. Byte code is cached, as it is for an installed
package.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASK = (
    "ask",
    str(ROOT / "examples" / "ticket.json"),
    "-q",
    str(ROOT / "examples" / "questions.txt"),
    "-f",
    "json",
)
GOALS = {"--help": 1.25, "warm ask": 1.8, "warm ask, stock way": 2.5}
# What a warm ask has loaded, and what a bare `import typer` loads of it by itself.
_MODULES = """
import sys
import typer
before = {name.partition(".")[0] for name in sys.modules}
from openjev_cli import cli
code = cli.run(sys.argv[1:], began_at_s=0.0)
after = {name.partition(".")[0] for name in sys.modules}
print("typer", *sorted(after - before - set(sys.stdlib_module_names) - {"openjev_cli"}), file=sys.stderr)
"""


def run(command: list[str], environment: dict[str, str]) -> tuple[float, bytes]:
    """Return wall-clock milliseconds and stdout of one process."""
    began_at_s = time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False
    )
    wall_ms = (time.perf_counter() - began_at_s) * 1000.0
    if done.returncode != 0:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stderr.decode()}")
    return wall_ms, done.stdout


def engine_ms(stdout: bytes) -> float:
    """Return the engine's own time in a reply, in milliseconds."""
    timing = json.loads(stdout)["timing"]
    return float(timing["queue_ms"]) + float(timing["inference_ms"])


def main() -> None:
    """Measure, print a table, and write the receipt where --output says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=31)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    openjev = [sys.executable, "-m", "openjev_cli"]
    commands = {
        "import typer": [sys.executable, "-c", "import typer"],
        "--help": [*openjev, "--help"],
        "warm ask": [*openjev, *ASK],
    }
    for command in commands.values():
        run(command, environment)
    modules = subprocess.run(
        [sys.executable, "-c", _MODULES, *ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        text=True,
        check=True,
    ).stderr.splitlines()[-1]

    wall_ms: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for trial in range(options.trials):
        for name in names[trial % len(names) :] + names[: trial % len(names)]:
            took_ms, stdout = run(commands[name], environment)
            wall_ms[name].append(took_ms - (engine_ms(stdout) if name == "warm ask" else 0.0))

    base_ms = statistics.median(wall_ms["import typer"])
    rows = {
        name: {
            "median_ms": round(statistics.median(samples), 1),
            "least_ms": round(min(samples), 1),
            "ratio": round(statistics.median(samples) / base_ms, 3),
            "ratio_of_least": round(min(samples) / min(wall_ms["import typer"]), 3),
            "goal": GOALS.get(name),
        }
        for name, samples in wall_ms.items()
    }
    receipt = {
        "made_by": "benchmarks/start.py",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "trials": options.trials,
        "engine_time_taken_off": "queue_ms + inference_ms of each reply",
        "rows": rows,
        "third_party_modules_on_the_warm_path": modules.split(),
    }
    for name, row in rows.items():
        print(f"{name:14} {row['median_ms']:8} ms  x {row['ratio']:<6} (goal {row['goal'] or '-'})")
    print("third-party modules of a warm ask:", *receipt["third_party_modules_on_the_warm_path"])
    if options.output:
        options.output.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
