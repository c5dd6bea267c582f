"""A wire body becomes a request, or every problem of it at once."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from openjev_cli import images, questions, reading, request
from openjev_cli.questions import Choice, Noul, Option
from openjev_cli.reading import Problem
from openjev_cli.request import Request
from openjev_cli.state import Message, State

CASES = Path(__file__).parent.parent / "cases"


def parse(text: str) -> Request:
    return request.parse(reading.parse_json(text, name="body"))


def details(text: str) -> tuple[Problem, ...]:
    with pytest.raises(request.RequestError) as caught:
        parse(text)
    return caught.value.details


def test_a_body_holds_a_state_and_questions() -> None:
    assert parse((CASES / "G06_a.json").read_text()) == Request(
        State("text", "I paid twice in March. Give me back one payment today or I call the bank."),
        (
            Noul("refund", "Does the writer ask for money back?"),
            Choice(
                "team",
                "Which team should take this?",
                (Option("billing", "payments"), Option("tech", "faults"), Option("sales", "quotes")),
            ),
        ),
        "jev-latest",
    )


def test_structured_bodies_are_answered() -> None:
    text = (CASES / "G04_body.json").read_text()
    asked = questions.load([questions.Source("body.json", text.encode())])
    assert parse(text).questions == asked


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ('"{\\"a\\": 1}"', State("text", '{"a": 1}')),
        ('{"a": 1.0}', State("json", '{"a":1.0}')),
        ("[]", State("json", "[]")),
        (
            '[{"role": "user", "content": "hi"}]',
            State("chat", '[{"role":"user","content":"hi"}]', (Message("user", "hi"),)),
        ),
    ],
)
def test_a_state_is_a_text_an_object_or_an_array(value: str, state: State) -> None:
    body = f'{{"state": {value}, "questions": {{"a": {{"type": "noul"}}}}, "seed": 7}}'
    assert parse(body) == Request(state, (Noul("a", "a"),))


def test_every_problem_is_found_at_once_and_none_holds_what_was_sent() -> None:
    found = details(
        '{"model": 5, "state": null, "questions": {"a": {"type": "secret"}, "b": {"type": "choice"}}}'
    )
    assert [(one.loc, one.message) for one in found] == [
        (("model",), "must be a text"),
        (("state",), "must be a text, an object or an array"),
        (("questions", "a", "type"), "must be noul, choice or score"),
        (("questions", "b", "criteria"), "is missing: must be an object of option names and descriptions"),
    ]


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ("[]", ("must be an object with state and questions",)),
        ("{}", ("state: is missing", "questions: is missing")),
        ('{"state": "x", "questions": {}}', ("questions: must hold at least one question",)),
        ('{"state": "x", "questions": ["a?"]}', ("questions: must be an object of questions",)),
        (
            '{"state": 5, "questions": {"x y": {"type": "bool"}}}',
            (
                "state: must be a text, an object or an array",
                'questions["x y"].type: must be noul, choice or score (got bool)',
            ),
        ),
        (
            (
                '{"state": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],'
                ' "questions": {"a": {"type": "noul"}}}'
            ),
            ("state: messages[0].content[0]: not a data URL (no URL is fetched, no file is read)",),
        ),
        (
            (
                '{"state": "x", "images": ["data:image/png;base64,aGk=", 5],'
                ' "questions": {"a": {"type": "noul"}}}'
            ),
            ("images[0]: text, not an image", "images[1]: must be a data URL"),
        ),
        (
            '{"state": "x", "images": "a", "questions": {"a": {"type": "noul"}}}',
            ("images: must be an array of data URLs",),
        ),
        (
            '{"state": "x", "images": [1, 2, 3, 4, 5, 6, 7, 8, 9], "questions": {"a": {"type": "noul"}}}',
            ("images: 9 images: a request may hold 8",),
        ),
    ],
)
def test_problems_as_lines(body: str, problems: tuple[str, ...]) -> None:
    with pytest.raises(request.RequestError) as caught:
        parse(body)
    assert caught.value.problems == problems


# Assets


PNG = (CASES / "C01_plain.png").read_bytes()
KEY = "<image:0123456789abcdef0123456789abcdef>"


def with_assets(body: dict[str, object], files: dict[str, bytes] | None = None) -> Request:
    text = json.dumps({"questions": {"q": {"type": "noul", "instructions": "Broken?"}}, **body})
    return request.parse(reading.parse_json(text, name="body"), files=files)


def test_an_asset_alone_is_the_state() -> None:
    encoded = base64.b64encode(PNG).decode()
    entry = {"type": "image", "format": "png", "data_base64": encoded}
    asked = with_assets({"state": KEY, "assets": {KEY: entry}})
    assert asked.state == State("text", "", images=(images.from_bytes(PNG, name="image"),))
    assert asked.questions == (Noul("q", "Broken?"),)


def test_an_asset_is_shown_first_and_named_where_its_placeholder_stood() -> None:
    body: dict[str, object] = {
        "state": {"photo": KEY, "note": f"see {KEY} and photo-2", KEY: 1},
        "questions": {
            "q": {"type": "noul", "instructions": ["Like", KEY], "criteria": {"true": f"as in {KEY}"}},
            KEY: {"type": "choice", "instructions": "Which?", "criteria": {"a": KEY, KEY: None}},
        },
        "assets": {"photo": {"part": "p1"}, "photo-2": {"part": "p2"}, KEY: {"part": "p3"}, "unused": {}},
    }
    image = images.from_bytes(PNG, name="image")
    asked = with_assets(body, {"p1": PNG, "p2": PNG, "p3": PNG})
    # Keys are names: nothing is placed in them. "photo" stands in no text, so it is not shown.
    assert asked.state == State(
        "json",
        '{"photo":"[image 2]","note":"see [image 2] and [image 1]",' + json.dumps(KEY) + ":1}",
        images=(image, image),
    )
    assert asked.questions == (
        Noul("q", '["Like","[image 2]"]', yes="as in [image 2]"),
        Choice(KEY, "Which?", (Option("a", "[image 2]"), Option(KEY))),
    )


def test_images_of_the_body_are_numbered_before_its_assets() -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    asked = with_assets({"state": KEY, "images": [url], "assets": {KEY: {"part": "p"}}}, {"p": PNG})
    assert asked.state.text == "[image 2]"
    assert len(asked.state.images) == 2


def test_every_asset_that_cannot_be_used_is_named() -> None:
    assets = {
        "aa": {"part": "absent"},
        "bb": {"data_base64": "secret!"},
        "cc": {},
        "dd": {"type": "video", "part": "p"},
        "ee": {"part": "p"},
        "ff": "secret",
    }
    with pytest.raises(request.RequestError) as caught:
        with_assets({"state": list(assets), "assets": assets}, {"p": PNG[:200]})
    assert caught.value.details == (
        Problem(("assets", "aa", "part"), "no part of the request has this name"),
        Problem(("assets", "bb", "data_base64"), "its base64 is broken"),
        Problem(("assets", "cc"), "needs data_base64, or part in a multipart request"),
        Problem(("assets", "dd"), "must be an object of type image"),
        Problem(("assets", "ee"), "the PNG image is cut off: its end is missing"),
        Problem(("assets", "ff"), "must be an object of type image"),
    )


@pytest.mark.parametrize(
    ("assets", "message"),
    [
        ([1], "must be an object of placeholders and images"),
        ({"": {}}, "a placeholder is empty"),
        ({f"<{i}>": {"part": "p"} for i in range(9)}, "9 images: a request may hold 8"),
    ],
)
def test_assets_that_are_none_are_refused_whole(assets: object, message: str) -> None:
    state = "".join(f"<{i}>" for i in range(9))
    with pytest.raises(request.RequestError) as caught:
        with_assets({"state": state, "assets": assets}, {"p": PNG})
    assert caught.value.details == (Problem(("assets",), message),)
