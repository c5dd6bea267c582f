"""The orders in which a question's options are read (`--orders`), and what several readings say together.

Small models lean towards a label or a place in the list. Read in several orders, each option stands in several
places, and what is left of the lean is seen in how far the readings lie apart. Pure: it reads nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from openjev_cli import answers, labels, questions

# A request has at most 64 questions; one question in more orders than that has no more to tell.
MAX_ORDERS = 64


class Order(NamedTuple):
    """A question as it is read once. places: for each label, which of the question's options it stands for."""

    question: questions.Question
    places: tuple[int, ...]


def expand(asked: Sequence[questions.Question], n: int) -> tuple[tuple[Order, ...], ...]:
    """Return for each question the orders it is read in: as written first, then reversed, and at most `n`.

    There are fewer when the question has fewer: a yes/no question has two, and so has a rubric, whose levels
    can only rise or fall.
    """
    return tuple(
        tuple(Order(_ordered(question, places), places) for places in _orders_of(question, n))
        for question in asked
    )


def names(groups: Sequence[Sequence[Order]]) -> list[str]:
    """Return what each order is called where all of them are shown, in order."""
    return [
        order.question.id + (f", order {number}" if len(group) > 1 else "")
        for group in groups
        for number, order in enumerate(group, start=1)
    ]


def _orders_of(question: questions.Question, n: int) -> Iterator[tuple[int, ...]]:
    if isinstance(question, questions.Choice):
        yield from orders_of(len(question.options), n)
    elif isinstance(question, questions.Score):
        yield from orders_of(len(question.levels), min(n, 2))
    else:
        yield from orders_of(2, n)


def orders_of(count: int, n: int) -> list[tuple[int, ...]]:
    """Return `n` distinct orders of `count` things, or all there are: as they are, reversed, rotations of both
    (of the half first, so that few orders move each thing far), then shuffles, the same ones every time."""
    wanted = min(n, math.factorial(min(count, 8)))
    straight = tuple(range(count))
    found: dict[tuple[int, ...], None] = {}
    for offset in _halving(count):
        rotated = straight[offset:] + straight[:offset]
        found.setdefault(rotated)
        found.setdefault(rotated[::-1])
        if len(found) >= wanted:
            return list(found)[:wanted]
    import random

    chance = random.Random(count)
    while len(found) < wanted:
        shuffled = list(straight)
        chance.shuffle(shuffled)
        found.setdefault(tuple(shuffled))
    return list(found)[:wanted]


def _halving(count: int) -> list[int]:
    """Return 0 to count-1: 0, a half, the quarters, and so on."""
    found: dict[int, None] = {}
    parts = 1
    while len(found) < count:
        for part in range(parts):
            found.setdefault(part * count // parts)
        parts *= 2
    return list(found)


def _ordered(question: questions.Question, places: tuple[int, ...]) -> questions.Question:
    """Return the question with its options in that order; itself when they stand as they were written."""
    if places == tuple(range(len(places))):
        return question
    if isinstance(question, questions.Noul):
        # A yes/no question is a choice between yes and no to the model.
        sides = (questions.Option("yes", question.yes), questions.Option("no", question.no))
        return questions.Choice(question.id, question.text, tuple(sides[i] for i in places))
    if isinstance(question, questions.Choice):
        return questions.Choice(question.id, question.text, tuple(question.options[i] for i in places))
    return questions.Score(
        question.id, question.text, tuple(question.levels[i] for i in places), is_descending=True
    )


class Combined(NamedTuple):
    """One question's readings together. scores: natural logs up to a shared offset, in the order in which the
    options were written. orders: what the orders showed, None when there was one."""

    scores: tuple[float, ...]
    orders: answers.Orders | None


def combine(
    question: questions.Question, read: Sequence[Order], scores: Sequence[Sequence[float]]
) -> Combined:
    """Return the readings of a question as one: the mean of the log-probabilities over its orders.

    scores: one list for each order, in label order. Raises ReadoutError for readings without usable numbers.
    """
    if len(read) == 1:
        return Combined(tuple(scores[0]), None)
    rows = [
        _as_written(order, labels.log_probabilities(one)) for order, one in zip(read, scores, strict=True)
    ]
    together = tuple(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
    alone = [labels.probabilities(row) for row in rows]
    decided = answers.place(question, labels.probabilities(together))
    of_decided = [p[decided] for p in alone]
    flips = any(answers.place(question, p) != decided for p in alone)
    shown = answers.Orders(len(rows), max(of_decided) - min(of_decided), flips)
    return Combined(together, shown)


def _as_written(order: Order, scores: Sequence[float]) -> list[float]:
    row = [0.0] * len(scores)
    for place, score in zip(order.places, scores, strict=True):
        row[place] = score
    return row
