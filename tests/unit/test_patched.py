"""How questions are put into requests to the patched engine."""

from __future__ import annotations

from openjev_cli.engine import patched
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
