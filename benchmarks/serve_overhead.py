#!/usr/bin/env python3
"""What HTTP and validation cost beyond the engine's own time: `openjev serve` beside the native route.

    .venv/bin/python benchmarks/serve_overhead.py --stock FILE --patched FILE [--trials 40] [--output FILE.json]

One request of one question and one of four, over a kept connection, in turns, a fresh state every time. For
`openjev serve` the engine's own time is what its reply says (queue + inference); for the stock build's own POST
/v1/systemone on the same weights it is what its /metrics counted meanwhile. The overhead is the rest of the wall
clock, the client's part included. Medians count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import latency  # noqa: E402 - behind the path above
from latency_servers import Server, Servers  # noqa: E402

from openjev_cli import child  # noqa: E402
from openjev_cli.engine.client import Client  # noqa: E402

JSON = dict[str, Any]
# Wall clock and the engine's own part of it, in milliseconds.
Ask = Callable[[JSON], tuple[float, float]]


def body(n_questions: int) -> JSON:
    """Return a request with a state that no request had before."""
    asked = {
        f"q{i}": {"type": "choice", "instructions": f"Which team is number {i}?", "criteria": {"a": "x", "b": None}}
        for i in range(n_questions)
    }  # fmt: skip
    return {
        "state": f"{latency.fresh()} " + "I was charged twice and want one payment back. " * 12,
        "questions": asked,
    }


def through_serve(url: str) -> Ask:
    """Return how `openjev serve` is asked."""
    host, port = url.removeprefix("http://").split(":")
    # The same lean client as for the native route.
    client = Client(lambda: socket.create_connection((host, int(port))))

    def ask(sent: JSON) -> tuple[float, float]:
        began_at_s = time.perf_counter()
        spent = client.post("/v1/systemone", sent)["timing"]
        wall_ms = (time.perf_counter() - began_at_s) * 1000.0
        return wall_ms, spent["queue_ms"] + spent["inference_ms"]

    return ask


def natively(server: Server) -> Ask:
    """Return how the stock build's own route is asked."""
    client = Client(server.connect)

    def ask(sent: JSON) -> tuple[float, float]:
        before_ms = _engine_ms(server)
        began_at_s = time.perf_counter()
        client.post("/v1/systemone", sent)
        wall_ms = (time.perf_counter() - began_at_s) * 1000.0
        return wall_ms, _engine_ms(server) - before_ms

    return ask


def _engine_ms(server: Server) -> float:
    """Return how long the engine has worked on prompts since it started."""
    server.prompt_tokens()  # waits until its counters stand still
    _, metrics = child.request(server.socket, server.process, "/metrics", timeout_s=10.0)
    found = re.search(rb"^llamacpp:prompt_seconds_total (\S+)$", metrics, re.M)
    if found is None:
        raise SystemExit("the stock server counts no time in its /metrics")
    return float(found[1]) * 1000.0


def measure(options: argparse.Namespace, folder: Path) -> JSON:
    """Start both, ask them in turns, and return the receipt."""
    model = latency.generated(folder, options.shape, "Q8_0")
    native = latency.generated(folder, options.shape, "Q8_0", decision=True)
    servers = Servers(options.stock.resolve(), options.patched.resolve(), model, lambda: native, None, 4096)
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "OPENJEV_LLAMA_SERVER": str(options.patched.resolve()),
    }
    command = [sys.executable, "-m", "openjev_cli"]
    argv = [*command, "serve", "--model", str(model), "--port", "0", "--quiet"]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().split(" at ")[1].split()[0]
        ways = {"openjev serve": through_serve(url), "native": natively(servers.get("native"))}
        rows: list[JSON] = []
        for n_questions in (1, 4):
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for trial in range(options.trials + 3):
                for name in sorted(ways, reverse=trial % 2 == 1):
                    sample = ways[name](body(n_questions))
                    if trial >= 3:  # warm-ups
                        taken[name].append(sample)
            rows += [_row(name, n_questions, samples) for name, samples in taken.items()]
    finally:
        process.terminate()
        process.wait(60.0)
        servers.stop()
        subprocess.run(
            [*command, "server", "stop"], env=environment, cwd=ROOT, check=False, stdout=subprocess.PIPE
        )
    return {"shape": options.shape, "trials": options.trials, "load": os.getloadavg()[0], "rows": rows}


def _row(name: str, n_questions: int, samples: list[tuple[float, float]]) -> JSON:
    over = [wall_ms - engine_ms for wall_ms, engine_ms in samples]
    return {
        "endpoint": name,
        "questions": n_questions,
        "wall_ms": round(statistics.median(wall_ms for wall_ms, _ in samples), 2),
        "engine_ms": round(statistics.median(engine_ms for _, engine_ms in samples), 2),
        "overhead_ms": round(statistics.median(over), 2),
        "overhead_low_ms": round(min(over), 2),
    }


def main() -> int:
    """Measure and print the receipt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ojo-") as folder:
        receipt = measure(options, Path(folder))
    text = json.dumps(receipt, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
