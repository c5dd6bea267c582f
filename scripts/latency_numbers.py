"""The arithmetic of the speed measurements: ratios, ideals, goals, pairs. Pure; scripts/latency.py measures.

Everything here works on the receipt's own JSON values, so that tables drawn later say what the run said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]

GRID_TOKENS = 512
TOLERANCE = 1e-5
# What a row is held against, by the name a case gives it.
GOALS = {
    "one": "<= 1.00 + twice the A/A difference",
    "ideal": "<= 1.10 x ideal",
    "repeat": "<= 1.2 x S / (P + S) of its own cold time + 15 ms",
    "counted": "reads question tokens only",
    "resumed": "resumes from the nearest 512-token checkpoint",
    "faster": "more states a second than one at a time",
    "prepare": "<= 0.5 of decode + full resize",
    "": "",
}
REFERENCE = "before"
REPEAT_SLACK_MS = 15.0


def ideal_ratio(
    prefix: int, suffixes: Sequence[int], *, image_ms: float = 0.0, token_ms: float = 1.0
) -> float:
    """Return (P + sum S) / sum (P + S): what reading the state once would cost, as a share of reading it for
    every question. image_ms: time of encoding the pictures once, in proportion to token_ms, that of a token."""
    fixed = image_ms + prefix * token_ms
    return (fixed + sum(suffixes) * token_ms) / (len(suffixes) * fixed + sum(suffixes) * token_ms)


def aa_difference(first_ms: Sequence[float], second_ms: Sequence[float]) -> float:
    """Return how far two runs of the same thing lie apart: |ratio of the medians - 1|."""
    return abs(statistics.median(first_ms) / statistics.median(second_ms) - 1.0)


def least_read(prefix: int, suffixes: Sequence[int], common: int) -> int:
    """Return the tokens that must be read when `common` of the prefix were read before: all of it means none,
    part of it that the nearest grid point below is resumed from."""
    start = prefix if common >= prefix else common // GRID_TOKENS * GRID_TOKENS
    return prefix - start + sum(suffixes)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many ids two sequences share at their start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


@dataclass
class Pairs:
    """Answers compared with the reference's. largest: the largest difference of any probability."""

    questions: int = 0
    flipped: int = 0
    largest: float = 0.0
    other_prompt: int = 0

    def add(self, reference: JSON, other: JSON) -> None:
        """Compare one step of two endpoints. Where they read prompts of other lengths, only that is counted."""
        if reference["tokens"] != other["tokens"]:
            self.other_prompt += len(reference["answers"])
            return
        for one, two in zip(reference["answers"], other["answers"], strict=True):
            self.questions += 1
            self.flipped += winner(one) != winner(two)
            self.largest = max(self.largest, *(abs(p - q) for p, q in zip(one, two, strict=True)))

    def to_json(self) -> JSON:
        """Return what the receipt keeps."""
        return {
            "questions": self.questions,
            "flipped": self.flipped,
            "largest_difference": self.largest,
            "other_prompt": self.other_prompt,
        }


def winner(probabilities: Sequence[float]) -> int:
    """Return the position of the decision; a tie goes to the first, as in openjev's own answers."""
    return max(range(len(probabilities)), key=lambda i: probabilities[i])


def median_ms(case: JSON, endpoint: str, label: str) -> float | None:
    """Return the median wall-clock time of a row, None when that endpoint did not take it."""
    samples = case["samples"].get(endpoint, {}).get(label, [])
    return statistics.median(sample["wall_ms"] for sample in samples) if samples else None


def rows(receipt: JSON) -> list[JSON]:
    """Return one row for each label of each case that was measured, in order, with ratio, ideal and goal."""
    found: list[JSON] = []
    noise = {
        name: case["aa_difference"] for name, case in receipt["cases"].items() if "aa_difference" in case
    }
    for name, case in receipt["cases"].items():
        if case["kind"] == "steps":
            found += [_row(receipt, name, label, noise) for label in case["goals"]]
        elif case["kind"] == "single":
            found.append({"case": name, "label": name, **case["row"]})
    return found


def _row(receipt: JSON, name: str, label: str, noise: dict[str, float]) -> JSON:
    case = receipt["cases"][name]
    counts = case["counts"][label]
    medians = {endpoint: median_ms(case, endpoint, label) for endpoint in case["samples"]}
    row: JSON = {
        "case": name,
        "label": label,
        "goal": case["goals"][label],
        "median_ms": {endpoint: ms for endpoint, ms in medians.items() if ms is not None},
        "tokens_read": {
            endpoint: [sample["tokens_read"] for sample in samples[label]][-1]
            for endpoint, samples in case["samples"].items()
            if samples.get(label)
        },
        **counts,
        "ideal": _ideal(receipt, case, counts),
    }
    row["pairs"] = {
        endpoint: by_label[label] for endpoint, by_label in case["pairs"].items() if label in by_label
    }
    after, before, native = (medians.get(endpoint) for endpoint in ("after", REFERENCE, "native"))
    row["ratio"] = after / before if after is not None and before is not None else None
    row["to_native"] = after / native if after is not None and native is not None else None
    aa = noise.get(f"aa_{name}", max(noise.values(), default=None))
    row["aa_difference"] = aa
    row["limit"], row["is_met"] = _verdict(row, case, medians, counts, aa)
    row["native_is_met"] = None if row["to_native"] is None else row["to_native"] <= 1.0 + 2.0 * (aa or 0.0)
    return row


def _ideal(receipt: JSON, case: JSON, counts: JSON) -> float | None:
    """Return the fewest tokens that can be read, as a share of reading everything for every question."""
    if not counts["full"]:
        return None
    image_ms = case.get("encode_ms")
    if image_ms is None:
        return float(counts["least_read"] / counts["full"])
    # Of the same picture, one question: what is left of its time is that of the tokens.
    label = f"{case['picture']}_1q"
    one = receipt["cases"].get(label)
    cold_ms = median_ms(one, REFERENCE, label) if one else None
    if one is None or cold_ms is None:
        return None
    token_ms = max(0.0, cold_ms - image_ms) / one["counts"][label]["full"]
    return ideal_ratio(counts["prefix"], counts["suffixes"], image_ms=image_ms, token_ms=token_ms)


def _verdict(
    row: JSON, case: JSON, medians: dict[str, float | None], counts: JSON, aa: float | None
) -> tuple[float | None, bool | None]:
    """Return the goal as a number (a ratio, milliseconds or tokens) and whether it is met; None = not known."""
    goal, after = row["goal"], medians.get("after")
    if goal in ("one", "ideal"):
        if row["ratio"] is None:
            return None, None
        if goal == "one":
            limit = None if aa is None else 1.0 + 2.0 * aa
        else:
            limit = None if row["ideal"] is None else 1.10 * row["ideal"]
        return limit, None if limit is None else row["ratio"] <= limit
    if goal == "repeat":
        cold_ms = median_ms(case, "after", f"{row['case']}_cold")
        if after is None or cold_ms is None:
            return None, None
        share = sum(counts["suffixes"]) / (counts["prefix"] + sum(counts["suffixes"]))
        limit = 1.2 * share * cold_ms + REPEAT_SLACK_MS
        return limit, after <= limit
    if goal in ("counted", "resumed"):
        read = row["tokens_read"].get("after")
        return counts["least_read"], None if read is None else read <= counts["least_read"]
    return None, None


@dataclass(frozen=True)
class Failure:
    """Something that was missed. kind: goal, native, flipped or differs. values: the figures that belong to it."""

    label: str
    kind: str
    values: JSON

    def __str__(self) -> str:
        texts = {
            "goal": "goal missed: {goal}",
            "native": "slower than native ({ratio:.3f})",
            "flipped": "{flipped} of {questions} decisions of {endpoint} differ",
            "differs": "probabilities of {endpoint} differ by {largest:.1e}",
        }
        return f"{self.label}: " + texts[self.kind].format(**self.values)


def failures(found: Sequence[JSON]) -> list[Failure]:
    """Return every goal that was missed, and every row whose answers differ."""
    missed = []
    for row in found:
        label = row["label"]
        if row["is_met"] is False:
            missed.append(Failure(label, "goal", {"goal": GOALS[row["goal"]]}))
        if row.get("native_is_met") is False:
            missed.append(Failure(label, "native", {"ratio": row["to_native"]}))
        for endpoint, pairs in row.get("pairs", {}).items():
            values = {"endpoint": endpoint, "flipped": pairs["flipped"], "questions": pairs["questions"]}
            if pairs["flipped"]:
                missed.append(Failure(label, "flipped", values))
            largest = pairs["largest_difference"]
            if largest > TOLERANCE:
                missed.append(Failure(label, "differs", {"endpoint": endpoint, "largest": largest}))
    return missed
