#!/usr/bin/env python3
"""TF-IDF and logistic regression on the rows the readout was trained on: what does it take to beat that?

    python scripts/baseline_tfidf.py --data DIR [--recipe benchmarks/readout/recipe.json] [--limit 200]
        [--output benchmarks/readout/tfidf.json]                   (extra `train`: numpy, scikit-learn)

For each task one model, fitted on its training rows. An option is described by the TF-IDF weights of its words, by
pairs (word of the state, word of the option), and by how far state and option overlap; the model says which option
is right. With --recipe it learns from as many rows of each task as the readout saw; else from all.

What it cannot do: it knows no word that its rows did not hold, and nothing of what words mean. For a task it was
not trained on, one model of all tasks is used; it can go by overlapping words, and by words that spoke for or
against an option elsewhere. A question it has not seen (another instruction) is only a few more words to it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import readout_data as data
import readout_numbers as numbers

from openjev_cli import prompt, questions
from openjev_cli import state as states

JSON = dict[str, Any]
# Words of the state that are paired with the words of an option: more are noise, and slow.
MOST_STATE_WORDS, MOST_OPTION_WORDS = 60, 12
FEATURES = 2**20
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Case:
    """A row in words."""

    id: str
    task: str
    part: str
    kind: str
    state: tuple[str, ...]
    names: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    gold: int


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, in lower case; a name_like_this is several."""
    return tuple(_WORD.findall(text.replace("_", " ").casefold()))


def shown(state: states.State) -> str:
    """Return the state as text."""
    return " ".join(m.content for m in state.messages) if state.kind == "chat" else state.text


def case_of(row: JSON, task: str, part: str) -> Case:
    """Return a row in words. A yes/no question is what its yes and its no are about."""
    asked = data.question_of(row)
    (question,) = asked.questions
    offered = prompt.options_of(question)
    options = []
    for name, description in offered:
        text = f"{name} {description or ''}"
        if not isinstance(question, questions.Choice):
            text += " " + question.text
        options.append(words(text)[: MOST_OPTION_WORDS * 2])
    return Case(
        str(row["id"]),
        task,
        part,
        type(question).__name__.lower(),
        words(shown(asked.state)),
        tuple(name for name, _ in offered),
        tuple(options),
        data.gold_of(row, question),
    )


def features(case: Case, at: int) -> dict[str, float]:
    """Return what is known of one option of a row. The overlap is in words, of those the option has."""
    state = list(dict.fromkeys(case.state))[:MOST_STATE_WORDS]
    option = list(dict.fromkeys(case.options[at]))[:MOST_OPTION_WORDS]
    common = set(state) & set(option)
    name = f"{case.kind}:{case.names[at].casefold()}"
    found: dict[str, float] = {"overlap": len(common) / max(1, len(option)), f"name {name}": 1.0}
    found.update({f"o {word}": 1.0 for word in option})
    found.update({f"n {word} {name}": 1.0 for word in state})
    found.update({f"p {one} {other}": 1.0 for one in state for other in option})
    return found


class Model:
    """Says which option of a row is right."""

    def __init__(self, cases: Sequence[Case]) -> None:
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        self._model = make_pipeline(
            FeatureHasher(FEATURES, alternate_sign=False),
            TfidfTransformer(sublinear_tf=True),
            LogisticRegression(C=10.0, class_weight="balanced", max_iter=200, solver="liblinear"),
        )
        described = [features(case, at) for case in cases for at in range(len(case.names))]
        right = [at == case.gold for case in cases for at in range(len(case.names))]
        self._model.fit(described, right)

    def distributions(self, cases: Sequence[Case]) -> list[tuple[float, ...]]:
        """Return the probabilities of the options of each row: the softmax of their log-odds."""
        described = [features(case, at) for case in cases for at in range(len(case.names))]
        odds = self._model.decision_function(described)
        found = []
        start = 0
        for case in cases:
            own = odds[start : start + len(case.names)]
            start += len(case.names)
            weights = np.exp(own - own.max())
            found.append(tuple(float(one) for one in weights / weights.sum()))
        return found


def chosen(cases: Iterable[Case], limit: int) -> list[Case]:
    """Return the rows that evaluate.py takes with this limit."""
    ordered = sorted(cases, key=lambda case: data.number_of(case.id))
    return ordered[: limit or None]


def run(args: argparse.Namespace) -> JSON:
    """Fit and measure; return the receipt."""
    recipes = [json.loads(path.read_text(encoding="utf-8")) for path in args.recipe]
    read = sum((Counter(recipe["trained"]["rows_by_task"]) for recipe in recipes), Counter[str]())
    most: dict[str, int] | None = dict(read) if recipes else None
    held_out = data.held_out_keys(args.data)
    training: dict[str, list[Case]] = defaultdict(list)
    asked: dict[str, list[Case]] = {}
    labels: dict[str, numbers.Labels] = defaultdict(numbers.Labels)
    for task, path in data.files(args.data).items():
        if data.parts_of(task) == ("unused",):
            continue
        tested: list[Case] = []
        for row in data.read_rows(path):
            part = data.part_of(task, row["state"])
            if task not in data.HELD_OUT and data.state_key(row["state"]) in held_out:
                continue
            case = case_of(row, task, {"test": "seen"}.get(part, part))
            labels[task].add(case.kind, case.names[case.gold])
            if part == "train":
                training[task].append(case)
            elif part in ("test", "unseen"):
                tested.append(case)
        asked[task] = chosen(tested, args.limit)
        if most is not None:
            training[task] = chosen(training[task], most.get(task, 0)) if most.get(task) else []
    rows: list[numbers.Asked] = []
    mixed = [case for task in sorted(training) for case in training[task]]
    random.Random(0).shuffle(mixed)
    everything = Model(mixed[: args.most_rows])
    for task, cases in asked.items():
        if not cases:
            continue
        model = everything if task in data.HELD_OUT or not training[task] else Model(training[task])
        for case, probabilities in zip(cases, model.distributions(cases), strict=True):
            rows.append(numbers.Asked(task, case.part, case.kind, case.names, case.gold, probabilities))
        print(f"{task}: {len(training[task])} rows", file=sys.stderr, flush=True)
    return {
        "script": "baseline_tfidf.py",
        "date": datetime.date.today().isoformat(),
        "trained_rows": {task: len(cases) for task, cases in sorted(training.items())},
        "as_many_rows_as": [recipe["adapter"]["sha256"] for recipe in recipes] or None,
        "limit": args.limit,
        "unseen": f"one model of {min(len(mixed), args.most_rows)} rows of all seen tasks",
        **numbers.report(rows, labels),
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of labelled rows")
    add(
        "--recipe",
        type=Path,
        action="append",
        default=[],
        help="recipe.json of a training: learn from as many rows as it did; may repeat for one that went on",
    )
    add("--limit", type=int, default=0, metavar="N", help="rows of each task to measure (0: all)")
    add("--most-rows", type=int, default=20000, metavar="N", help="of the one model for unseen tasks")
    add("--output", type=Path, help="write the receipt here")
    args = parser.parse_args(given)
    receipt = run(args)
    print("\n".join(numbers.lines(receipt)))
    if args.output is not None:
        text = json.dumps(receipt, indent=1, ensure_ascii=False)
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
