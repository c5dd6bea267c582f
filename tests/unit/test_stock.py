from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from openjev_cli import errors, prompt
from openjev_cli.engine import facts, stock
from openjev_cli.engine.client import Client


def _reply(**probs: float) -> dict[str, Any]:
    top = [{"id": int(name[1:]), "token": "?", "prob": p} for name, p in probs.items()]
    return {"completion_probabilities": [{"id": 1, "top_probs": top}]}


def test_label_scores_are_read_by_token_id_in_label_order() -> None:
    assert stock.label_scores(_reply(t7=0.25, t9=0.75), [9, 7]) == (math.log(0.75), math.log(0.25))


def test_a_label_missing_from_the_reply_is_an_error_and_never_a_zero() -> None:
    with pytest.raises(errors.ReadoutError) as caught:
        stock.label_scores(_reply(t7=1.0), [7, 9])
    assert "no probability for 1 of 2 labels" in caught.value.message


def test_a_label_whose_probability_vanished_is_an_error_and_never_a_zero() -> None:
    with pytest.raises(errors.ReadoutError):
        stock.label_scores(_reply(t7=1.0, t9=0.0), [7, 9])


@pytest.mark.parametrize(
    "reply",
    [{}, {"completion_probabilities": []}, {"completion_probabilities": [{"top_logprobs": []}]}],
)
def test_a_reply_without_probabilities_is_an_engine_error(reply: dict[str, Any]) -> None:
    with pytest.raises(errors.EngineError):
        stock.label_scores(reply, [1, 2])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("low", "low\nor so"), "an option has the end token in it"),
        (("low", "low"), "an option has the same tokens as another option"),
    ],
)
def test_options_that_their_tokens_do_not_tell_apart_are_input(
    options: tuple[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_character(_: Client, texts: Sequence[str], *, special: bool) -> list[tuple[int, ...]]:
        return [tuple(map(ord, text)) for text in texts]

    monkeypatch.setattr(facts, "tokenize", by_character)
    read = tuple((prompt.Segment(option, special=False),) for option in options)
    asked = prompt.Prompt(
        (prompt.Segment("p", special=True),),
        (prompt.Suffix((prompt.Segment("q", special=True),), options=read),),
    )
    # A model without one token that ends an answer: a line break stands for it.
    known = replace(facts.nothing(n_slots=1), end=ord("\n"))
    with pytest.raises(errors.InputError) as caught:
        stock.to_tokens(Client(lambda: pytest.fail("asked")), asked, known)
    assert caught.value.message == f"the options of a question cannot be read by their own text: {why}"
