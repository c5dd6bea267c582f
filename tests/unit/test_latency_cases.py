"""The cases of the speed measurements: what the table of goals promises of them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import generate_images
import latency_cases
import latency_numbers as numbers
from latency_cases import CASES, Library

IDENTIFIER = "000000000001"


def test_every_step_has_a_state_and_its_questions() -> None:
    library = Library()
    for case in CASES:
        assert {step.label for step in case.steps} == set(case.goals)
        assert set(case.goals.values()) <= set(numbers.GOALS)
        for step in case.steps:
            assert len(library.asked(step)) == len(step.asked)
            if step.state not in latency_cases.PICTURES:
                assert IDENTIFIER in library.state(step.state, IDENTIFIER).text[:40]


def test_the_page_has_112_nodes_and_12_questions() -> None:
    page = json.loads((latency_cases.FOLDER / "page.json").read_text())
    assert [node["id"] for node in page["nodes"]] == list(range(1, 113))
    assert len(Library().questions("page")) == 12


def test_the_variants_of_the_page_differ_only_where_they_say() -> None:
    library = Library()
    page, filled, bare, spaced = (
        library.state(name, IDENTIFIER).text
        for name in ("page", "page:filled", "page:no_history", "page:spaced")
    )
    value = latency_cases.FILLED_VALUE
    assert filled.replace(f'"value":"{value}"', '"value":""') == page
    shared = numbers.common_prefix(page.encode(), bare.encode())
    assert page[shared:].startswith(',"history":[')
    assert bare[shared:] == "}"
    assert json.loads(spaced) == json.loads(page)
    assert len(spaced) > len(page)


def test_64_short_states() -> None:
    found = [str(record["message"]) for record in Library().records()]
    assert len(set(found)) == 64


def test_the_game_asks_16_questions_about_one_board() -> None:
    (game,) = (case for case in CASES if case.name == "game")
    assert [step.asked for step in game.steps] == [(i,) for i in range(16)]
    assert len({question.text for question in Library().questions("game")}) == 16


@pytest.mark.parametrize(("made", "kind", "size"), [
    (lambda: generate_images.screenshot(448, 672), "PNG", (448, 672)),
    (lambda: generate_images.photo(640, 480), "JPEG", (640, 480)),
])  # fmt: skip
def test_pictures_are_the_same_bytes_each_time(made, kind: str, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    data = made()
    with Image.open(io.BytesIO(data)) as opened:
        assert (opened.format, opened.size) == (kind, size)
    assert made() == data


def test_a_fresh_identifier_is_as_long_as_any_other() -> None:
    library = Library()
    assert len(library.state("ticket", "123456789012").text) == len(library.state("ticket", IDENTIFIER).text)
