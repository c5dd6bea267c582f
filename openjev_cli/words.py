"""Reading options by their own text: the trie of their tokens, and what its logits mean.

Options that begin with different tokens are told apart by one token, as letters are. Where they share tokens, the
model is asked again behind those: once for each branching point of the trie. With c(s) the tokens that go on at
branching point s, the probability of an option is

    P(option) = product over its branching points s of softmax(logits over c(s)) at the token it takes there

that is, of the model's own answer when it may only write one of the options. All options together have 1, and a
long option pays nothing for tokens that no other could have there. Pure: token ids and numbers.
The patched engine does the same in C++ (patches/0011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Branching:
    """A point where options part. path: the token ids from the answer's start to it; tokens: those that go on
    there, at least two."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Trie:
    """steps: for each option the (branching point, place among its tokens) it takes, in order."""

    branchings: tuple[Branching, ...]
    steps: tuple[tuple[tuple[int, int], ...], ...]


def build(options: Sequence[Sequence[int]], end: int) -> Trie:
    """Return the trie of the options' token ids, the point where they first part in front.

    end: the id that follows an option which another one goes on from. Raises ValueError, which says why, when an
    option has no token or `end` in it, or when two are the same.
    """
    if not all(options):
        raise ValueError("an option has no token")
    if any(end in option for option in options):
        raise ValueError("an option has the end token in it")
    if len({tuple(option) for option in options}) != len(options):
        raise ValueError("an option has the same tokens as another option")
    ended = [(*option, end) for option in options]
    branchings: list[Branching] = []
    steps: list[list[tuple[int, int]]] = [[] for _ in options]
    todo = [(0, list(range(len(options))))]
    for depth, members in todo:  # grows on the way
        while len({ended[i][depth] for i in members}) == 1:
            depth += 1
        tokens = list(dict.fromkeys(ended[i][depth] for i in members))
        for i in members:
            steps[i].append((len(branchings), tokens.index(ended[i][depth])))
        branchings.append(Branching(tuple(ended[members[0]][:depth]), tuple(tokens)))
        for token in tokens:
            same = [i for i in members if ended[i][depth] == token]
            if len(same) > 1:
                todo.append((depth + 1, same))
    return Trie(tuple(branchings), tuple(map(tuple, steps)))


def log_probabilities(trie: Trie, scores: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return log P of each option. scores: for each branching point those of its tokens, in order, natural log
    up to a shared offset."""
    offsets = [_log_sum_exp(of_one) for of_one in scores]
    return tuple(math.fsum(scores[at][place] - offsets[at] for at, place in taken) for taken in trie.steps)


def _log_sum_exp(scores: Sequence[float]) -> float:
    top = max(scores)
    return top + math.log(math.fsum(math.exp(score - top) for score in scores))
