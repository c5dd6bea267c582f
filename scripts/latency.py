#!/usr/bin/env python3
"""Measure what openjev makes of the same requests against other ways of asking, side by side in one run.

    .venv/bin/python scripts/latency.py [--shape 0.8B] [--output benchmarks/performance/NAME.json]
    ... --shape tiny --trials 1             the quick way through every row (what CI runs)
    ... --endpoint jev=http://host:8080     another endpoint of POST /v1/systemone beside them

Endpoints: `before` (stock build, every question its own full prompt, nothing cached), `primed-stock` and `after`
(openjev on the stock and on the patched build), `native` (the stock build's own /v1/systemone on the same weights,
tagged). `before` against itself comes first. The order rotates with every trial; every state begins with a fresh
identifier; medians count. Servers are started on private sockets and stopped at the end; the models are generated
(random weights: neither speed nor caching depends on what they say). Exit 0: measured. 1: with --strict, a goal
was missed or an answer differs. 2: usage.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import secrets
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import generate_model
import generate_projector
import latency_endpoints as endpoints_
import latency_extras as extras
import latency_machine as machine
import latency_numbers as numbers
from latency_cases import AA_CASES, CASES, PICTURES, Case, Library, chosen
from latency_endpoints import Asked, Endpoint, Openjev, Prompter
from latency_servers import Servers, stop_on_signals

from openjev_cli import config, errors
from openjev_cli.request import Request

JSON = dict[str, Any]
OWN_ENDPOINTS = ("before", "primed-stock", "after", "native")
SPECIAL = ("each_64", "prepare_2048x1536", "prepare_4032x3024", "where")
VERSION = 1
MOST_RETAKES = 5
FULL_TRIALS = 7


@dataclass(frozen=True)
class Trials:
    """How often a case is taken. Heavy ones take minutes a time."""

    wanted: int

    def of(self, case: Case) -> tuple[int, int]:
        """Return (warm-ups, trials)."""
        if case.is_counted:
            return 0, 1
        if self.wanted >= FULL_TRIALS:
            return (1, 3) if case.is_heavy else (2, self.wanted)
        # In a short run the first case warms everything up.
        return (1 if case is CASES[0] else 0), (1 if case.is_heavy else self.wanted)


@dataclass
class Turn:
    """One endpoint's way through a case. steps: by label what each step took and gave."""

    samples: dict[str, JSON]
    steps: dict[str, list[JSON]]
    foreign_cores: float | None


@dataclass
class Bench:
    """Everything a run needs. counter: makes prompts and counts tokens, None when only URLs are asked."""

    options: argparse.Namespace
    servers: Servers
    library: Library
    trials: Trials
    watch: machine.Watch
    endpoints: dict[str, Endpoint]
    counter: Prompter | None
    retaken: int = 0
    loud: int = 0
    _patched: Prompter | None = field(default=None, repr=False)

    def patched_prompter(self) -> Prompter:
        """Return the one that talks to the patched server."""
        if self._patched is None:
            self._patched = Prompter(self.servers.get("after"))
        return self._patched

    # ---------------------------------------------------------------------------------------- one turn

    def prepare(self, case: Case, identifier: str) -> list[Asked]:
        """Return the case's requests with their prompts."""
        prepared = []
        for step in case.steps:
            request = Request(self.library.state(step.state, identifier), self.library.asked(step))
            files = (self.library.picture_bytes(step.state),) if step.state in PICTURES else ()
            if self.counter is None:
                prepared.append(Asked(request, None, None, None, files))
            else:
                prepared.append(self.counter.prepare(request, files))
        return prepared

    def turn(self, endpoint: Endpoint, case: Case, prepared: Sequence[Asked]) -> Turn:
        """Ask all requests of a case, one after the other."""
        if self.options.idle_s:
            time.sleep(self.options.idle_s)
        samples: dict[str, JSON] = {}
        steps: dict[str, list[JSON]] = defaultdict(list)
        loads: list[float] = []
        for step, asked in zip(case.steps, prepared, strict=True):
            read_before = endpoint.tokens_read()
            if self.options.flush:
                machine.flush()
            began = self.watch.begin()
            began_at_s = time.perf_counter()
            reply = endpoint.ask(asked)
            wall_ms = (time.perf_counter() - began_at_s) * 1000.0
            foreign = self.watch.end(began)
            if foreign is not None:
                loads.append(foreign)
            read_after = endpoint.tokens_read()
            read: int | None = None
            if read_before is not None and read_after is not None:
                read = read_after - read_before
            elif reply.tokens is not None and reply.cached is not None:
                read = reply.tokens - reply.cached
            sample = samples.setdefault(
                step.label, {"wall_ms": 0.0, "engine_ms": 0.0, "tokens_read": 0, "tokens": 0}
            )
            sample["wall_ms"] += wall_ms
            for name, value in (
                ("engine_ms", reply.engine_ms),
                ("tokens_read", read),
                ("tokens", reply.tokens),
            ):
                # One step that does not say makes the sum unknown.
                known = sample[name] is not None and value is not None
                sample[name] = sample[name] + value if known else None
            steps[step.label].append({"tokens": reply.tokens, "answers": reply.answers})
        return Turn(samples, dict(steps), max(loads) if loads else None)

    def quiet_turn(
        self, endpoint: Endpoint, case: Case, prepared: list[Asked]
    ) -> tuple[Turn, dict[str, JSON]]:
        """Return the turn and the samples that count: with --quiet taken again, about a fresh state, while
        others load the machine. The answers of the first take are the ones that are compared."""
        first = best = self.turn(endpoint, case, prepared)
        if self.options.quiet:
            for retake in range(MOST_RETAKES):
                if best.foreign_cores is None or best.foreign_cores <= machine.LOUD_CORES:
                    break
                self.retaken += 1
                time.sleep(min(8.0, 0.5 * 2**retake))
                again = self.turn(endpoint, case, self.prepare(case, fresh()))
                if again.foreign_cores is not None and again.foreign_cores < best.foreign_cores:
                    best = again
            self.loud += best.foreign_cores is not None and best.foreign_cores > machine.LOUD_CORES
        for sample in best.samples.values():
            sample["foreign_cores"] = best.foreign_cores
        return first, best.samples

    # ---------------------------------------------------------------------------------------- one case

    def aa(self, case: Case) -> JSON:
        """Measure `before` against itself."""
        endpoint = self.endpoints["before"]
        label = case.steps[0].label
        walls: tuple[list[float], list[float]] = ([], [])
        warmups, trials = self.trials.of(case)
        for trial in range(-warmups, trials):
            prepared = self.prepare(case, fresh())
            for half in (trial % 2, 1 - trial % 2):
                _, samples = self.quiet_turn(endpoint, case, prepared)
                if trial >= 0:
                    walls[half].append(samples[label]["wall_ms"])
        tokens = prepared[0].prefix + sum(prepared[0].suffixes)
        return {
            "kind": "aa",
            "wall_ms": walls,
            "tokens": tokens,
            "aa_difference": numbers.aa_difference(*walls),
        }

    def steps(self, case: Case) -> JSON:
        """Measure all endpoints on a case, in rotating order, and compare their answers pair by pair."""
        names = [name for name in self.endpoints if not case.only or name in case.only]
        warmups, trials = self.trials.of(case)
        samples: dict[str, dict[str, list[JSON]]] = {name: defaultdict(list) for name in names}
        pairs: dict[str, dict[str, numbers.Pairs]] = defaultdict(lambda: defaultdict(numbers.Pairs))
        counts: JSON = {}
        for trial in range(-warmups, trials):
            prepared = self.prepare(case, fresh())
            counts = self._counts(case, prepared)
            turns: dict[str, Turn] = {}
            for at in range(len(names)):
                name = names[(at + trial) % len(names)]
                if name in case.once and trial != 0:
                    continue
                turns[name], taken = self.quiet_turn(self.endpoints[name], case, prepared)
                if trial >= 0:
                    for label, sample in taken.items():
                        samples[name][label].append(sample)
            if trial >= 0:
                _compare(turns, pairs)
        record: JSON = {
            "kind": "steps",
            "goals": case.goals,
            "warmups": warmups,
            "trials": trials,
            "counts": counts,
            "samples": {name: dict(by_label) for name, by_label in samples.items()},
            "pairs": {
                name: {label: found.to_json() for label, found in by_label.items()}
                for name, by_label in pairs.items()
            },
        }
        if case.needs_images and "after" in self.endpoints:
            prompter = self.patched_prompter()
            times = [endpoints_.encode_ms(prompter, self.prepare(case, fresh())[0]) for _ in range(3)]
            record["encode_ms"] = statistics.median(times)
            record["picture"] = case.steps[0].state
        return record

    def _counts(self, case: Case, prepared: list[Asked]) -> JSON:
        """Return by label: tokens of the (first) prefix and of each question, requests, tokens when every
        question is read whole, and the fewest that can be read."""
        counts: JSON = {}
        earlier: list[Asked] = []
        for step, asked in zip(case.steps, prepared, strict=True):
            row = counts.setdefault(
                step.label,
                {"prefix": asked.prefix, "suffixes": [], "requests": 0, "full": 0, "least_read": 0},
            )
            row["suffixes"] += asked.suffixes
            row["requests"] += 1
            row["full"] += sum(asked.prefix + suffix for suffix in asked.suffixes)
            common = 0
            if asked.ids is not None:
                ids = asked.ids.prefix
                shared = (numbers.common_prefix(ids, one.ids.prefix) for one in earlier if one.ids)
                common = max(shared, default=0)
            row["least_read"] += numbers.least_read(asked.prefix, asked.suffixes, common)
            earlier.append(asked)
        return counts


def _compare(turns: dict[str, Turn], pairs: dict[str, dict[str, numbers.Pairs]]) -> None:
    """Compare every endpoint's answers with those of the reference, or of the first there is."""
    if not turns:
        return
    reference = numbers.REFERENCE if numbers.REFERENCE in turns else next(iter(turns))
    for name, turn in turns.items():
        if name == reference:
            continue
        for label, steps in turn.steps.items():
            for one, other in zip(turns[reference].steps[label], steps, strict=True):
                pairs[name][label].add(one, other)


def fresh() -> str:
    """Return an identifier no state had before. Digits: each is one token, so that lengths stay the same."""
    return f"{secrets.randbelow(10**12):012d}"


# ------------------------------------------------------------------------------------------ what is measured


def generated(folder: Path, shape: str, quant: str, *, decision: bool = False) -> Path:
    """Return the generated model, made in `folder` unless it is there. decision: tagged, with a template that
    writes openjev's own prompt."""
    stamp = hashlib.sha256(Path(generate_model.__file__).read_bytes())
    stamp.update(endpoints_.NATIVE_TEMPLATE.encode() if decision else b"")
    kind = "native" if decision else "plain"
    path = folder / f"{shape}-{quant}-{kind}-{stamp.hexdigest()[:12]}.gguf"
    if path.exists():
        return path
    note(f"generating {path.name}")
    sizes = generate_model.SHAPES[shape]
    n_vocab = sizes.vocabulary or -(-len(generate_model.vocabulary().tokens) // 32) * 32
    meta = generate_model.metadata(f"openjev generated {shape}", sizes, n_vocab, quant, decision=False)
    if decision:
        meta.text("qwen35.decision.type", "openjev")
        meta.texts("tokenizer.chat_templates", ["systemone"])
        meta.text("tokenizer.chat_template.systemone", endpoints_.NATIVE_TEMPLATE)
    wanted = list(generate_model.tensors(sizes, n_vocab, generate_model.TYPES[quant]))
    generate_model.write_file(path, meta, wanted, 1)
    return path


def projector(folder: Path, shape: str) -> Path:
    """Return the generated projector that lets a generated model see."""
    stamp = hashlib.sha256(Path(generate_projector.__file__).read_bytes()).hexdigest()[:12]
    path = folder / f"{shape}-projector-{stamp}.gguf"
    if not path.exists():
        note(f"generating {path.name}")
        generate_projector.write_projector(path, shape=shape)
    return path


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(options: argparse.Namespace, servers: Servers, library: Library) -> JSON:
    """Return what must be the same for a run to be continued."""
    return {
        "version": VERSION,
        "trials": options.trials,
        "quiet": options.quiet,
        "flush": options.flush,
        "idle_s": options.idle_s,
        "n_ctx": options.n_ctx,
        "endpoints": [*(options.own or ()), *options.others],
        "model": {"name": servers.model.name, "sha256": sha256(servers.model)},
        "projector": servers.mmproj.name if servers.mmproj else None,
        "binaries": {"stock": sha256(servers.stock), "patched": sha256(servers.patched)},
        "cases_sha256": library.digests(),
    }


def note(text: str) -> None:
    """Tell the one who waits."""
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shape", choices=sorted(generate_model.SHAPES), default="0.8B", help="generated model")
    add("--type", choices=sorted(generate_model.TYPES), default="Q8_0", help="type of its matrices")
    add("--model", type=Path, help="measure this GGUF file instead of a generated one")
    add("--native-model", type=Path, help="the same weights tagged, for `native` (with --model)")
    add("--mmproj", type=Path, help="projector for the pictures (with --model)")
    add("--no-images", action="store_true", help="leave the pictures out")
    add("--patched", type=Path, help="default: the build of scripts/build-llama.sh")
    add("--stock", type=Path, help="default: the build of scripts/build-llama.sh --stock")
    add("--endpoint", action="append", metavar="NAME|NAME=URL", default=[],
        help=f"{', '.join(OWN_ENDPOINTS)} (default: these four), or NAME=URL beside them; may repeat")  # fmt: skip
    add("--own-pid", action="append", type=int, metavar="PID", default=[],
        help="a process behind a NAME=URL: its work is not other load; may repeat")  # fmt: skip
    add("--case", action="append", metavar="NAME", default=[],
        choices=[case.name for case in CASES] + list(SPECIAL), help="only this case; may repeat")  # fmt: skip
    add(
        "--trials",
        type=int,
        default=7,
        help="7: two warm-ups and seven trials, one and three of the long ones",
    )
    add("--quiet", action="store_true", help="take samples again that overlap other load")
    add("--flush", action="store_true", help="empty the processor's caches before every request")
    add("--idle-s", type=float, default=0.0, metavar="S", help="pause before every turn")
    add("--n-ctx", type=int, default=4096, help="tokens of one request")
    add("--llama-bench", type=Path, help="llama-bench of the same build, for the ideal rate")
    add("--output", type=Path, metavar="RECEIPT.json", help="written after every case")
    add("--resume", action="store_true", help="leave out the cases that the receipt already holds")
    add("--strict", action="store_true", help="exit 1 when a goal was missed or an answer differs")
    options = parser.parse_args()
    if options.trials < 1:
        parser.error("--trials: at least one")
    if options.resume and not options.output:
        parser.error("--resume needs --output")
    options.others = dict(text.split("=", 1) for text in options.endpoint if "=" in text)
    unknown = [name for name in options.endpoint if "=" not in name and name not in OWN_ENDPOINTS]
    if unknown:
        parser.error(f"--endpoint {unknown[0]}: neither one of {', '.join(OWN_ENDPOINTS)} nor NAME=URL")
    options.own = [name for name in options.endpoint if "=" not in name] or list(OWN_ENDPOINTS)
    if options.model and not options.native_model and "native" in options.own:
        note("no --native-model: `native` is left out")
        options.own.remove("native")
    builds = config.load_from_process({}).builds_dir
    options.patched = (options.patched or builds / "current" / "llama-server").resolve()
    options.stock = (options.stock or builds / "stock" / "llama-server").resolve()
    for path in (options.patched, options.stock):
        if not path.is_file():
            parser.error(f"{path} is missing; run: scripts/build-llama.sh --stock")
    if options.quiet and not Path("/proc/stat").exists():
        parser.error("--quiet: this system does not tell what others do (no /proc/stat)")
    return options


def servers_for(options: argparse.Namespace) -> Servers:
    """Return the servers of a run, none started yet; generates what is missing of the models."""
    folder = config.load_from_process({}).cache_dir / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    model = options.model or generated(folder, options.shape, options.type)
    seeing = options.mmproj
    if not options.model and not options.no_images:
        seeing = projector(folder, options.shape)

    def native_model() -> Path:
        if options.native_model:
            return Path(options.native_model).resolve()
        return generated(folder, options.shape, options.type, decision=True)

    return Servers(options.stock, options.patched, model.resolve(), native_model, seeing, options.n_ctx)


def make_endpoints(options: argparse.Namespace, servers: Servers, counter: Prompter) -> dict[str, Endpoint]:
    """Return the endpoints of a run, by name; starts their servers."""
    made: dict[str, Endpoint] = {}
    for name in options.own:
        if name == "before":
            made[name] = endpoints_.Before(servers.get(name), counter)
        elif name == "native":
            made[name] = endpoints_.native(servers.get(name))
        else:
            made[name] = Openjev(name, servers.get(name))
            if name == "after" and not Prompter(servers.get(name)).facts.abilities.get("decide"):
                raise SystemExit(f"{servers.patched} offers no /decide; run: scripts/build-llama.sh")
    for name, url in options.others.items():
        made[name] = endpoints_.remote(name, url)
    return made


# ------------------------------------------------------------------------------------------------- the run


def measure(bench: Bench, receipt: JSON, options: argparse.Namespace) -> None:
    """Measure every case that is wanted, saving the receipt after each."""
    done = receipt["cases"]
    cases = chosen(options.case, with_images=bench.servers.mmproj is not None)
    rate: list[float] = [
        sum(map(sum, case["wall_ms"])) / sum(map(len, case["wall_ms"])) / case["tokens"]
        for case in done.values()
        if case["kind"] == "aa"
    ]

    def keep(name: str, record: JSON) -> None:
        done[name] = record
        receipt["load"] = {"retaken": bench.retaken, "loud": bench.loud}
        save(options.output, receipt)

    for case in cases:
        if "before" in bench.endpoints and case.name in AA_CASES and f"aa_{case.name}" not in done:
            note(f"{case.name}: before against itself")
            keep(f"aa_{case.name}", bench.aa(case))
            found = done[f"aa_{case.name}"]
            rate.append(statistics.median(found["wall_ms"][0]) / found["tokens"])
    for at, case in enumerate(cases):
        if case.name in done:
            continue
        if not case.only or any(name in bench.endpoints for name in case.only):
            token_ms = statistics.median(rate) if rate else 0.0
            left_min = sum(planned_ms(bench, one, token_ms) for one in cases[at:]) / 60_000
            note(case.name + (f" (about {left_min:.0f} min left)" if left_min > 1 else ""))
            keep(case.name, bench.steps(case))
    for name in SPECIAL:
        if (not options.case or name in options.case) and name not in done:
            record = special(bench, name, options)
            if record is not None:
                keep(name, record)


def special(bench: Bench, name: str, options: argparse.Namespace) -> JSON | None:
    """Return what a measurement that is no list of requests gave; None when nothing here can take it."""
    is_full = options.trials >= FULL_TRIALS
    if name.startswith("prepare_"):
        note(name)
        return extras.prepare(name.removeprefix("prepare_"), 3 * options.trials)
    after = bench.endpoints.get("after")
    if not isinstance(after, Openjev):
        return None
    note(name)
    if name == "each_64":
        return extras.each(after, bench.library, fresh, trials=2 if is_full else 1)
    prompter = bench.patched_prompter()
    return extras.where(prompter, after, bench.library, fresh, 3 if is_full else 1, options.llama_bench)


def planned_ms(bench: Bench, case: Case, token_ms: float) -> float:
    """Return about how long a case will take: every token of `before`, the state once of the others."""
    warmups, trials = bench.trials.of(case)
    counts = bench._counts(case, bench.prepare(case, fresh()))
    total = 0.0
    for name in bench.endpoints:
        if case.only and name not in case.only:
            continue
        rounds = 1 if name in case.once else warmups + trials
        for row in counts.values():
            once = (
                row["least_read"]
                if name != "native"
                else row["prefix"] * row["requests"] + sum(row["suffixes"])
            )
            total += rounds * (row["full"] if name == "before" else once) * token_ms
    return total


def save(path: Path | None, receipt: JSON) -> None:
    """Write the receipt in one step."""
    receipt["rows"] = numbers.rows(receipt)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def show(receipt: JSON) -> None:
    """Print one line a row, and what was missed."""
    print(f"{'row':24} {'ratio':>7} {'ideal':>7} {'goal':>9} {'met':>4} {'native':>7}  medians, ms")
    for row in receipt["rows"]:
        medians = "  ".join(f"{name} {ms:.1f}" for name, ms in row["median_ms"].items())
        met = {True: "yes", False: "NO", None: "-"}[row["is_met"]]
        figures = (row["ratio"], row["ideal"], row["limit"], row.get("to_native"))
        ratio, ideal, limit, native = (f"{value:.3f}" if value is not None else "-" for value in figures)
        print(f"{row['label']:24} {ratio:>7} {ideal:>7} {limit:>9} {met:>4} {native:>7}  {medians}")
    largest = [
        pairs["largest_difference"] for row in receipt["rows"] for pairs in row.get("pairs", {}).values()
    ]
    asked = sum(pairs["questions"] for row in receipt["rows"] for pairs in row.get("pairs", {}).values())
    if largest:
        print(f"{asked} pairs of answers compared, largest difference of a probability {max(largest):.1e}")
    for missed in numbers.failures(receipt["rows"]):
        print(missed)


def main() -> int:
    """Measure, print the rows, and write the receipt where --output says."""
    options = parse_options()
    began_at_s = time.monotonic()
    library = Library()
    servers = servers_for(options)
    stop_on_signals(servers)
    try:
        marks = fingerprint(options, servers, library)
        receipt: JSON = {
            "made_by": "scripts/latency.py",
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": marks,
            "machine": machine.facts(),
            "cases": {},
        }
        if options.resume and options.output.exists():
            receipt = json.loads(options.output.read_bytes())
            changed = [key for key, value in marks.items() if receipt["run"].get(key) != value]
            if changed:
                raise SystemExit(f"--resume: {options.output} was made with other {', '.join(changed)}")
        counter = Prompter(servers.get("before" if "before" in options.own else options.own[0]))
        made = make_endpoints(options, servers, counter)
        receipt["argv"] = {name: server.shown() for name, server in servers.running.items()}
        watch = machine.Watch(lambda: [*servers.pids(), *options.own_pid])
        bench = Bench(options, servers, library, Trials(options.trials), watch, made, counter)
        measure(bench, receipt, options)
        receipt["minutes"] = round(receipt.get("minutes", 0.0) + (time.monotonic() - began_at_s) / 60, 1)
        save(options.output, receipt)
        endpoints_.close(list(made.values()))
    finally:
        servers.stop()
    show(receipt)
    return 1 if options.strict and numbers.failures(receipt["rows"]) else 0


def guarded() -> int:
    """Return main's exit code; what a user can put right is a line or two instead of a traceback."""
    try:
        return main()
    except SystemExit as exc:
        if not isinstance(exc.code, str):
            raise
        note(exc.code)
    except errors.OpenjevError as exc:
        note(f"error: {exc.message}\nnext: {exc.next_step}")
    return 2


if __name__ == "__main__":
    sys.exit(guarded())
