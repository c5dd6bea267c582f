"""What a receipt says about answers to labelled rows: by task, by part, and beside what needs no model. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openjev_cli import answers, metrics

JSON = dict[str, Any]
# "Few" options: what issue and receipts call tasks of at most ten.
FEW = 10


@dataclass(frozen=True)
class Asked:
    """A labelled row that was answered. names: of its options; gold: which is right. changed: how often
    another order of the options gave another answer, of how many orders; reworded: the same of other wordings
    of the question; relabelled: whether other letters did."""

    task: str
    part: str
    kind: str
    names: tuple[str, ...]
    gold: int
    probabilities: tuple[float, ...]
    changed: tuple[int, int] = (0, 0)
    reworded: tuple[int, int] = (0, 0)
    relabelled: bool | None = None

    @property
    def decided(self) -> int:
        """The place of the answer."""
        return answers.place_of(self.probabilities, is_score=self.kind == "score")

    @property
    def is_right(self) -> bool:
        """Whether the answer is the right one."""
        return self.decided == self.gold


@dataclass
class Labels:
    """How often each answer is the right one in the rows of a task, for the majority baseline."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, kind: str, name: str) -> None:
        """Count a right answer."""
        self.counts[kind, name] += 1

    def guess(self, kind: str, names: Sequence[str], gold: int) -> int:
        """Return the offered option that is most often right in all other rows of the task."""

        def other_rows(at: int) -> int:
            return self.counts[kind, names[at]] - (at == gold)

        return max(range(len(names)), key=other_rows)


def summary(rows: Sequence[Asked], labels: Labels) -> JSON:
    """Return the numbers of one task's rows."""
    probabilities = [row.probabilities for row in rows]
    gold = [row.gold for row in rows]
    right = sum(row.is_right for row in rows)
    low, high = metrics.wilson_interval(right, len(rows))
    guessed = sum(labels.guess(row.kind, row.names, row.gold) == row.gold for row in rows)
    few = [row for row in rows if len(row.names) <= FEW]
    found: JSON = {
        "rows": len(rows),
        "accuracy": _rounded(right / len(rows)),
        "interval_95": [_rounded(low), _rounded(high)],
        "chance": _rounded(_mean(1.0 / len(row.names) for row in rows)),
        "majority": _rounded(guessed / len(rows)),
        "nll": _rounded(metrics.nll(probabilities, gold)),
        "brier": _rounded(metrics.brier(probabilities, gold)),
        "ece": _rounded(_ece(rows)),
        "kinds": {},
    }
    if few:
        found["few_options"] = {"rows": len(few), "accuracy": _rounded(_mean(one.is_right for one in few))}
    for kind in ("noul", "choice", "score"):
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            share = _mean(one.is_right for one in of_kind)
            found["kinds"][kind] = {"rows": len(of_kind), "accuracy": _rounded(share)}
    return {**found, **sensitivity(rows)}


def sensitivity(rows: Sequence[Asked]) -> JSON:
    """Return how often answers depend on the order of the options, on the wording of the question, and on the
    letters; {} if not asked."""
    found: JSON = {}
    for name, counts in (
        ("order", [row.changed for row in rows]),
        ("wording", [row.reworded for row in rows]),
    ):
        again = [(changed, asked) for changed, asked in counts if asked]
        if again:
            found[name] = {
                "rows": len(again),
                "changed": _rounded(sum(changed for changed, _ in again) / sum(asked for _, asked in again)),
                "rows_with_any_change": _rounded(_mean(float(changed > 0) for changed, _ in again)),
            }
    relabelled = [row for row in rows if row.relabelled is not None]
    if relabelled:
        found["letters"] = {
            "rows": len(relabelled),
            "changed": _rounded(_mean(float(bool(row.relabelled)) for row in relabelled)),
        }
    return found


def report(rows: Iterable[Asked], labels: dict[str, Labels]) -> JSON:
    """Return the numbers of every task, and of every part: the mean over its tasks, and all its rows pooled."""
    by_task: dict[str, list[Asked]] = defaultdict(list)
    for row in rows:
        by_task[row.task].append(row)
    tasks = {
        task: {"part": of_task[0].part, **summary(of_task, labels[task])}
        for task, of_task in sorted(by_task.items())
    }
    parts: JSON = {}
    for part in sorted({one["part"] for one in tasks.values()}):
        names = [task for task, one in tasks.items() if one["part"] == part]
        parts[part] = average(
            [tasks[name] for name in names], [row for name in names for row in by_task[name]]
        )
    return {"parts": parts, "tasks": tasks}


def average(tasks: Sequence[JSON], rows: Sequence[Asked]) -> JSON:
    """Return the means over tasks, each counting alike, and what all rows say together."""
    # Of a mean of independent shares.
    error = math.sqrt(sum(one["accuracy"] * (1.0 - one["accuracy"]) / one["rows"] for one in tasks))
    mean = _mean(one["accuracy"] for one in tasks)
    half = 1.96 * error / len(tasks)
    right = sum(row.is_right for row in rows)
    few = [one["few_options"]["accuracy"] for one in tasks if "few_options" in one]
    return {
        "tasks": len(tasks),
        "rows": len(rows),
        "accuracy": _rounded(mean),
        "interval_95": [_rounded(max(0.0, mean - half)), _rounded(min(1.0, mean + half))],
        **{name: _rounded(_mean(one[name] for one in tasks)) for name in ("chance", "majority")},
        "above_chance": _rounded(mean - _mean(one["chance"] for one in tasks)),
        "few_options_accuracy": _rounded(_mean(few)) if few else None,
        **{name: _rounded(_mean(one[name] for one in tasks)) for name in ("nll", "brier", "ece")},
        "pooled": {
            "accuracy": _rounded(right / len(rows)),
            "interval_95": [_rounded(end) for end in metrics.wilson_interval(right, len(rows))],
            "ece": _rounded(_ece(rows)),
        },
        **sensitivity(rows),
    }


def lines(found: JSON) -> list[str]:
    """Return the report as lines for a terminal."""
    widths = {"rows": 6, "accuracy": 10, "95 %": 16, "chance": 8, "major.": 8, "nll": 8}
    widths |= {"ece": 7, "order": 7, "words": 7}
    head = " " * 26 + "".join(f"{name:>{width}}" for name, width in widths.items())
    shown = [head]
    for part, mean in found["parts"].items():
        for task, one in found["tasks"].items():
            if one["part"] == part:
                shown.append(_line("  " + task, one))
        shown.append(_line(f"{part}, mean of {mean['tasks']}", mean))
    return shown


def _line(name: str, one: JSON) -> str:
    low, high = one["interval_95"]
    flips = [f"{one[name]['changed']:>7.3f}" if name in one else f"{'':7}" for name in ("order", "wording")]
    return (
        f"{name:26.26}{one['rows']:>6}{one['accuracy']:>10.3f}{f'{low:.3f}-{high:.3f}':>16}"
        f"{one['chance']:>8.3f}{one['majority']:>8.3f}{one['nll']:>8.3f}{one['ece']:>7.3f}"
        + "".join(flips).rstrip()
    )


def _ece(rows: Sequence[Asked]) -> float:
    sure = metrics.confidences([row.probabilities for row in rows], [row.decided for row in rows])
    return metrics.ece(sure, [row.is_right for row in rows])


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return math.fsum(held) / len(held)


def _rounded(value: float) -> float:
    return round(value, 4)
