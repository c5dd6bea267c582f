#!/usr/bin/env python3
"""Let many clients ask `openjev serve` at once, and see that every reply is right and everything comes back.

    .venv/bin/python benchmarks/serve_soak.py [--clients 200] [--seconds 60] [--queue 16] [--output FILE.json]

Runs on the tiny generated hybrid. Each client asks again as soon as it has its answer, and waits a while when
it got a 529. Prints a receipt: replies by status, and memory, threads and descriptors of the service before and
after. Exit 0: every reply was a right answer or a 529, and the service is as it was. 1: something was not.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
JSON = dict[str, Any]
# Batches of other shapes sum in another order; a mixed-up answer is off by far more.
TOLERANCE = 1e-3
# What the allocator may keep of a load that has gone.
ALLOWED_MIB = 16.0


def bodies() -> list[JSON]:
    """Eight requests whose answers differ."""
    kinds: list[JSON] = [
        {"type": "noul", "instructions": "Is money wanted back?"},
        {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "tech": None}},
        {"type": "score", "instructions": "How cross?", "criteria": ["calm", "cross", "furious"]},
    ]
    made = []
    for n in range(8):
        asked = {f"q{i}": kinds[(n + i) % 3] for i in range(1 + n % 3)}
        made.append({"state": {"ticket": n, "text": f"I paid {n + 2} times. " * (n + 1)}, "questions": asked})
    return made


def numbers(reply: JSON) -> list[float]:
    """Every probability of a reply, in order."""
    found: list[float] = []
    for answer in reply["answers"].values():
        found += answer["probabilities"].values() if "probabilities" in answer else [answer["noul"]]
    return found


def state_of(pid: int) -> JSON:
    """Memory, threads and descriptors of a process, from /proc."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "memory_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


async def load(url: str, right: list[list[float]], clients: int, seconds: float) -> JSON:
    """Return what `clients` saw in that time."""
    statuses: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    took_s: list[float] = []
    asked = bodies()
    end_at_s = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)

    async def client(number: int, http: httpx.AsyncClient) -> None:
        chance = random.Random(number)
        while time.monotonic() < end_at_s:
            n = chance.randrange(len(asked))
            began_at_s = time.monotonic()
            try:
                reply = await http.post(f"{url}/v1/systemone", json=asked[n])
            except httpx.HTTPError as exc:
                statuses[type(exc).__name__] += 1
                wrong.append(repr(exc))
                continue
            statuses[str(reply.status_code)] += 1
            if reply.status_code == 529:
                await asyncio.sleep(float(reply.headers["retry-after"]) * chance.uniform(0.2, 1.0))
                continue
            took_s.append(time.monotonic() - began_at_s)
            found = numbers(reply.json()) if reply.status_code == 200 else []
            off = max((abs(a - b) for a, b in zip(found, right[n], strict=False)), default=1.0)
            if len(found) != len(right[n]) or off > TOLERANCE:
                wrong.append(f"request {n}: status {reply.status_code}, off by {off:.3g}")

    async with httpx.AsyncClient(timeout=180.0, limits=limits, trust_env=False) as http:
        await asyncio.gather(*(client(number, http) for number in range(clients)))
    return {
        "replies": dict(statuses),
        "wrong": wrong[:20],
        "n_wrong": len(wrong),
        "answered_per_s": round(statuses["200"] / seconds, 1),
        "median_ms": round(1000 * statistics.median(took_s), 1) if took_s else None,
    }


def settled(pid: int, url: str, before: JSON) -> JSON:
    """Return the state of the service once its connections have gone, or after 15 s."""
    give_up_at_s = time.monotonic() + 15.0
    while True:
        health = httpx.get(f"{url}/health", trust_env=False, headers={"Connection": "close"}).json()
        now = {**state_of(pid), "at_work": health["at_work"], "waiting": health["waiting"]}
        is_back = now["descriptors"] <= before["descriptors"] and now["threads"] <= before["threads"]
        if is_back or time.monotonic() > give_up_at_s:
            return now
        time.sleep(0.2)


def measure(options: argparse.Namespace, folder: Path) -> JSON:
    """Start the service, let the clients at it, and return the receipt."""
    model = folder / "tiny.gguf"
    subprocess.run(
        [sys.executable, ROOT / "scripts/generate_model.py", model], check=True, stdout=subprocess.PIPE
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
    argv = [sys.executable, "-m", "openjev_cli", "serve", "--model", str(model), "--port", "0"]
    argv += ["--queue", str(options.queue)]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().decode()
        if not ready.startswith("ready: "):
            raise SystemExit("the service did not start")
        url = ready.split(" at ")[1].split()[0]
        with httpx.Client(timeout=180.0, trust_env=False) as http:
            right = [numbers(http.post(f"{url}/v1/systemone", json=body).json()) for body in bodies()]
        # A short load first: threads, connections to the engine and the allocator's pools are made once.
        asyncio.run(load(url, right, options.clients, min(10.0, options.seconds)))
        before = settled(process.pid, url, {"descriptors": 0, "threads": 0})
        found = asyncio.run(load(url, right, options.clients, options.seconds))
        after = settled(process.pid, url, before)
        process.terminate()
        code = process.wait(60.0)
    finally:
        process.kill()
        process.wait()
        subprocess.run(
            [sys.executable, "-m", "openjev_cli", "server", "stop"],
            env=environment, cwd=ROOT, check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return {
        "clients": options.clients,
        "seconds": options.seconds,
        "queue": options.queue,
        **found,
        "before": before,
        "after": after,
        "exit_code": code,
    }


def is_good(receipt: JSON) -> bool:
    """Whether every reply was a right answer or a 529 and the service is as it was."""
    before, after = receipt["before"], receipt["after"]
    return (
        receipt["n_wrong"] == 0
        and set(receipt["replies"]) <= {"200", "529"}
        and receipt["replies"].get("200", 0) > 0
        and after["threads"] <= before["threads"]
        and after["descriptors"] <= before["descriptors"]
        and after["memory_mib"] <= before["memory_mib"] + ALLOWED_MIB
        and (after["at_work"], after["waiting"]) == (0, 0)
        and receipt["exit_code"] == 0
    )


def main() -> int:
    """Measure, print the receipt, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--queue", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ojs-") as folder:
        receipt = measure(options, Path(folder))
    receipt["is_good"] = is_good(receipt)
    text = json.dumps(receipt, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if receipt["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
