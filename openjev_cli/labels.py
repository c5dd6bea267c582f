"""Labels: the single tokens that stand for options in a prompt, and what their logits mean.

Pure numbers and strings. Which token a label is, and that it is one token where it will stand, is asked of the
model's own tokenizer by `engine`; this module says which spellings to try and turns what comes back into
probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_uppercase

from openjev_cli import errors

MAX_LABELS = 255


@dataclass(frozen=True)
class Label:
    """One verified label: its spelling, and the id of the one token it is behind the answer cue."""

    text: str
    token: int


def spellings() -> Iterator[str]:
    """Yield label spellings in the order they are tried: A ... Z, AA, AB ... ZZ."""
    yield from ascii_uppercase
    for first, second in product(ascii_uppercase, repeat=2):
        yield first + second


def candidates() -> tuple[str, ...]:
    """Return every spelling worth verifying (702); the first 255 that are single tokens are used."""
    return tuple(islice(spellings(), 26 + 26 * 26))


def verify(cue: Sequence[int], readings: Sequence[tuple[str, Sequence[int]]]) -> tuple[Label, ...]:
    """Return the labels that are exactly one token in place, at most 255, each token once.

    cue: token ids of the answer cue alone. readings: (spelling, token ids of cue + spelling).
    """
    seen: set[int] = set()
    found: list[Label] = []
    for text, ids in readings:
        if len(ids) != len(cue) + 1 or list(ids[:-1]) != list(cue) or ids[-1] in seen:
            continue
        seen.add(ids[-1])
        found.append(Label(text, ids[-1]))
        if len(found) == MAX_LABELS:
            break
    return tuple(found)


def take(labels: Sequence[Label], count: int) -> tuple[Label, ...]:
    """Return the first `count` labels. Raises EngineError when the model's vocabulary has fewer."""
    if count > len(labels):
        raise errors.EngineError(
            f"a question has {count} options, but this model has only {len(labels)} single-token labels",
            next_step="split the question, or choose another profile: openjev models list",
        )
    return tuple(labels[:count])


def probabilities(scores: Sequence[float]) -> tuple[float, ...]:
    """Return the softmax of `scores` (natural-log scale, any shared offset), in order, summing to 1.

    Raises ReadoutError if a score is missing its number (NaN) or none is finite.
    """
    top = max(scores, default=-math.inf)
    if any(math.isnan(score) for score in scores) or not math.isfinite(top):
        raise errors.ReadoutError(
            "the engine returned no usable number for an answer label",
            next_step="run again with --no-cache; if it stays, check the model: openjev models verify",
        )
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def without_prior(scores: Sequence[float], prior: Sequence[float], weight: float) -> tuple[float, ...]:
    """Return `scores` minus `weight` times `prior`, both natural log, one per option in order."""
    return tuple(score - weight * before for score, before in zip(scores, prior, strict=True))


def log_probabilities(scores: Sequence[float]) -> tuple[float, ...]:
    """Return the natural logs of `probabilities`, exact where those would round to 0 or 1; -inf for -inf.

    Raises ReadoutError as `probabilities` does.
    """
    probabilities(scores)
    top = max(scores)
    total = math.log(math.fsum(math.exp(score - top) for score in scores))
    return tuple(score - top - total for score in scores)
