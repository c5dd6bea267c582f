from __future__ import annotations

import itertools
import math
import random

import pytest

from openjev_cli import labels, words
from openjev_cli.words import Branching

END = 99


def by_hand(options: list[tuple[int, ...]], scores: dict[tuple[int, ...], dict[int, float]]) -> list[float]:
    """P of each option when the model may only write one of them, token by token."""
    ended = [(*option, END) for option in options]
    found = []
    for option in ended:
        p = 1.0
        for depth, token in enumerate(option):
            allowed = {other[depth] for other in ended if other[:depth] == option[:depth]}
            if len(allowed) > 1:
                weights = {one: math.exp(scores[option[:depth]][one]) for one in allowed}
                p *= weights[token] / sum(weights.values())
        found.append(p)
    return found


def test_options_that_begin_with_different_tokens_are_told_apart_by_one() -> None:
    trie = words.build([(1, 2, 3), (4,), (5, 2)], END)
    assert trie.branchings == (Branching((), (1, 4, 5)),)
    scores = [(0.5, 2.0, -1.0)]
    expected = [math.log(p) for p in labels.probabilities(scores[0])]
    assert words.log_probabilities(trie, scores) == pytest.approx(expected)


def test_shared_tokens_are_passed_over_up_to_where_options_part() -> None:
    trie = words.build([(7, 8, 1, 5), (7, 8, 2), (7, 8, 1, 6)], END)
    assert trie.branchings == (Branching((7, 8), (1, 2)), Branching((7, 8, 1), (5, 6)))
    assert trie.steps == (((0, 0), (1, 0)), ((0, 1),), ((0, 0), (1, 1)))


def test_an_option_that_another_goes_on_from_ends_with_the_end_token() -> None:
    trie = words.build([(1,), (1, 2)], END)
    assert trie.branchings == (Branching((1,), (END, 2)),)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([(1,), ()], "has no token"),
        ([(1, 2), (1, 2)], "has the same tokens as another option"),
        # As far as the first goes they are one, and the second goes on as if it had ended.
        ([(5,), (5, END, 7)], "has the end token in it"),
        ([(END,), (5,)], "has the end token in it"),
    ],
)
def test_options_that_their_tokens_do_not_tell_apart_are_refused(
    options: list[tuple[int, ...]], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        words.build(options, END)


def test_random_tries_give_the_probabilities_of_writing_token_by_token() -> None:
    rng = random.Random(7)
    for _ in range(200):
        pool = [option for n in (1, 2, 3, 4) for option in itertools.product((1, 2, 3), repeat=n)]
        options = rng.sample(pool, rng.randint(2, 12))
        trie = words.build(options, END)
        scores = [tuple(rng.uniform(-3, 3) for _ in branching.tokens) for branching in trie.branchings]
        table = {
            branching.path: dict(zip(branching.tokens, of_one, strict=True))
            for branching, of_one in zip(trie.branchings, scores, strict=True)
        }
        found = [math.exp(one) for one in words.log_probabilities(trie, scores)]
        assert found == pytest.approx(by_hand(options, table))
        assert math.fsum(found) == pytest.approx(1.0)
