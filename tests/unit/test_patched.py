"""How questions are put into requests to the patched engine."""

from __future__ import annotations

import pytest

from openjev_cli import errors, prompt
from openjev_cli.engine import facts, patched
from openjev_cli.engine.client import Client
from openjev_cli.engine.protocol import Caching
from openjev_cli.labels import Label
from openjev_cli.prompt import Segment, Suffix


def by_words(n: int, name: str = "") -> Suffix:
    options = tuple((Segment(f" {name}{i}", special=False),) for i in range(n))
    return Suffix((Segment("q", special=True),), options=options)


def by_letters(n: int) -> Suffix:
    return Suffix((Segment("q", special=True),), tuple(Label(str(i), i) for i in range(n)))


def sizes(suffixes: list[Suffix]) -> list[int]:
    return [len(chunk) for chunk in patched.chunks(suffixes)]


def test_questions_stay_in_order_and_none_is_lost() -> None:
    asked = [by_words(2 + i % 254, f"{i}-") for i in range(200)]
    assert [suffix for chunk in patched.chunks(asked) for suffix in chunk] == asked
    assert sizes([]) == []


def test_a_request_has_no_more_questions_than_the_engine_takes() -> None:
    assert sizes([by_letters(255)] * 130) == [64, 64, 2]
    assert sizes([by_words(17)] * 64) == [64]


def test_a_request_has_no_more_points_where_options_part_than_the_engine_takes() -> None:
    assert sizes([by_words(18)] * 64) == [60, 4]
    assert sizes([by_words(255)] * 9) == [4, 4, 1]
    # Letters are one reading, however many there are.
    assert sizes([by_words(255)] * 4 + [by_letters(255)] * 9) == [12, 1]


TEXT = "the options of a question cannot be read by their own text"


class Refusing(Client):
    """Refuses every request in the words of the engine."""

    def __init__(self, said: str) -> None:
        self.said = said

    def post(self, *_: object) -> None:
        raise errors.EngineError(f"refused /decide with status 400: {self.said}", next_step="look")


@pytest.mark.parametrize(
    ("said", "raised", "message"),
    [
        (
            "options[1]: has the end token in it",
            errors.InputError,
            f"{TEXT}: an option has the end token in it",
        ),
        (
            "options[7]: has the same tokens as another option",
            errors.InputError,
            f"{TEXT}: an option has the same tokens as another option",
        ),
        ("out of memory", errors.EngineError, "refused /decide with status 400: out of memory"),
    ],
)
def test_options_that_the_engine_cannot_tell_apart_are_input(
    said: str, raised: type[errors.OpenjevError], message: str
) -> None:
    asked = prompt.Prompt((Segment("p", special=True),), (by_words(2),))
    with pytest.raises(raised) as caught:
        patched.Patched(Refusing(said)).evaluate(
            asked, facts.nothing(n_slots=1), Caching(True, True, True), None
        )
    assert caught.value.message == message
