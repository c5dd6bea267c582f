"""The expressions of --fail-if and --where: what they mean, and that every slip is found before asking."""

from __future__ import annotations

import itertools
import random

import pytest

from openjev_cli import answers, errors, gates, questions
from openjev_cli.gates import Thresholds

REFUND = questions.Noul("refund", "Asks for a refund?")
TEAM = questions.Choice(
    "team", "Which team?", tuple(questions.Option(name) for name in ("billing", "technical", "sales"))
)
URGENCY = questions.Score(
    "urgency", "How urgent?", tuple(questions.Level(t, t) for t in ("Routine", "Today", "Now"))
)
ODD = questions.Noul("dup-charge", "Charged twice?")
ASKED = (REFUND, TEAM, URGENCY, ODD)

ANSWERS = (
    answers.NoulAnswer("refund", 0.9),
    answers.ChoiceAnswer("team", "billing", {"billing": 0.7, "technical": 0.2, "sales": 0.1}),
    answers.ScoreAnswer(
        "urgency", 1.3, ("Routine", "Today", "Now"), ("Routine", "Today", "Now"), (0.1, 0.5, 0.4)
    ),
    answers.NoulAnswer("dup-charge", 0.5),
)
SURE = Thresholds()


def truth(text: str, thresholds: Thresholds = SURE) -> gates.Truth:
    return gates.parse(text, ASKED).evaluate(ANSWERS, thresholds)


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(errors.InputError) as caught:
        gates.parse(text, ASKED)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("refund > 0.8", True),
        ("refund > 0.9", False),
        ("refund >= 0.9", True),
        ("refund < .95", True),
        ("refund <= 9e-1", True),
        ("refund == 0.9", True),
        ("refund != 0.9", False),
        ("0.8 < refund", True),
        ("0.8 < refund < 0.95", True),
        ("0.8 < refund < 0.85", False),
        ("refund > q['dup-charge']", True),
        ('q["dup-charge"] == 0.5', True),
        ('q["refund"] > 0.8', True),
        ('team == "billing"', True),
        ("'billing' == team", True),
        ('team != "billing"', False),
        ('team in ["sales", "billing"]', True),
        ('team in ("sales", "technical",)', False),
        ('team not in ["sales"]', True),
        ('not team in ["sales"]', True),
        ("team.confidence > 0.54", True),
        ('team.p["technical"] == 0.2', True),
        ('refund.p["yes"] > 0.89', True),
        ('refund.p["no"] > 0.11', False),
        ("urgency > 1", True),
        ("urgency >= 2", False),
        ('urgency.p["Now"] == 0.4', True),
        ('urgency.p["2"] == 0.4', True),
        ("urgency.p[2] == 0.4", True),
        ("urgency.confidence > 0", True),
        ('refund > 0.8 and team == "billing"', True),
        ("refund > 0.95 or urgency > 1", True),
        ("refund > 0.95 or urgency > 1 and refund > 0.95", False),
        ("(refund > 0.95 or urgency > 1) and not refund > 0.95", True),
        ("not not refund > 0.8", True),
        ("not (refund > 0.8)", False),
        ("  refund>0.8\n", True),
    ],
)
def test_an_expression_means_what_it_says(text: str, expected: bool) -> None:
    assert truth(text) is expected


def test_a_yes_no_comparison_is_unsure_inside_the_band_and_at_its_ends() -> None:
    def at(p: float) -> gates.Truth:
        gate = gates.parse("refund > 0.5", [REFUND])
        return gate.evaluate([answers.NoulAnswer("refund", p)], Thresholds(unsure=(0.4, 0.6)))

    assert [at(p) for p in (0.39, 0.4, 0.5, 0.6, 0.61)] == [False, None, None, None, True]


def test_a_choice_is_unsure_under_the_least_confidence() -> None:
    # (0.7 - 1/3) / (2/3)
    confidence = ANSWERS[1].confidence
    for text in ('team == "billing"', 'team != "sales"', 'team in ["sales"]', 'team not in ["sales"]'):
        assert truth(text, Thresholds(min_confidence=confidence + 1e-6)) is None
        assert truth(text, Thresholds(min_confidence=confidence)) is not None


def test_numbers_named_by_p_and_confidence_are_never_unsure() -> None:
    thresholds = Thresholds(unsure=(0.0, 1.0), min_confidence=1.0)
    assert truth('team.p["billing"] > 0.6', thresholds) is True
    assert truth("team.confidence < 0.9", thresholds) is True
    assert truth('refund.p["yes"] > 0.6', thresholds) is True
    assert truth("urgency > 1", thresholds) is True


def test_connectives_follow_kleene() -> None:
    values: tuple[gates.Truth, ...] = (True, False, None)
    for a, b in itertools.product(values, repeat=2):
        both = False if a is False or b is False else (None if a is None or b is None else True)
        either = True if a is True or b is True else (None if a is None or b is None else False)
        assert gates.all_of([a, b]) is both
        assert gates.any_of([a, b]) is either
    assert [gates.negation(a) for a in values] == [False, True, None]


def test_unsure_passes_through_an_expression_unless_the_rest_decides() -> None:
    thresholds = Thresholds(unsure=(0.4, 0.6))
    unsure = 'q["dup-charge"] > 0.5'
    assert truth(f"{unsure} and refund > 0.8", thresholds) is None
    assert truth(f"{unsure} and refund > 0.95", thresholds) is False
    assert truth(f"{unsure} or refund > 0.8", thresholds) is True
    assert truth(f"{unsure} or refund > 0.95", thresholds) is None
    assert truth(f"not {unsure}", thresholds) is None


def test_the_exit_code_is_a_verdict_before_unsure_before_ok() -> None:
    assert gates.exit_code([]) is errors.Exit.OK
    assert gates.exit_code([False, False]) is errors.Exit.OK
    assert gates.exit_code([False, None]) is errors.Exit.UNSURE
    assert gates.exit_code([None, True, False]) is errors.Exit.VERDICT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "column 1, at its end: the expression is empty"),
        ("  ", "column 3, at its end: the expression is empty"),
        (
            "refnd > 0.8",
            "column 1, at refnd > 0.8: no question is called refnd (did you mean refund?)",
        ),
        (
            'refund > 0.8 and team == "biling"',
            'column 26, at "biling": team has no option biling (did you mean billing?)',
        ),
        (
            'team in ["sales", "bill"]',
            'column 19, at "bill"]: team has no option bill (did you mean billing?)',
        ),
        ("refund > 80", "column 10, at 80: the value it is compared with lies between 0 and 1"),
        ("urgency > 3", "column 11, at 3: the value it is compared with lies between 0 and 2"),
        ("refund > -0.1", "column 10, at -0.1: the value it is compared with lies between 0 and 1"),
        (
            "refund",
            "column 7, at its end: a number is compared with another: refund >= 0.5",
        ),
        ("team", 'column 5, at its end: a choice is compared with a name: team == "..."'),
        ('team > "sales"', 'column 6, at > "sales": names are equal or not: > is for numbers'),
        (
            "team == 0.5",
            'column 9, at 0.5: team is a choice: compare it with a name, or team.p["option"] with a number',
        ),
        (
            'refund == "yes"',
            'column 11, at "yes": refund is P(yes), a number: write refund >= 0.5',
        ),
        ("refund == 'no'", "column 11, at 'no': refund is P(yes), a number: write refund < 0.5"),
        (
            'urgency == "Today"',
            'column 12, at "Today": urgency is the expected level, a number from 0 to 2; Today is level 1',
        ),
        ('team.confidence == "x"', 'column 20, at "x": this is compared with a number from 0 to 1'),
        (
            "refund.confidence > 0.5",
            (
                "column 8, at confidence > 0.5: a yes/no question has no confidence;"
                " compare its P(yes): refund >= 0.8"
            ),
        ),
        ('team.p["x"] > 0.5', 'column 8, at "x"] > 0.5: team has no option x'),
        ("urgency.p[3] > 0.5", "column 11, at 3] > 0.5: urgency has no option 3"),
        ("refund.q > 0.5", 'column 8, at q > 0.5: behind the dot: confidence, or p["option"]'),
        ("refund = 0.5", "column 8, at = 0.5: write == instead of ="),
        ("refund > 0.5 && team", "column 14, at && team: write and instead of &&"),
        ("refund > 0.5 || team", "column 14, at || team: write or instead of ||"),
        ("!refund", "column 1, at !refund: write not instead of !"),
        ("0.5 < 0.6", "column 1, at 0.5 < 0.6: this compares two fixed values: no question is in it"),
        ("refund > 0.5 team", "column 14, at team: and, or, or the end was expected"),
        ("(refund > 0.5", "column 14, at its end: ) was expected"),
        ("refund > 0.5)", "column 13, at ): and, or, or the end was expected"),
        ("refund >", "column 9, at its end: a question, a number or a quoted name was expected, not the end"),
        (
            "refund > 0.5 and or",
            "column 18, at or: a question, a number or a quoted name was expected, not or",
        ),
        ("refund > 1%", "column 11, at %: probabilities are written from 0 to 1, without %"),
        ('team == "bill', 'column 9, at "bill: this quote is never closed'),
        (
            r'team == "a\b"',
            r"column 11, at \b\": a backslash in quotes is written twice: \\".replace('\\"', '"'),
        ),
        (
            "dup-charge > 0.5",
            'column 1, at dup-charge > 0.5: no question is called dup (write q["dup-charge"])',
        ),
        ("q['nope'] > 0.5", "column 1, at q['nope'] > 0.5: no question is called nope"),
        ("q[1] > 0.5", 'column 3, at 1] > 0.5: a question id in quotes was expected: q["id"]'),
        ("team in []", "column 10, at ]: the list is empty: nothing can be in it"),
        ("team in 3", 'column 9, at 3: a list of names was expected: in ["billing", "sales"]'),
        ('refund in ["yes"]', 'column 1, at refund in ["yes"]: only a choice can be in a list of names'),
        (
            "(refund > 0.5) == 1",
            "column 16, at == 1: what is in brackets is true or false: nothing can be compared with it",
        ),
        ("refund @ 1", "column 8, at @ 1: unexpected character @"),
        ("__import__('os')", "column 1, at __import__('os'): no question is called __import__"),
    ],
)
def test_a_slip_is_named_with_its_column(text: str, expected: str) -> None:
    assert problems(text)[0] == f"--fail-if: {expected}"


def test_all_wrong_names_and_types_are_reported_at_once() -> None:
    with pytest.raises(errors.InputError) as caught:
        gates.parse_all(["a > 0.5 and b > 0.5", "refund > 2", 'team == "sales"'], ASKED, flag="--where")
    assert caught.value.problems == (
        "--where[1]: column 1, at a > 0.5 and b > 0.5: no question is called a",
        "--where[1]: column 13, at b > 0.5: no question is called b",
        "--where[2]: column 10, at 2: the value it is compared with lies between 0 and 1",
    )
    assert caught.value.next_step == (
        "The questions are refund (P(yes)), team (billing | technical | sales), urgency (level 0 to 2),"
        ' q["dup-charge"] (P(yes)).'
    )
    assert caught.value.exit_code is errors.Exit.INPUT


def test_levels_that_read_the_same_are_named_by_number() -> None:
    same = questions.Score("s", "?", (questions.Level("x", "x"), questions.Level("x", "x")))
    with pytest.raises(errors.InputError, match="2 levels read like this"):
        gates.parse('s.p["x"] > 0.5', [same])
    gates.parse("s.p[1] > 0.5", [same])


def test_questions_called_like_words_of_the_language_are_asked_by_q() -> None:
    asked = [questions.Noul(id, "?") for id in ("and", "q", "in", "über")]
    answered = [answers.NoulAnswer(question.id, 0.9) for question in asked]
    text = 'q["and"] > 0.5 and q > 0.5 and q["q"] > 0.5 and q["in"] > 0.5 and über > 0.5'
    assert gates.parse(text, asked).evaluate(answered, SURE) is True


def test_deep_nesting_is_refused_in_one_line() -> None:
    for text in ("(" * 5000 + "refund > 0.5" + ")" * 5000, "not " * 5000 + "refund > 0.5"):
        assert "nested deeper than 64 levels" in problems(text)[0]


def test_no_text_raises_anything_but_an_input_error() -> None:
    pieces = ["refund", "team", "urgency", "q", "and", "or", "not", "in", "(", ")", "[", "]", ".", ",", "=="]
    pieces += [
        "<",
        ">=",
        "!",
        "p",
        "confidence",
        '"billing"',
        '"Today"',
        "0.5",
        "-1",
        '"open',
        "\\",
        "é",
        "\0",
    ]
    pieces += ["refund > 0.5", 'team == "sales"', 'q["dup-charge"]', '.p["yes"]', "1e999", "dup-charge"]
    chance = random.Random(6)
    parsed = 0
    for _ in range(4000):
        text = " ".join(chance.choice(pieces) for _ in range(chance.randint(1, 9)))
        try:
            gate = gates.parse(text, ASKED)
        except errors.InputError:
            continue
        gate.evaluate(ANSWERS, Thresholds((0.4, 0.6), 0.5))
        parsed += 1
    assert parsed > 0
