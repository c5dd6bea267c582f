"""Orders of options: which ones, what a question becomes in them, and what several readings say together."""

from __future__ import annotations

import itertools
import math

import pytest

from openjev_cli import answers, errors, labels, orders, prompt
from openjev_cli.labels import Label
from openjev_cli.prompt import Frame
from openjev_cli.questions import Choice, Level, Noul, Option, Question, Score
from openjev_cli.state import State

LABELS = (Label("A", 1), Label("B", 2), Label("C", 3))
NOUL = Noul("a", "Refund?", yes="wants money back", no="does not")
CHOICE = Choice("b", "Team?", (Option("billing", "Payments"), Option("sales"), Option("other")))
SCORE = Score("c", "Urgent?", tuple(Level(name, name) for name in ("low", "mid", "high")))


def texts(question: Question, n: int) -> list[str]:
    """Every order of a question as it stands in the prompt."""
    (group,) = orders.expand([question], n)
    frame = Frame(("<", "|", ">"))
    built = prompt.build(frame, State("text", "s"), [one.question for one in group], LABELS)
    return ["".join(segment.text for segment in suffix.segments) for suffix in built.suffixes]


def test_one_order_is_the_question_itself() -> None:
    for question in (NOUL, CHOICE, SCORE):
        assert orders.expand([question], 1) == (
            (orders.Order(question, tuple(range(3))[: _count(question)]),),
        )


def _count(question: Question) -> int:
    return len(prompt.options_of(question))


def test_the_second_order_is_the_reversal_of_every_type() -> None:
    option = "\nReply with the letter of the option that fits best.>"
    level = "\nReply with the letter of the level that fits best.>"
    assert texts(NOUL, 2) == [
        " Refund?\nOptions:\nA: yes: wants money back\nB: no: does not" + option,
        " Refund?\nOptions:\nA: no: does not\nB: yes: wants money back" + option,
    ]
    assert texts(CHOICE, 2)[1] == " Team?\nOptions:\nA: other\nB: sales\nC: billing: Payments" + option
    falling = " Urgent?\nLevels, from highest to lowest:\nA: high\nB: mid\nC: low"
    assert texts(SCORE, 2)[1] == falling + level


def test_there_are_as_many_distinct_orders_as_asked_for_or_as_there_are() -> None:
    assert [len(texts(NOUL, n)) for n in (1, 2, 3, 64)] == [1, 2, 2, 2]
    assert [len(texts(SCORE, n)) for n in (1, 2, 3, 64)] == [1, 2, 2, 2]
    assert [len(texts(CHOICE, n)) for n in (1, 2, 5, 6, 64)] == [1, 2, 5, 6, 6]
    for count, n in itertools.product((2, 3, 4, 5, 9, 255), (1, 2, 3, 4, 8, 63, 64)):
        found = orders.orders_of(count, n)
        assert len(found) == len(set(found)) == min(n, math.factorial(min(count, 8)))
        assert all(sorted(one) == list(range(count)) for one in found)
        assert found[0] == tuple(range(count))
        assert found[1:2] in ([], [tuple(reversed(range(count)))])


def test_four_orders_of_four_options_put_each_option_in_each_place_once() -> None:
    assert all(len(set(column)) == 4 for column in zip(*orders.orders_of(4, 4), strict=True))


def test_orders_are_the_same_in_every_run() -> None:
    assert orders.orders_of(7, 40) == orders.orders_of(7, 40)
    assert orders.orders_of(7, 20) == orders.orders_of(7, 40)[:20]


def test_readings_are_averaged_in_log_space_by_option_and_not_by_label() -> None:
    (group,) = orders.expand([CHOICE], 2)
    straight, turned = (0.6, 0.3, 0.1), (0.2, 0.2, 0.6)  # the second: other, sales, billing
    found = orders.combine(CHOICE, group, [[math.log(p) for p in one] for one in (straight, turned)])
    means = [math.sqrt(0.6 * 0.6), math.sqrt(0.3 * 0.2), math.sqrt(0.1 * 0.2)]
    expected = [one / sum(means) for one in means]
    assert labels.probabilities(found.scores) == pytest.approx(expected, abs=1e-12)
    assert found.orders == answers.Orders(2, pytest.approx(0.0, abs=1e-12), False)


def test_an_offset_of_one_reading_changes_nothing() -> None:
    (group,) = orders.expand([NOUL], 2)
    plain = orders.combine(NOUL, group, [[2.0, 1.0], [0.5, 1.5]])
    moved = orders.combine(NOUL, group, [[102.0, 101.0], [-49.5, -48.5]])
    assert labels.probabilities(moved.scores) == pytest.approx(labels.probabilities(plain.scores), abs=1e-12)
    assert moved.orders is not None
    assert plain.orders is not None
    assert moved.orders.spread == pytest.approx(plain.orders.spread, abs=1e-12)


def test_the_spread_is_how_far_the_winner_moves_and_a_flip_is_another_winner() -> None:
    (group,) = orders.expand([NOUL], 2)
    always_a = [math.log(0.9), math.log(0.1)]
    found = orders.combine(NOUL, group, [always_a, always_a])
    assert labels.probabilities(found.scores) == pytest.approx((0.5, 0.5), abs=1e-12)
    assert found.orders == answers.Orders(2, pytest.approx(0.8, abs=1e-12), True)


def test_a_score_flips_when_its_nearest_level_does() -> None:
    (group,) = orders.expand([SCORE], 2)
    low, high = [math.log(p) for p in (0.8, 0.1, 0.1)], [math.log(p) for p in (0.8, 0.1, 0.1)]
    found = orders.combine(SCORE, group, [low, high])  # the second says: high
    assert found.orders is not None
    assert found.orders.flips
    assert answers.place(SCORE, labels.probabilities(found.scores)) == 1


def test_one_reading_is_left_as_it_is() -> None:
    ((order,),) = orders.expand([CHOICE], 1)
    assert orders.combine(CHOICE, [order], [(3.0, -math.inf, 1.0)]) == ((3.0, -math.inf, 1.0), None)


def test_a_reading_without_a_number_is_no_answer() -> None:
    (group,) = orders.expand([NOUL], 2)
    with pytest.raises(errors.ReadoutError):
        orders.combine(NOUL, group, [[1.0, 2.0], [math.nan, 0.0]])


def test_orders_are_named_only_where_there_are_several() -> None:
    groups = orders.expand([NOUL, CHOICE], 2)
    assert orders.names(groups) == ["a, order 1", "a, order 2", "b, order 1", "b, order 2"]
    assert orders.names(orders.expand([NOUL, CHOICE], 1)) == ["a", "b"]
