"""Measuring answers to labelled rows: orders, majorities, and what a receipt says."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import baseline_tfidf
import evaluate
import readout_numbers as numbers

from openjev_cli import answers, decide, errors, questions, request, timing
from openjev_cli import state as states

CHOICE = questions.Choice("q", "Which?", tuple(questions.Option(name) for name in ("a", "b", "c")))
NOUL = questions.Noul("q", "Is it?")
SCORE = questions.Score("q", "How?", tuple(questions.Level(name, name) for name in ("a", "b", "c")))


def test_a_choice_is_asked_in_other_orders_each_once() -> None:
    orders = evaluate.orders_of(CHOICE, 5, random.Random(1))
    assert orders[0] == (0, 1, 2)
    assert len(orders) == len(set(orders)) == 6
    assert len(evaluate.orders_of(CHOICE, 50, random.Random(1))) == 6  # there are no more
    assert evaluate.orders_of(CHOICE, 0, random.Random(1)) == ((0, 1, 2),)


def test_yes_and_no_and_levels_have_one_order() -> None:
    assert evaluate.orders_of(NOUL, 5, random.Random(1)) == ((0, 1),)


def test_probabilities_go_back_to_the_written_order() -> None:
    order = (2, 0, 1)
    shown = evaluate.reordered(CHOICE, order, "x")
    assert isinstance(shown, questions.Choice)
    assert [option.name for option in shown.options] == ["c", "a", "b"]
    answer = answers.answer(shown, (0.5, 0.2, 0.3))
    assert evaluate.distribution(answer, order) == (0.2, 0.3, 0.5)
    assert evaluate.distribution(answers.answer(NOUL, (0.9, 0.1)), (0, 1)) == pytest.approx((0.9, 0.1))


class Answering:
    """Stands in for a session: every question is answered with these probabilities, or fails."""

    def __init__(
        self, answered: Sequence[float] | errors.OpenjevError, *, reworded: Sequence[float] = ()
    ) -> None:
        self._answered = answered
        self._reworded = reworded

    def workers(self, n_questions: int) -> int:
        return 1

    def decide(self, asked: request.Request, stages: timing.Stages) -> answers.Decision:
        if isinstance(self._answered, errors.OpenjevError):
            raise self._answered
        typed = tuple(
            answers.answer(one, self._reworded if one.id.startswith("w") else self._answered)
            for one in asked.questions
        )
        return answers.Decision(
            "m", typed, answers.Usage(1, 1), stages.finish(queue_ms=0.0, inference_ms=0.0)
        )


def measured(
    question: questions.Question,
    session: Answering,
    relabelled: Answering | None = None,
    *,
    rewordings: int = 0,
) -> numbers.Asked | str:
    item = evaluate.Item(
        "r1", "t", "seen", request.Request(states.from_text("x"), (question,)), 0, ((0, 1, 2),), rewordings
    )
    held = cast("decide.Session", session), cast("decide.Session | None", relabelled)
    (one,) = evaluate.measured([item], *held)
    return one


TOO_FEW = errors.EngineError("a question has 302 options, but this model has only 255", next_step="split it")


def test_a_row_that_the_engine_refuses_is_counted_and_does_not_end_the_run() -> None:
    assert measured(CHOICE, Answering(TOO_FEW)) == f"r1: {TOO_FEW.message}"


def test_a_model_with_too_few_letters_is_not_asked_with_other_ones() -> None:
    one = measured(CHOICE, Answering((0.2, 0.7, 0.1)), Answering(TOO_FEW))
    assert isinstance(one, numbers.Asked)
    assert one.relabelled is None
    assert one.probabilities == (0.2, 0.7, 0.1)


def test_rows_are_sent_as_the_settings_say(tmp_path: Path) -> None:
    row = {
        "id": "1",
        "state": {"a": 1, "b": 2},
        "question": {"type": "noul", "instructions": "Is it?"},
        "label": True,
    }
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")

    def state(compact: bool) -> str:
        (item,) = evaluate.choose(tmp_path, ("unused",), (), 0, 0, compact=compact)
        return item.asked.state.text

    assert state(True) == '{"a":1,"b":2}'
    assert state(False) != state(True)


def test_a_stored_calibration_is_left_out_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "openjev").mkdir()
    (tmp_path / "openjev" / "config.toml").write_text('calibration = "/mine.json"\n')

    def calibration(*words: str) -> Any:
        return evaluate.settings_of(evaluate.arguments(["--data", "x", *words])).calibration

    assert calibration() == "off"
    assert calibration("--set", "calibration=/other.json") == Path("/other.json")


def asked(
    gold: int, *probabilities: float, task: str = "t", changed: tuple[int, int] = (0, 0)
) -> numbers.Asked:
    names = ("a", "b", "c")[: len(probabilities)]
    return numbers.Asked(task, "seen", "choice", names, gold, probabilities, changed)


def counted(rows: list[numbers.Asked]) -> numbers.Labels:
    labels = numbers.Labels()
    for row in rows:
        labels.add(row.kind, row.names[row.gold])
    return labels


def test_the_majority_is_that_of_all_other_rows() -> None:
    labels = counted([asked(0, 0.5, 0.5), asked(1, 0.5, 0.5)])
    # Counting itself, either would be a majority of its own.
    assert labels.guess("choice", ("a", "b"), 0) == 1
    assert labels.guess("choice", ("a", "b"), 1) == 0


def test_a_receipt_has_the_mean_over_tasks_and_all_rows() -> None:
    rows = [asked(0, 0.9, 0.1) for _ in range(9)] + [asked(1, 0.9, 0.1)]
    rows += [asked(0, 0.2, 0.8, task="u") for _ in range(2)]
    found = numbers.report(rows, {"t": counted(rows[:10]), "u": counted(rows[10:])})
    one = found["tasks"]["t"]
    assert (one["rows"], one["accuracy"], one["chance"], one["majority"]) == (10, 0.9, 0.5, 0.9)
    assert one["interval_95"] == [0.5958, 0.9821]  # Wilson, 9 of 10
    seen = found["parts"]["seen"]
    assert (seen["tasks"], seen["rows"], seen["accuracy"]) == (2, 12, 0.45)
    assert seen["above_chance"] == pytest.approx(-0.05)
    assert seen["pooled"]["accuracy"] == 0.75
    assert any(line.startswith("seen, mean of 2") for line in numbers.lines(found))


def test_few_options_are_counted_apart() -> None:
    many = numbers.Asked("t", "seen", "choice", tuple("abcdefghijk"), 0, (0.0,) * 10 + (1.0,))
    found = numbers.summary([many, asked(0, 0.9, 0.1)], numbers.Labels())
    assert found["accuracy"] == 0.5
    assert found["few_options"] == {"rows": 1, "accuracy": 1.0}


def test_a_score_is_judged_by_its_level_not_by_the_most_probable_one() -> None:
    p = (0.4, 0.2, 0.4)
    assert answers.answer(SCORE, p).value == "b"
    row = numbers.Asked("t", "seen", "score", ("a", "b", "c"), 1, p)
    found = numbers.report([row], {"t": counted([row])})
    one = found["tasks"]["t"]
    assert (one["accuracy"], one["kinds"]["score"]["accuracy"], one["few_options"]["accuracy"]) == (1, 1, 1)
    assert one["ece"] == 0.8
    assert found["parts"]["seen"]["pooled"]["accuracy"] == 1
    assert found["parts"]["seen"]["pooled"]["ece"] == 0.8


def test_another_wording_of_a_score_changes_the_answer_when_the_level_changes() -> None:
    # The most probable level is the same, the answer is not.
    turning = Answering((0.4, 0.2, 0.4), reworded=(0.7, 0.2, 0.1))
    one = measured(SCORE, turning, rewordings=1)
    assert isinstance(one, numbers.Asked)
    assert one.reworded == (1, 1)


def test_order_sensitivity_counts_orders_and_rows() -> None:
    rows = [asked(0, 0.9, 0.1, changed=(1, 5)), asked(0, 0.9, 0.1, changed=(0, 5)), asked(0, 0.9, 0.1)]
    assert numbers.sensitivity(rows) == {"order": {"rows": 2, "changed": 0.1, "rows_with_any_change": 0.5}}
    assert numbers.sensitivity(rows[2:]) == {}


def test_wording_sensitivity_is_counted_like_that_to_order() -> None:
    row = numbers.Asked("t", "seen", "noul", ("yes", "no"), 0, (0.9, 0.1), reworded=(2, 5))
    assert numbers.sensitivity([row]) == {"wording": {"rows": 1, "changed": 0.4, "rows_with_any_change": 1.0}}
    assert evaluate.REWORDINGS[1]("Is it spam?") == "Is it spam"
    assert len({reword("Is It spam?") for reword in evaluate.REWORDINGS} | {"Is It spam?"}) == 6


def test_the_baseline_sees_words_pairs_and_overlap() -> None:
    case = baseline_tfidf.case_of(
        {
            "id": "1",
            "state": "Where is my refund?",
            "question": {
                "type": "choice",
                "instructions": "Topic?",
                "criteria": {"a_refund": None, "bug": None},
            },
            "label": "bug",
        },
        "t",
        "seen",
    )
    assert case.options == (("a", "refund"), ("bug",))
    found = baseline_tfidf.features(case, 0)
    assert found["overlap"] == 0.5
    assert {"o refund", "p where refund", "n refund choice:a_refund"} <= set(found)
    assert baseline_tfidf.features(case, 1)["overlap"] == 0.0
