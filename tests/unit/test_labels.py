from __future__ import annotations

import math

import pytest

from openjev_cli import errors, labels
from openjev_cli.labels import Label


def test_candidates_are_letters_then_pairs_each_once() -> None:
    tried = labels.candidates()
    assert (tried[0], tried[25], tried[26], tried[-1]) == ("A", "Z", "AA", "ZZ")
    assert len(set(tried)) == len(tried) == 702


def test_a_label_is_kept_only_if_it_adds_exactly_one_token_to_the_cue() -> None:
    readings = [
        ("A", (1, 2, 10)),
        ("B", (1, 2, 11, 12)),  # two tokens
        ("C", (1, 9, 13)),  # changes the cue itself
        ("D", (1, 2)),  # nothing
        ("E", (1, 2, 10)),  # the token of A again
        ("F", (1, 2, 14)),
    ]
    assert labels.verify((1, 2), readings) == (Label("A", 10), Label("F", 14))


def test_no_more_than_255_labels_are_kept() -> None:
    readings = [(text, (7, 100 + i)) for i, text in enumerate(labels.candidates())]
    found = labels.verify((7,), readings)
    assert len(found) == 255
    assert found[-1] == Label(labels.candidates()[254], 354)


def test_a_question_with_more_options_than_labels_is_refused_with_both_numbers() -> None:
    with pytest.raises(errors.EngineError) as caught:
        labels.take((Label("A", 1), Label("B", 2)), 3)
    assert caught.value.message == ("a question has 3 options, but this model has only 2 single-token labels")


def test_probabilities_are_the_softmax_whatever_the_shared_offset() -> None:
    plain = labels.probabilities((0.0, math.log(3.0)))
    assert plain == pytest.approx((0.25, 0.75), abs=1e-15)
    assert labels.probabilities((100.0, 100.0 + math.log(3.0))) == pytest.approx(plain, abs=1e-12)
    assert math.fsum(labels.probabilities((1.0, -700.0, 3.5))) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("scores", [(0.0, math.nan), (-math.inf, -math.inf), (math.inf, 0.0), ()])
def test_scores_that_are_no_numbers_are_a_readout_error(scores: tuple[float, ...]) -> None:
    with pytest.raises(errors.ReadoutError):
        labels.probabilities(scores)


def test_log_probabilities_are_exact_where_probabilities_round_to_nothing() -> None:
    assert labels.log_probabilities((5.0, 5.0 + math.log(3.0))) == pytest.approx(
        (math.log(0.25), math.log(0.75)), abs=1e-12
    )
    assert labels.log_probabilities((0.0, -2000.0)) == (0.0, -2000.0)
    assert labels.log_probabilities((0.0, -math.inf))[1] == -math.inf
    with pytest.raises(errors.ReadoutError):
        labels.log_probabilities((0.0, math.nan))
