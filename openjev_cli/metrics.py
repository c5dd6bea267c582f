"""How good probabilities are: accuracy, calibration, and how much of the work they could do alone.

Pure numbers. probabilities: a distribution for each row, in option order, each summing to 1. labels: for each
row the place of the right option. decided: the place of its answer (`answers.place_of`; of a rubric that need
not be the most probable one). Everything raises ValueError when there is no row at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A right option of probability 0 would make the whole log-likelihood infinite.
LEAST_P = 1e-12


@dataclass(frozen=True)
class Bin:
    """A bin of confidences in (low, high]. confidence, accuracy: means over its `count` rows; 0 for none."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Automated:
    """What can be left to the answers alone. share: of all rows, 0 to 1. threshold: rows with at least this
    confidence; None when there is no such threshold (share is then 0). count: how many rows that are."""

    share: float
    threshold: float | None
    count: int


def confidences(probabilities: Sequence[Sequence[float]], decided: Sequence[int]) -> list[float]:
    """Return the probability of each row's answer."""
    return [p[place] for p, place in zip(probabilities, decided, strict=True)]


def correct(decided: Sequence[int], labels: Sequence[int]) -> list[bool]:
    """Return whether each row's answer is right."""
    return [place == label for place, label in zip(decided, labels, strict=True)]


def accuracy(correct: Sequence[bool]) -> float:
    """Return the share of right answers, 0 to 1."""
    return sum(correct) / _count(correct)


def nll(probabilities: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """Return the mean negative natural log of the right option's probability (taken as 1e-12 at least)."""
    right = (p[label] for p, label in zip(probabilities, labels, strict=True))
    return -math.fsum(math.log(max(p, LEAST_P)) for p in right) / _count(labels)


def brier(probabilities: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """Return the mean over rows of sum_k (p_k - [k is right])^2, 0 to 2 (Brier 1950, equation 2)."""
    total = math.fsum(
        math.fsum((one - (k == label)) ** 2 for k, one in enumerate(p))
        for p, label in zip(probabilities, labels, strict=True)
    )
    return total / _count(labels)


def ece(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Return the expected calibration error, 0 to 1: sum_m |B_m|/n * |accuracy(B_m) - confidence(B_m)| over
    bins of equal width of the answers' probabilities (Guo et al. 2017, "On Calibration of Modern Neural
    Networks", equation 3)."""
    found = reliability_bins(confidences, correct, bins)
    return math.fsum(one.count * abs(one.accuracy - one.confidence) for one in found) / _count(correct)


def reliability_bins(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> list[Bin]:
    """Return the `bins` bins of a reliability diagram, empty ones too: bin m holds the rows whose answer has a
    probability in ((m - 1)/bins, m/bins] (Guo et al. 2017, section 2)."""
    _count(correct)
    held: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for confidence, is_right in zip(confidences, correct, strict=True):
        held[min(bins, max(1, math.ceil(confidence * bins))) - 1].append((confidence, is_right))
    return [
        Bin(
            m / bins,
            (m + 1) / bins,
            len(rows),
            math.fsum(confidence for confidence, _ in rows) / max(1, len(rows)),
            sum(is_right for _, is_right in rows) / max(1, len(rows)),
        )
        for m, rows in enumerate(held)
    ]


def automate(confidences: Sequence[float], correct: Sequence[bool], error: float) -> Automated:
    """Return the largest part of the rows, by confidence, of which at most the share `error` is wrong.

    Rows of equal confidence stay together, since no threshold tells them apart.
    """
    n = _count(confidences)
    ranked = sorted(zip(confidences, correct, strict=True), key=lambda row: -row[0])
    best, wrong = Automated(0.0, None, 0), 0
    for count, (confidence, is_right) in enumerate(ranked, start=1):
        wrong += not is_right
        is_edge = count == n or ranked[count][0] < confidence
        # As counts, so that 1 of 100 is 1 % whatever floats make of it.
        if is_edge and wrong <= error * count + 1e-9:
            best = Automated(count / n, confidence, count)
    return best


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return the confidence interval of a share by Wilson's score method (Wilson 1927); z = 1.96 is 95 %.
    Without a trial it is (0, 1): nothing is known."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1.0 - share) / n + z * z / (4 * n * n))
    scale = 1.0 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _count(rows: Sequence[object]) -> int:
    if not rows:
        raise ValueError("no rows to measure")
    return len(rows)
