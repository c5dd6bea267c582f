from __future__ import annotations

import math
from typing import Any

import pytest

from openjev_cli import errors
from openjev_cli.engine import stock


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
