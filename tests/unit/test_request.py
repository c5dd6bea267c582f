"""A wire body becomes a request, or every problem of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from openjev_cli import questions, reading, request
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
