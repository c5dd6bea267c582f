#!/usr/bin/env python3
"""Train the words readout of `tiny`: a LoRA on its exact weights, on the exact prompts openjev sends.

    .venv/bin/python scripts/train_readout.py --prepare --data DIR     rows -> token ids, through llama-server
    python scripts/train_readout.py --data DIR --minutes 40            trains (extra `train`: torch, numpy, gguf)
    ... --resume                                                       goes on from the last checkpoint

Each row is asked as openjev asks it, its options in a new order every time, and the loss is -log P(right option)
as the words readout computes it: the softmax over the children of every branching point of the options' tokens.
The learning rate runs over the time budget, so that a short training ends as well as a long one. The checkpoint,
the learning curve (JSON lines) and the adapter lie in the work folder; --publish DIR writes recipe, data list and
curve for the repository. The same on CPU and CUDA; what is multiplied is bfloat16 where the machine is quicker
with it, the trained tensors and their updates are float32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import readout_data as data
import readout_tickets

from openjev_cli import prompt

if TYPE_CHECKING:
    from readout_model import Model

JSON = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
ADAPTER = "adapter.gguf"
CURVE = "curve.jsonl"
CHECKPOINT = "checkpoint.pt"


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of *.jsonl.gz rows with MANIFEST.json")
    add("--rows", type=Path, help="token ids of the rows (default: below openjev's cache folder)")
    add("--work", type=Path, help="checkpoint, curve and adapter (default: below openjev's cache folder)")
    add("--model", type=Path, help="the GGUF to adapt (default: that of tiny)")
    add("--prepare", action="store_true", help="only write --rows, with the model's llama-server")
    add("--publish", type=Path, help="write recipe.json and curve.jsonl there at the end")
    add("--resume", action="store_true", help="go on from the checkpoint in --work")
    add("--begin", type=Path, help="begin with this adapter (a GGUF of the same rank and alpha)")
    add(
        "--minutes", type=float, default=40.0, help="time for training; loading and the last look come on top"
    )
    add("--tokens", type=int, help="also end after so many tokens, if they are read sooner (shared machines)")
    add("--seed", type=int, default=20261130)
    add("--rank", type=int, default=16)
    add("--alpha", type=float, default=32.0)
    add("--lr", type=float, default=1.5e-3)
    add("--schedule", choices=("linear", "cosine"), default="linear", help="how the rate goes to 0")
    add("--warmup", type=float, default=0.04, help="share of the time")
    add("--weight-decay", type=float, default=0.01)
    add("--clip", type=float, default=1.0, help="norm of the gradient")
    add("--micro-tokens", type=int, default=1000, help="tokens of a forward pass, padding included")
    add("--step-rows", type=int, default=16, help="rows of an optimizer step, at least")
    add("--max-tokens", type=int, default=240, help="longer prompts are not trained on")
    add("--mass-weight", type=float, default=0.1, help="of -log P(any option) in the whole vocabulary")
    add(
        "--weight",
        action="append",
        default=[],
        metavar="TASK=WEIGHT",
        help="another share of a task than the mixture gives it; may repeat",
    )
    add("--swap-noul", type=float, default=0.1, help="share of yes/no questions shown as no/yes")
    add("--checkpoint-minutes", type=float, default=5.0)
    add("--eval-minutes", type=float, default=10.0)
    add("--eval-rows", type=int, default=128, help="validation rows of seen and of unseen tasks, each")
    add("--device", default="cpu", help="cpu or cuda")
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the products; auto: bfloat16 on CUDA and on a CPU with AVX512_BF16 or AMX",
    )
    add("--threads", type=int, default=0, help="of torch; 0: its own choice")
    chosen = parser.parse_args(words)
    given = [one.partition("=") for one in chosen.weight]
    chosen.weight = {task: float(weight) for task, _, weight in given}
    if unknown := sorted(set(chosen.weight) - set(data.MIXTURE)):
        parser.error(f"--weight: no such task in the mixture: {', '.join(unknown)}")
    if chosen.rows is None or chosen.work is None or chosen.model is None:
        from openjev_cli import config, models, profiles

        settings = config.load_from_process({})
        folder = settings.cache_dir / "readout"
        chosen.rows = chosen.rows or folder / "rows.npz"
        chosen.work = chosen.work or folder / f"seed-{chosen.seed}"
        chosen.model = chosen.model or models.path_of(profiles.named("tiny"), settings)
    return chosen


def prepare(args: argparse.Namespace) -> None:
    """Write the token ids of all rows, made by the server openjev itself would use for this model."""
    from openjev_cli import config, models, server
    from openjev_cli.engine.client import Client

    settings = config.load_from_process({"model": args.model})
    program = server.program_for(settings, os.environ)
    running = server.ensure(server.spec_for(settings, models.resolve(settings), program))
    with Client(running.connect) as client:
        frames, rows = data.tokenize_rows(args.data, client, report=lambda line: print(line, flush=True))
    data.save(args.rows, frames, rows)
    print(f"{len(rows)} rows in {args.rows}")


# ------------------------------------------------------------------------------------------ looking at it


def looked_at(rows: Sequence[data.Row], part: str, count: int, frames: data.Frames) -> list[data.Example]:
    """Return examples of so many rows of a part, the same in every run, taken from the tasks in turn."""
    by_task: dict[str, list[data.Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda one: data.number_of(one.id)):
        if row.part == part:
            by_task[row.task].append(row)
    found: list[data.Example] = []
    queues = [by_task[task] for task in sorted(by_task)]
    at = 0
    while len(found) < count and any(at < len(queue) for queue in queues):
        for queue in queues:
            if at < len(queue) and len(found) < count:
                row = queue[at]
                order = data.order_of(row, _rng(row.id), swap_noul=0.0)
                one = data.example(row, frames, order)
                if one is not None:
                    found.append(one)
        at += 1
    return found


def _rng(text: str) -> Any:
    import random

    return random.Random(data.number_of(text))


def look(model: Model, examples: Sequence[data.Example], micro_tokens: int, device: str) -> JSON:
    """Return the mean loss and how often every step on the way to the right option is the likeliest, over all
    and by task."""
    import torch
    from readout_model import to_batch

    right: dict[str, list[bool]] = defaultdict(list)
    loss = 0.0
    with torch.no_grad():
        for some in data.batches(examples, 2 * micro_tokens):
            batch = to_batch(some, device)
            ce, _, ok = model.losses(batch)
            loss += float(ce.sum())
            by_row = [True] * len(some)
            for at, is_right in zip(batch.row.tolist(), ok.tolist(), strict=True):
                by_row[at] &= is_right
            for one, is_right in zip(some, by_row, strict=True):
                right[one.task].append(is_right)
    every = [one for some in right.values() for one in some]
    return {
        "rows": len(every),
        "loss": round(loss / max(1, len(every)), 4),
        "accuracy": round(sum(every) / max(1, len(every)), 4),
        "tasks": {task: [sum(some), len(some)] for task, some in sorted(right.items())},
    }


# ------------------------------------------------------------------------------------------ training


class Stopped:
    """Whether somebody asked the training to stop; it then ends as when its time is up."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self.is_set = True


def rate(share: float, *, warmup: float, schedule: str) -> float:
    """Return the learning rate as a share of its highest when this share of the time is over."""
    import math

    if share < warmup:
        return max(0.02, share / warmup)
    rest = min(1.0, (share - warmup) / (1.0 - warmup))
    return 1.0 - rest if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * rest))


def _is_quick_with_bfloat16(device: str) -> bool:
    if device.startswith("cuda"):
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def spent(of_time: float, tokens: int, most_tokens: int | None) -> float:
    """Return how much of the budget is gone, the time or the tokens, whichever is nearer its end."""
    return max(of_time, tokens / most_tokens) if most_tokens else of_time


def steps(batches: Iterator[list[data.Example]], rows: int) -> Iterator[list[list[data.Example]]]:
    """Give the micro batches of one optimizer step after the other: at least so many rows."""
    while True:
        taken = [next(batches)]
        while sum(len(one) for one in taken) < rows:
            taken.append(next(batches))
        yield taken


class Training:
    """One run: the model, its optimizer, and what has been read so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from readout_model import Model, read_gguf

        self.args = args
        if args.threads:
            torch.set_num_threads(args.threads)
        torch.manual_seed(args.seed)
        if args.dtype == "auto":
            args.dtype = "bfloat16" if _is_quick_with_bfloat16(args.device) else "float32"
        weights = read_gguf(args.model, device=args.device, dtype=getattr(torch, args.dtype))
        self.model = Model(weights, rank=args.rank, alpha=args.alpha, seed=args.seed, device=args.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=args.weight_decay
        )
        self.frames, rows = data.load(args.rows, keep=lambda task, part: part not in ("test", "unseen"))
        rows = [row for row in rows if row.length(self.frames) <= args.max_tokens]
        train = [row for row in rows if row.part == "train"]
        self.counts: dict[str, int] = defaultdict(int)
        for row in train:
            self.counts[row.task] += 1
        self.seen = looked_at(rows, "validation", args.eval_rows, self.frames)
        self.unseen = looked_at(rows, "unseen_validation", args.eval_rows, self.frames)
        self.done: JSON = {"step": 0, "batches": 0, "rows": 0, "tokens": 0, "elapsed_s": 0.0}
        self.rows_by_task: dict[str, int] = defaultdict(int)
        self.phases: list[JSON] = []
        self._since: dict[str, float] = defaultdict(float)
        args.work.mkdir(parents=True, exist_ok=True)
        if args.begin:
            self._begin()
        if args.resume:
            self._load()
        elif (args.work / CHECKPOINT).exists() or (args.work / CURVE).exists():
            raise SystemExit(f"{args.work} holds a run: go on with --resume, or name another --work")
        self.batches = iter(
            data.Sampler(
                train,
                self.frames,
                weights={**{task: weight for task, (weight, _) in data.MIXTURE.items()}, **args.weight},
                # A run that goes on draws other rows than it began with.
                seed=args.seed + int(self.done["step"]),
                most_tokens=args.micro_tokens,
                swap_noul=args.swap_noul,
            )
        )
        changed = ("minutes", "lr", "step_rows", "micro_tokens", "weight")
        phase = {key: held for key, held in vars(args).items() if key in changed}
        if args.begin and not self.done["step"]:
            phase["begun_with"] = {"file": args.begin.name, "sha256": _sha256(args.begin)}
        self.phases.append({"from_step": self.done["step"], "from_s": self.done["elapsed_s"], **phase})
        self.model.merge()

    def run(self) -> None:
        """Train until the time is over, then look once more and write everything."""
        args = self.args
        stopped = Stopped()
        budget_s = args.minutes * 60.0
        if not self.done["step"]:
            self.look()
        began_s = time.monotonic() - self.done["elapsed_s"]
        logged_s = saved_s = looked_s = self.done["elapsed_s"]
        for taken in steps(self.batches, args.step_rows):
            now_s = time.monotonic() - began_s
            share = spent(now_s / budget_s, self.done["tokens"], args.tokens)
            if share >= 1.0 or stopped.is_set:
                break
            self.step(taken, share)
            now_s = self.done["elapsed_s"] = time.monotonic() - began_s
            if now_s - logged_s >= 30.0:
                self.log()
                logged_s = now_s
            if now_s - saved_s >= args.checkpoint_minutes * 60.0:
                self.save()
                saved_s = now_s
            # The last look comes after the loop.
            if now_s - looked_s >= args.eval_minutes * 60.0 and budget_s - now_s > 120.0:
                self.look()
                looked_s = now_s
        self.log()
        self.save()
        self.look()

    def step(self, taken: Sequence[Sequence[data.Example]], share: float) -> None:
        """Learn from the micro batches of one step."""
        import torch
        from readout_model import to_batch

        args = self.args
        highest = rate(share, warmup=args.warmup, schedule=args.schedule) * args.lr
        for group in self.optimizer.param_groups:
            group["lr"] = highest
        rows = sum(len(one) for one in taken)
        for some in taken:
            batch = to_batch(some, args.device)
            ce, mass, ok = self.model.losses(batch)
            ((ce.sum() + args.mass_weight * mass.sum()) / rows).backward()
            self._since["loss"] += float(ce.detach().sum())
            self._since["mass"] += float(mass.detach().sum())
            self._since["right"] += float(ok.sum())
            self._since["branches"] += len(ok)
            self.done["tokens"] += batch.n_tokens
            for one in some:
                self.rows_by_task[one.task] += 1
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.merge()
        self._since["norm"] = max(self._since["norm"], float(norm))
        self._since["rows"] += rows
        self.done["step"] += 1
        self.done["rows"] += rows
        self.done["batches"] += len(taken)

    def log(self) -> None:
        """Write what was learnt since the last time to the curve."""
        since = self._since
        if not since["rows"]:
            return
        self._write(
            "train",
            loss=round(since["loss"] / since["rows"], 4),
            mass=round(since["mass"] / since["branches"], 4),
            right=round(since["right"] / since["branches"], 4),
            norm=round(since["norm"], 3),
            lr=self.optimizer.param_groups[0]["lr"],
        )
        self._since = defaultdict(float)

    def look(self) -> None:
        """Write how the validation rows fare to the curve."""
        args = self.args
        parts = {
            name: look(self.model, examples, args.micro_tokens, args.device)
            for name, examples in (("seen", self.seen), ("unseen", self.unseen))
            if examples
        }
        self._write("validation", **parts)

    def _write(self, event: str, **values: Any) -> None:
        entry = {"event": event, **self.done, "elapsed_s": round(self.done["elapsed_s"], 1), **values}
        with (self.args.work / CURVE).open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(entry) + "\n")
        brief = {
            name: {key: held for key, held in value.items() if key != "tasks"}
            if isinstance(value, dict)
            else value
            for name, value in entry.items()
        }
        print(json.dumps(brief), flush=True)

    def save(self) -> None:
        """Write the checkpoint, and the adapter as it is now."""
        import torch

        work: Path = self.args.work
        held = {
            "a": [dict(layer) for layer in self.model.a],
            "b": [dict(layer) for layer in self.model.b],
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "rows_by_task": dict(self.rows_by_task),
            "phases": self.phases,
        }
        temporary = work / f"{CHECKPOINT}.part"
        torch.save(held, temporary)
        temporary.replace(work / CHECKPOINT)
        export(self.model, work / ADAPTER, self.args.alpha)

    def _begin(self) -> None:
        import readout_adapter

        alpha, pairs = readout_adapter.read(self.args.begin)
        if alpha != self.args.alpha:
            raise SystemExit(f"--begin: {self.args.begin.name} has alpha {alpha}, not {self.args.alpha}")
        self.model.begin_with(pairs)

    def _load(self) -> None:
        import torch

        held = torch.load(self.args.work / CHECKPOINT, map_location=self.args.device, weights_only=True)
        with torch.no_grad():
            for mine, theirs in ((self.model.a, held["a"]), (self.model.b, held["b"])):
                for layer, loaded in zip(mine, theirs, strict=True):
                    for name, tensor in layer.items():
                        tensor.copy_(loaded[name])
        self.optimizer.load_state_dict(held["optimizer"])
        self.done = held["done"]
        self.rows_by_task.update(held["rows_by_task"])
        self.phases = held.get("phases", [])


def export(model: Model, path: Path, alpha: float) -> None:
    """Write the adapter for llama-server."""
    import readout_adapter

    temporary = path.with_name(path.name + ".part")
    readout_adapter.write(
        temporary,
        model.pairs(),
        architecture="llama",
        alpha=alpha,
        name="openjev words readout for SmolLM2-135M-Instruct",
        description="Reads an answer by the text of its option. Recipe and data: benchmarks/readout/",
        license_="apache-2.0",
    )
    temporary.replace(path)


# ------------------------------------------------------------------------------------------ what it was made of


def sources(folder: Path, trained: dict[str, int]) -> list[JSON]:
    """Return dataset, licence, source and attribution of every task that was trained on, from the manifest."""
    manifest = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))
    wanted = ("task", "dataset", "licence", "source", "attribution", "upstream_split")
    return [
        {**{key: one[key] for key in wanted if key in one}, "rows_trained": trained[one["task"]]}
        for one in manifest["tasks"]
        if trained.get(one["task"])
    ]


def recipe(training: Training) -> JSON:
    """Return everything that is needed to train the same adapter again, and what it became."""
    import torch

    args = training.args
    settings = {
        key: value for key, value in vars(args).items()
        if key not in ("data", "rows", "work", "model", "publish", "prepare", "resume", "threads", "begin")
    }  # fmt: skip
    return {
        "model": {"file": args.model.name, "sha256": _sha256(args.model)},
        "adapter": {
            "sha256": _sha256(args.work / ADAPTER),
            "bytes": (args.work / ADAPTER).stat().st_size,
            "rank": args.rank,
            "alpha": args.alpha,
            "tensors": "attn q, k, v, output; ffn gate, up, down of every layer; float16",
        },
        "settings": settings,
        "prompt": {
            "option": prompt.REPLY_OPTION_WORDS,
            "level": prompt.REPLY_LEVEL_WORDS,
            "cue": prompt.ANSWER_WORDS,
        },
        "phases": training.phases,
        "trained": {**training.done, "rows_by_task": dict(sorted(training.rows_by_task.items()))},
        "available_rows": dict(sorted(training.counts.items())),
        "mixture": {task: {"weight": weight, "why": why} for task, (weight, why) in data.MIXTURE.items()},
        "held_out": data.HELD_OUT,
        "dropped": data.DROPPED,
        "split": "by a hash of the state's text: 10 % test, 2 % validation; see scripts/readout_data.py",
        "data": sources(args.data, training.rows_by_task),
        "generated": {
            "script": "scripts/readout_tickets.py",
            "messages": data.TICKETS,
            "questions_each": readout_tickets.QUESTIONS_EACH,
            "seed": data.TICKETS_SEED,
        },
        "machine": {
            "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as held:
        return hashlib.file_digest(held, "sha256").hexdigest()


def main(words: Sequence[str] | None = None) -> int:
    """Prepare or train; return the exit code."""
    args = arguments(words)
    if args.prepare:
        prepare(args)
        return 0
    if not args.rows.is_file():
        raise SystemExit(f"no {args.rows}: make it with --prepare")
    training = Training(args)
    training.run()
    written = json.dumps(recipe(training), indent=1, ensure_ascii=False) + "\n"
    (args.work / "recipe.json").write_text(written, encoding="utf-8")
    if args.publish is not None:
        args.publish.mkdir(parents=True, exist_ok=True)
        for name in ("recipe.json", CURVE):
            shutil.copyfile(args.work / name, args.publish / name)
    print(f"the adapter: {args.work / ADAPTER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
