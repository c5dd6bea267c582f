#!/usr/bin/env python3
"""Measure how right, and how well calibrated, the answers to labelled rows are.

    .venv/bin/python scripts/evaluate.py --data DIR [--split seen|unseen|other|all] [--limit 200]
        [-p PROFILE | --model FILE | --connect URL] [--readout letters|words] [--set KEY=VALUE]
        [--shuffles 5] [--rewordings 5] [--output benchmarks/readout/NAME.json] [--answers rows.jsonl]

Rows are JSON lines (also .gz): id, state, question (as on the wire), label; the file's name is the task. They go
through the same code as `openjev ask`, several at once. --split follows scripts/readout_data.py: `seen` are the
test rows of the tasks the readout was trained on, `unseen` whole tasks that were held out, `other` all others.
--shuffles asks every choice again with its options in so many other orders: how often does the answer change?
With letters it is also asked once with other letters, where the model has enough. --rewordings asks every question
again in so many other wordings that say the same (see REWORDINGS). Beside each accuracy stand chance and the
majority answer. A stored calibration is left out: `--set calibration=FILE` measures with one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import latency_machine as machine
import readout_data as data
import readout_numbers as numbers

from openjev_cli import (
    answers,
    config,
    decide,
    errors,
    labels,
    models,
    pool,
    prompt,
    questions,
    request,
)
from openjev_cli.engine.facts import Facts
from openjev_cli.timing import Stages

JSON = dict[str, Any]
PARTS = {
    "seen": ("test",),
    "unseen": ("unseen",),
    "other": ("unused",),
    "all": ("test", "unseen", "unused"),
}
_SHOWN = {"test": "seen", "unseen": "unseen", "unused": "other"}


# Ways to put a question that do not change what is asked; any question can be put so.
REWORDINGS: tuple[Callable[[str], str], ...] = (
    lambda text: f"Please answer this: {text}",
    lambda text: text.rstrip("?.: "),
    lambda text: f"{text} Go by what is said above.",
    lambda text: text.lower(),
    lambda text: f"About the above: {text}",
)


@dataclass(frozen=True)
class Item:
    """A row to ask. orders: the orders its options are shown in, the written one first. rewordings: in how many
    other wordings it is asked."""

    id: str
    task: str
    part: str
    asked: request.Request
    gold: int
    orders: tuple[tuple[int, ...], ...]
    rewordings: int = 0


class Relabelled(decide.Session):
    """A session that offers other letters: those behind the first that the question needs."""

    def _offered(self, asked: Sequence[questions.Question], facts: Facts) -> tuple[labels.Label, ...] | None:
        first = super()._offered(asked, facts)
        return first and labels.take(facts.labels, 2 * len(first))[len(first) :]


def choose(
    folder: Path,
    parts: Sequence[str],
    tasks: Sequence[str],
    limit: int,
    shuffles: int,
    rewordings: int = 0,
    *,
    compact: bool = True,
) -> list[Item]:
    """Return the rows to ask: of each task the same `limit` rows in every run, whatever their order in the
    file. 0: all. compact: JSON states are sent without optional spaces."""
    found: list[Item] = []
    held_out = data.held_out_keys(folder)
    for task, path in data.files(folder).items():
        if tasks and task not in tasks:
            continue
        if not any(part in parts for part in data.parts_of(task)):
            continue
        rows = []
        for row in data.read_rows(path):
            part = data.part_of(task, row["state"])
            if part not in parts or (part != "unseen" and data.state_key(row["state"]) in held_out):
                continue
            rows.append((data.number_of(str(row["id"])), part, row))
        rows.sort(key=lambda one: one[0])
        for number, part, row in rows[: limit or None]:
            asked = data.question_of(row, compact=compact)
            gold = data.gold_of(row, asked.questions[0])
            orders = orders_of(asked.questions[0], shuffles, random.Random(number))
            found.append(Item(str(row["id"]), task, _SHOWN[part], asked, gold, orders, rewordings))
    return found


def orders_of(question: questions.Question, shuffles: int, rng: random.Random) -> tuple[tuple[int, ...], ...]:
    """Return the orders a question's options are asked in: as written, then up to so many others, all
    different. Only a choice has others."""
    n = len(prompt.options_of(question))
    written = tuple(range(n))
    found = [written]
    if isinstance(question, questions.Choice):
        for _ in range(10 * shuffles):
            if len(found) > shuffles:
                break
            order = tuple(rng.sample(written, n))
            if order not in found:
                found.append(order)
    return tuple(found)


def reordered(question: questions.Question, order: Sequence[int], name: str) -> questions.Question:
    """Return the question with its options in this order, under another id."""
    if isinstance(question, questions.Choice):
        return replace(question, id=name, options=tuple(question.options[at] for at in order))
    return replace(question, id=name)


def distribution(answer: answers.Answer, order: Sequence[int]) -> tuple[float, ...]:
    """Return the probabilities of an answer in the written order of the options."""
    if isinstance(answer, answers.NoulAnswer):
        shown: tuple[float, ...] = (answer.noul, 1.0 - answer.noul)
    elif isinstance(answer, answers.ChoiceAnswer):
        shown = tuple(answer.probabilities.values())
    else:
        shown = answer.probabilities
    found = [0.0] * len(shown)
    for probability, at in zip(shown, order, strict=True):
        found[at] = probability
    return tuple(found)


def ask(session: decide.Session, item: Item) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]] | str:
    """Return the distributions for every order of a row and for every other wording, or why it cannot be
    answered."""
    (question,) = item.asked.questions
    asked = [reordered(question, order, f"q{at}") for at, order in enumerate(item.orders)]
    asked += [
        replace(question, id=f"w{at}", text=reword(question.text))
        for at, reword in enumerate(REWORDINGS[: item.rewordings])
    ]
    orders = (*item.orders, *(item.orders[:1] * item.rewordings))
    try:
        decision = session.decide(
            request.Request(item.asked.state, tuple(asked)), Stages(time.perf_counter())
        )
    except (errors.InputError, errors.EngineError) as exc:
        return exc.message
    found = [distribution(answer, order) for answer, order in zip(decision.answers, orders, strict=True)]
    return found[: len(item.orders)], found[len(item.orders) :]


def measured(
    items: Sequence[Item], session: decide.Session, relabelled: decide.Session | None
) -> Iterator[numbers.Asked | str]:
    """Give what was answered to each row, in order, or why it was not."""

    def work(item: Item) -> numbers.Asked | str:
        answered = ask(session, item)
        if isinstance(answered, str):
            return f"{item.id}: {answered}"
        (written, *others), reworded = answered
        (question,) = item.asked.questions
        first = answers.place(question, written)
        other_letters = None
        if relabelled is not None:
            again = ask(relabelled, replace(item, orders=item.orders[:1], rewordings=0))
            other_letters = None if isinstance(again, str) else answers.place(question, again[0][0]) != first
        return numbers.Asked(
            item.task,
            item.part,
            type(question).__name__.lower(),
            tuple(name for name, _ in prompt.options_of(question)),
            item.gold,
            written,
            (sum(answers.place(question, other) != first for other in others), len(others)),
            (sum(answers.place(question, other) != first for other in reworded), len(reworded)),
            other_letters,
        )

    widest = max(len(item.orders) + item.rewordings for item in items)
    yield from pool.Pool(items, work, workers=session.workers(widest))


def label_counts(folder: Path, tasks: set[str]) -> dict[str, numbers.Labels]:
    """Return how often each answer is right in all rows of each task."""
    found: dict[str, numbers.Labels] = defaultdict(numbers.Labels)
    for task, path in data.files(folder).items():
        if task in tasks:
            for row in data.read_rows(path):
                (question,) = data.question_of(row).questions
                name, _ = prompt.options_of(question)[data.gold_of(row, question)]
                found[task].add(type(question).__name__.lower(), name)
    return found


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of labelled rows")
    add("--split", choices=sorted(PARTS), default="all")
    add("--task", action="append", default=[], metavar="NAME", help="only this task; may repeat")
    add("--limit", type=int, default=0, metavar="N", help="rows of each task (0: all)")
    add("-p", "--profile")
    add("--model", help="a GGUF file instead of a profile's")
    add("--connect", help="URL or socket of a running server")
    add("--readout", choices=("letters", "words"))
    add("--prior", help="share of what is said without the state that is taken off")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting; may repeat")
    add("--shuffles", type=int, default=0, metavar="N", help="other orders of the options")
    add(
        "--rewordings",
        type=int,
        default=0,
        metavar="N",
        choices=range(len(REWORDINGS) + 1),
        help=f"other wordings of the question, at most {len(REWORDINGS)}",
    )
    add("--output", type=Path, help="write the receipt here")
    add("--answers", type=Path, help="write every row's probabilities here, JSON lines")
    chosen = parser.parse_args(words)
    for one in chosen.set:
        if "=" not in one:
            parser.error(f"--set {one}: write KEY=VALUE")
    return chosen


def settings_of(args: argparse.Namespace) -> config.Config:
    """Return the settings that the flags name."""
    flags: dict[str, object] = {
        name: getattr(args, name) for name in ("profile", "model", "connect", "readout", "prior")
    }
    flags["calibration"] = "off"
    for one in args.set:
        key, _, value = one.partition("=")
        flags[config.setting(key).attribute] = value
    return config.load_from_process({**flags, "quiet": True})


def run(args: argparse.Namespace) -> JSON:
    """Ask everything; return the receipt."""
    settings = settings_of(args)
    items = choose(
        args.data,
        PARTS[args.split],
        args.task,
        args.limit,
        args.shuffles,
        args.rewordings,
        compact=settings.compact_json,
    )
    if not items:
        raise SystemExit("no rows to ask")
    readout = models.readout(settings, None) if settings.connect else models.resolve(settings).readout
    began_s = time.monotonic()
    rows: list[numbers.Asked] = []
    refused: list[str] = []
    with decide.Session(settings, os.environ) as session:
        provenance = session.provenance().to_json()
        by_letters = args.shuffles > 0 and readout.kind == "letters"
        other = Relabelled(settings, os.environ) if by_letters else None
        answered = measured(items, session, other)
        with args.answers.open("w", encoding="utf-8") if args.answers else _nowhere() as held:
            for at, (item, one) in enumerate(zip(items, answered, strict=True), start=1):
                if isinstance(one, str):
                    refused.append(one)
                    continue
                rows.append(one)
                if held is not None:
                    entry = {"id": item.id, "task": one.task, "kind": one.kind, "gold": one.gold}
                    held.write(json.dumps({**entry, "probabilities": one.probabilities}) + "\n")
                if at % 500 == 0:
                    print(f"{at} of {len(items)}", file=sys.stderr, flush=True)
        if other is not None:
            other.close()
    found = numbers.report(rows, label_counts(args.data, {row.task for row in rows}))
    return {
        "script": "evaluate.py",
        "date": datetime.date.today().isoformat(),
        "asked": {
            "split": args.split,
            "limit": args.limit,
            "shuffles": args.shuffles,
            "rewordings": args.rewordings,
            "readout": readout.kind,
            "prior": readout.prior,
            "calibration": provenance["settings"].get("calibration", "off"),
            "settings": list(args.set),
        },
        "engine": {key: value for key, value in provenance.items() if key not in ("machine", "argv")},
        "machine": machine.facts(),
        "seconds": round(time.monotonic() - began_s, 1),
        "refused": {"rows": len(refused), "first": refused[:5]},
        **found,
    }


def _nowhere() -> Any:
    import contextlib

    return contextlib.nullcontext(None)


def main(words: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    args = arguments(words)
    try:
        receipt = run(args)
    except errors.OpenjevError as exc:
        print(f"error: {exc.message}\nnext: {exc.next_step}", file=sys.stderr)
        return 2
    print("\n".join(numbers.lines(receipt)))
    if refused := receipt["refused"]["rows"]:
        print(f"{refused} rows were refused; {receipt['refused']['first'][0]}", file=sys.stderr)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(receipt, indent=1, ensure_ascii=False)
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
