"""Metrics against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from openjev_cli import metrics

# Three rows of two options and one of three: right, right, wrong, right.
P = [(0.9, 0.1), (0.3, 0.7), (0.62, 0.38), (0.2, 0.6, 0.2)]
LABELS = [0, 1, 1, 1]
DECIDED = [0, 1, 0, 1]
SURE = [0.9, 0.7, 0.62, 0.6]
RIGHT = [True, True, False, True]


def test_accuracy_and_confidence_are_those_of_the_answer() -> None:
    assert metrics.correct(DECIDED, LABELS) == RIGHT
    assert metrics.accuracy(RIGHT) == 0.75
    assert metrics.confidences(P, DECIDED) == SURE
    # An answer need not be the most probable option.
    assert metrics.confidences([(0.4, 0.2, 0.4)], [1]) == [0.2]


def test_nll_is_the_mean_log_of_what_the_right_option_got() -> None:
    expected = -(math.log(0.9) + math.log(0.7) + math.log(0.38) + math.log(0.6)) / 4
    assert metrics.nll(P, LABELS) == pytest.approx(expected, abs=1e-12)
    assert metrics.nll([(0.0, 1.0)], [0]) == pytest.approx(-math.log(1e-12))


def test_brier_sums_over_all_options() -> None:
    squares = [0.01 + 0.01, 0.09 + 0.09, 0.62**2 + 0.62**2, 0.04 + 0.16 + 0.04]
    assert metrics.brier(P, LABELS) == pytest.approx(sum(squares) / 4, abs=1e-12)


def test_ece_of_a_hand_computed_example() -> None:
    # 5 bins: (0.4, 0.6] holds 0.6 (right); (0.6, 0.8] holds 0.7 (right) and 0.62 (wrong); (0.8, 1] holds 0.9.
    gaps = 1 * abs(1 - 0.6) + 2 * abs(0.5 - 0.66) + 1 * abs(1 - 0.9)
    assert metrics.ece(SURE, RIGHT, bins=5) == pytest.approx(gaps / 4, abs=1e-12)


def test_a_reliability_bin_holds_its_upper_end() -> None:
    bins = metrics.reliability_bins([0.2, 1.0], [True, False], bins=5)
    assert [one.count for one in bins] == [1, 0, 0, 0, 1]
    assert (bins[0].confidence, bins[0].accuracy) == (0.2, 1.0)
    assert (bins[4].low, bins[4].high, bins[4].accuracy) == (0.8, 1.0, 0.0)


def test_automate_takes_the_largest_part_with_few_enough_errors() -> None:
    confidences = [0.99, 0.95, 0.9, 0.8, 0.7]
    correct = [True, True, False, True, False]
    assert metrics.automate(confidences, correct, 0.0) == metrics.Automated(0.4, 0.95, 2)
    # One of four is wrong at 0.8, though at 0.9 it was one of three.
    assert metrics.automate(confidences, correct, 0.25) == metrics.Automated(0.8, 0.8, 4)
    assert metrics.automate(confidences, correct, 1.0) == metrics.Automated(1.0, 0.7, 5)


def test_automate_does_not_part_rows_of_equal_confidence() -> None:
    assert metrics.automate([0.9, 0.9], [True, False], 0.1) == metrics.Automated(0.0, None, 0)
    assert metrics.automate([0.9, 0.9], [False, True], 0.5) == metrics.Automated(1.0, 0.9, 2)


def test_automate_counts_one_of_a_hundred_as_one_percent() -> None:
    confidences = [1 - i / 1000 for i in range(100)]
    assert metrics.automate(confidences, [True] * 99 + [False], 0.01).count == 100


def test_wilson_interval_of_a_known_example() -> None:
    # 10 of 20: 0.5 +- 0.2007 (Newcombe 1998's method 3).
    assert metrics.wilson_interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert metrics.wilson_interval(0, 10)[0] == 0.0
    assert metrics.wilson_interval(10, 10)[1] == pytest.approx(1.0)
    assert metrics.wilson_interval(0, 0) == (0.0, 1.0)


def test_no_rows_have_no_measure() -> None:
    for measure in (metrics.nll, metrics.brier, metrics.ece):
        with pytest.raises(ValueError, match="no rows"):
            measure([], [])
    with pytest.raises(ValueError, match="no rows"):
        metrics.accuracy([])
