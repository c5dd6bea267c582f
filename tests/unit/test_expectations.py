"""What each form of an expectation accepts."""

from __future__ import annotations

import pytest

from openjev_cli import answers, questions, reading
from openjev_cli.expectations import Expectation, Values

REFUND = questions.Noul("refund", "?")
TEAM = questions.Choice("team", "?", (questions.Option("billing"), questions.Option("sales")))
LEVEL = questions.Score("level", "?", tuple(questions.Level(t, t) for t in ("low", "mid", "high")))
REFUND_ANSWER = answers.NoulAnswer("refund", 0.9)
TEAM_ANSWER = answers.ChoiceAnswer("team", "billing", {"billing": 0.7, "sales": 0.3})
LEVELS = ("low", "mid", "high")
LEVEL_ANSWER = answers.ScoreAnswer("level", 1.4, LEVELS, LEVELS, (0.1, 0.4, 0.5))


def read(question: questions.Question, yaml: str) -> tuple[Expectation | None, list[str]]:
    document = reading.read_yaml(f"expect: {{{question.id}: {yaml}}}\n", name="set.yaml")
    problems: list[str] = []
    values = Values(
        (), lambda loc, message: problems.append(f"{reading.show(loc)}: {message}"), lambda loc: False
    )
    value = document.value
    assert isinstance(value, dict)
    found = values.expectations(value["expect"], (), [question])
    return found.get(question.id), problems


@pytest.mark.parametrize(
    ("question", "answer", "yaml", "unmet"),
    [
        (REFUND, REFUND_ANSWER, "yes", []),
        (REFUND, REFUND_ANSWER, "'true'", []),
        (REFUND, REFUND_ANSWER, "no", ["expected no, got yes"]),
        (REFUND, REFUND_ANSWER, "{min: 0.9}", []),
        (REFUND, REFUND_ANSWER, "{min: 0.91}", ["P(yes) 0.9000 is under 0.91"]),
        (REFUND, REFUND_ANSWER, "{max: 0.9, min: 0}", []),
        (REFUND, REFUND_ANSWER, "{max: .5}", ["P(yes) 0.9000 is over 0.5"]),
        (REFUND, REFUND_ANSWER, "{between: [0.5, 0.9]}", []),
        (REFUND, REFUND_ANSWER, "{p: 0.91}", []),
        (REFUND, REFUND_ANSWER, "{p: 0.92}", ["P(yes) 0.9000 is not within 0.01 of 0.92"]),
        (REFUND, REFUND_ANSWER, "{p: {no: {max: 0.05}}}", ["p of no 0.1000 is over 0.05"]),
        (TEAM, TEAM_ANSWER, "billing", []),
        (TEAM, TEAM_ANSWER, "{choice: sales}", ["expected sales, got billing"]),
        (TEAM, TEAM_ANSWER, "{choice: billing, min: 0.7}", []),
        (TEAM, TEAM_ANSWER, "{choice: billing, min: 0.71}", ["p of billing 0.7000 is under 0.71"]),
        (TEAM, TEAM_ANSWER, "{choice: billing, p: 0.7}", []),
        (TEAM, TEAM_ANSWER, "{p: {billing: 0.7, sales: {min: 0.31}}}", ["p of sales 0.3000 is under 0.31"]),
        (LEVEL, LEVEL_ANSWER, "mid", []),
        (LEVEL, LEVEL_ANSWER, "high", ["expected high, got mid"]),
        (LEVEL, LEVEL_ANSWER, "{between: [1, 2]}", []),
        (LEVEL, LEVEL_ANSWER, "{min: 1.5}", ["the expected level 1.4000 is under 1.5"]),
        (LEVEL, LEVEL_ANSWER, "{p: {high: 0.5, 0: 0.1}}", []),
        (LEVEL, LEVEL_ANSWER, "{p: {2: 0.6}}", ["p of 2 0.5000 is not within 0.01 of 0.6"]),
    ],
)
def test_an_expectation_accepts_what_it_says(
    question: questions.Question, answer: answers.Answer, yaml: str, unmet: list[str]
) -> None:
    expectation, problems = read(question, yaml)
    assert problems == []
    assert expectation is not None
    assert expectation.unmet(answer, 0.01) == unmet


@pytest.mark.parametrize(
    ("question", "yaml", "problem"),
    [
        (REFUND, "maybe", "refund: maybe is no answer to it; there are yes, no"),
        (REFUND, "[]", "refund: this is no answer to it; there are yes, no"),
        (REFUND, "{}", "refund: expects nothing; write min, max, between, p or choice"),
        (REFUND, "{allow_flip: true}", "refund: expects nothing; write min, max, between, p or choice"),
        (REFUND, "{min: 0.5, allow_flip: maybe}", "refund.allow_flip: must be true or false"),
        (REFUND, "{min: inf}", "refund.min: must be a number, not inf"),
        (REFUND, "{min: nan}", "refund.min: must be a number, not nan"),
        (REFUND, "{min: 0.9, max: 0.1}", "refund: nothing lies between 0.9 and 0.1"),
        (
            REFUND,
            "{between: [0.1, 0.2], min: 0}",
            "refund.between: must be a list of two numbers, without min and max",
        ),
        (REFUND, "{p: {maybe: 0.1}}", "refund.p.maybe: no option is called that"),
        (REFUND, "{p: {yes: {lo: 1}}}", "refund.p.yes.lo: unknown expectation; known are min, max, between"),
        (TEAM, "{p: 0.7}", "team.p: must say of which option: {choice: NAME, p: 0.9} or {p: {NAME: 0.9}}"),
        (LEVEL, "1", "level: 1 is no answer to it; there are low, mid, high"),
    ],
)
def test_an_expectation_that_means_nothing_is_a_problem(
    question: questions.Question, yaml: str, problem: str
) -> None:
    assert read(question, yaml)[1][0] == problem
