from __future__ import annotations

import math

import pytest

from openjev_cli import answers, questions, timing

TIMING = timing.Timing(parse_ms=1.0, prepare_ms=2.0, queue_ms=0.5, inference_ms=10.0)


def test_choice_confidence_is_0_for_uniform_and_1_for_certain_whatever_the_number_of_options() -> None:
    for n in (2, 3, 40):
        assert answers.choice_confidence([1 / n] * n) == pytest.approx(0.0, abs=1e-12)
        assert answers.choice_confidence([1.0] + [0.0] * (n - 1)) == 1.0
    assert answers.choice_confidence([0.7, 0.2, 0.1]) == pytest.approx((3 * 0.7 - 1) / 2)


def test_score_confidence_is_the_distance_formula() -> None:
    for n in (2, 5, 10):
        assert answers.score_confidence([1.0] + [0.0] * (n - 1)) == 1.0
    # Mode at 1: E|i - 1| = 0.2 + 0.1; even spread over three levels: 2/3.
    assert answers.score_confidence([0.2, 0.7, 0.1]) == pytest.approx(1 - 0.3 / (2 / 3))
    # Uniform: the first mode counts, and the value never falls below 0.
    assert answers.score_confidence([0.25] * 4) == 0.0


def test_a_noul_is_the_probability_of_yes_and_has_no_confidence_on_the_wire() -> None:
    answer = answers.answer(questions.Noul("q", "Really?"), (0.3, 0.7))
    assert answer.to_wire() == {"type": "noul", "noul": 0.3}
    assert answer.value == "no"
    assert answer.ranked == (("no", 0.7), ("yes", 0.3))


def test_a_choice_is_the_likeliest_option_by_its_exact_name() -> None:
    question = questions.Choice("q", "Which?", (questions.Option("A"), questions.Option(" A", "d")))
    answer = answers.answer(question, (0.25, 0.75))
    assert answer.to_wire() == {
        "type": "choice",
        "choice": " A",
        "probabilities": {"A": 0.25, " A": 0.75},
        "confidence": 0.5,
    }


def test_a_tie_goes_to_the_option_that_was_written_first() -> None:
    question = questions.Choice("q", "Which?", (questions.Option("x"), questions.Option("y")))
    assert answers.answer(question, (0.5, 0.5)).value == "x"


def test_a_score_is_the_expected_level_with_its_legend() -> None:
    levels = (questions.Level("calm", {"label": "calm"}), questions.Level("cross", "cross"))
    answer = answers.answer(questions.Score("q", "How?", levels), (0.4, 0.6))
    assert answer.to_wire() == {
        "type": "score",
        "score": pytest.approx(0.6),
        "legend": {"0": {"label": "calm"}, "1": "cross"},
        "probabilities": {"0": 0.4, "1": 0.6},
        "confidence": pytest.approx(1 - 0.4 / 0.5),
    }
    assert answer.value == "cross"


def _decision(**changes: object) -> answers.Decision:
    fields: dict[str, object] = {
        "model": "m",
        "answers": (answers.NoulAnswer("b", 0.5), answers.NoulAnswer("a", 1.0)),
        "usage": answers.Usage(100, 2, 40),
        "timing": TIMING,
    }
    return answers.Decision(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_wire_shape_of_a_decision_keeps_the_order_of_the_questions() -> None:
    wire = _decision().to_wire()
    assert list(wire["answers"]) == ["b", "a"]
    assert wire == {
        "model": "m",
        "answers": {"b": {"type": "noul", "noul": 0.5}, "a": {"type": "noul", "noul": 1.0}},
        "usage": {"input_tokens": 100, "output_tokens": 2},
        "timing": {
            "processing_ms": 13.5,
            "parse_ms": 1.0,
            "prepare_ms": 2.0,
            "queue_ms": 0.5,
            "inference_ms": 10.0,
        },
    }


def test_timing_can_be_left_out_and_start_is_there_only_if_waited_for() -> None:
    assert "timing" not in _decision().to_wire(with_timing=False)
    started = timing.Timing(1.0, 2.0, 0.5, 10.0, start_ms=100.0)
    wire = _decision(timing=started).to_wire()
    assert wire["timing"]["start_ms"] == 100.0
    assert wire["timing"]["processing_ms"] == 113.5


def test_numbers_of_a_decision_are_finite() -> None:
    answer = answers.answer(questions.Noul("q", "?"), (0.1, 0.9))
    assert all(math.isfinite(p) for _, p in answer.ranked)


def test_the_orders_and_the_calibration_are_on_the_wire_only_when_there_were_any() -> None:
    orders = answers.Orders(4, 0.25, True)
    shown = {"n": 4, "spread": 0.25, "flips": True}
    level = questions.Level("x", "x")
    option = questions.Option
    for question in (
        questions.Noul("q", "?"),
        questions.Choice("q", "?", (option("x"), option("y"))),
        questions.Score("q", "?", (level, level)),
    ):
        assert "orders" not in answers.answer(question, (0.4, 0.6)).to_wire()
        assert answers.answer(question, (0.4, 0.6), orders).to_wire()["orders"] == shown
    wire = _decision(calibration="fast@1").to_wire()
    assert list(wire)[:2] == ["model", "calibration"]
    assert wire["calibration"] == "fast@1"
    over_http = _decision(calibration="fast@1").to_wire(is_http=True)
    assert over_http == {("x_calibration" if k == "calibration" else k): v for k, v in wire.items()}
    assert _decision().to_wire(is_http=True) == _decision().to_wire()


def test_a_place_is_the_option_that_the_answer_names() -> None:
    levels = tuple(questions.Level(name, name) for name in ("low", "mid", "high"))
    score = questions.Score("q", "?", levels)
    # The most probable level is the lowest, the expected one is in the middle.
    p = (0.45, 0.15, 0.4)
    assert answers.place(score, p) == 1
    assert answers.answer(score, p).value == "mid"
    assert answers.place(questions.Noul("q", "?"), (0.5, 0.5)) == 0
