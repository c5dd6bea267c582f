"""`--orders` on the real engine: case F07, what is counted, and where it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CASES, Command

REFUND = "refund: Does the customer ask for a refund?"
TEAM = "team: Which team? [billing: Payments | technical: Bugs | sales]"
LEVEL = "urgency: How urgent is it? [Routine < Today < Blocked]"
ALL = ("-Q", REFUND, "-Q", TEAM, "-Q", LEVEL)


def ask(openjev: Command, *arguments: str | Path, **options: Any) -> dict[str, Any]:
    result = openjev("ask", *arguments, "-f", "json", **options)
    assert result.returncode == 0, result.stderr.decode()
    wire: dict[str, Any] = json.loads(result.stdout)
    return wire


@pytest.mark.parametrize("model", ["tiny_model", "tiny_hybrid"])
def test_case_f07_the_same_options_in_another_order_give_the_same_answer(
    openjev: Command, model: str, request: pytest.FixtureRequest
) -> None:
    """Small models lean to a place in the list (`spread` says how far); over all orders that cancels."""
    weights = request.getfixturevalue(model)
    found = [
        ask(
            openjev,
            CASES / "F07_state.txt",
            *("-q", CASES / f"F07_order{number}.json", "--orders", "6", "--model", weights),
        )["answers"]["risk"]
        for number in range(3)
    ]
    assert [list(one["probabilities"]) for one in found] == [
        ["low", "medium", "high"],
        ["high", "medium", "low"],
        ["medium", "high", "low"],
    ]
    assert len({one["choice"] for one in found}) == 1
    for option in ("low", "medium", "high"):
        p = [one["probabilities"][option] for one in found]
        assert max(p) - min(p) <= 1e-5  # the case allows 0.15
    assert len({(one["orders"]["n"], one["orders"]["flips"]) for one in found}) == 1


@pytest.mark.parametrize("model", ["tiny_model", "tiny_hybrid"])
def test_case_f07_yes_before_no_and_no_before_yes_give_the_same_answer(
    openjev: Command, model: str, request: pytest.FixtureRequest
) -> None:
    weights = request.getfixturevalue(model)
    asked = {
        "noul": {"type": "noul", "instructions": "Is it phishing?", "criteria": {"true": "A trick", "false": "Safe"}},
        "turned": {"type": "noul", "instructions": "Is it phishing?", "criteria": {"false": "Safe", "true": "A trick"}},
        "yes_no": {"type": "choice", "instructions": "Is it phishing?", "criteria": {"yes": "A trick", "no": "Safe"}},
        "no_yes": {"type": "choice", "instructions": "Is it phishing?", "criteria": {"no": "Safe", "yes": "A trick"}},
    }  # fmt: skip
    (openjev.cwd / "asked.json").write_text(json.dumps(asked))
    answers = ask(
        openjev, CASES / "F07_state.txt", *("-q", "asked.json", "--orders", "2", "--model", weights)
    )["answers"]
    p_yes = [answers["noul"]["noul"], answers["turned"]["noul"]]
    p_yes += [answers[name]["probabilities"]["yes"] for name in ("yes_no", "no_yes")]
    assert max(p_yes) - min(p_yes) <= 1e-5


def test_each_reading_is_the_one_that_its_order_gives_alone(openjev: Command) -> None:
    """The average is of what the two orders say when somebody writes them down."""
    turned = "team: Which team? [sales | technical: Bugs | billing: Payments]"
    one, other = (
        ask(openjev, "--text", "Refund me", "-Q", q)["answers"]["team"]["probabilities"]
        for q in (TEAM, turned)
    )
    both = ask(openjev, "--text", "Refund me", "-Q", TEAM, "--orders", "2")["answers"]["team"]
    means = {name: (one[name] * other[name]) ** 0.5 for name in one}
    expected = {name: mean / sum(means.values()) for name, mean in means.items()}
    assert both["probabilities"] == pytest.approx(expected, abs=1e-6)
    winner = both["choice"]
    assert both["orders"]["spread"] == pytest.approx(abs(one[winner] - other[winner]), abs=1e-6)


def test_usage_counts_every_prompt_that_was_read(openjev: Command) -> None:
    once = ask(openjev, "--text", "Refund me", *ALL)
    many = ask(openjev, "--text", "Refund me", *ALL, "--orders", "4")
    assert once["usage"]["output_tokens"] == 3
    # Two for yes/no, four for the choice, two for the levels, all in one request.
    assert many["usage"]["output_tokens"] == 8
    assert many["usage"]["input_tokens"] > 2 * once["usage"]["input_tokens"]
    assert [one["orders"]["n"] for one in many["answers"].values()] == [2, 4, 2]
    assert all("orders" not in one for one in once["answers"].values())


def test_the_table_has_a_column_and_explain_names_each_order(openjev: Command) -> None:
    result = openjev("ask", "--text", "x", *ALL, "--orders", "2", "-f", "table", "--explain")
    assert result.returncode == 0
    assert "orders" in result.stdout.decode().splitlines()[0]
    assert result.stdout.decode().count("2, spread 0.") == 3
    shown = result.stderr.decode()
    assert "question team, order 2: " in shown
    assert "Levels, from highest to lowest:" in shown


def test_an_answer_that_turns_is_said_on_stderr(openjev: Command) -> None:
    """The random model flips on some of many questions, and the notice names exactly those."""
    asked = [
        word
        for number in range(12)
        for word in ("-Q", f"q{number}: Which of them is it, number {number}? [red | green | blue | grey]")
    ]
    result = openjev("ask", "--text", "a colour", *asked, "--orders", "2", "-f", "json")
    flipping = [name for name, one in json.loads(result.stdout)["answers"].items() if one["orders"]["flips"]]
    notices = [line for line in result.stderr.decode().splitlines() if "order of the options" in line]
    assert flipping
    assert notices == [f"note: the answer turns with the order of the options: {', '.join(flipping)}"]


def test_is_and_pick_read_in_orders_too(openjev: Command) -> None:
    is_ = openjev("is", "Is it red?", "--text", "red", "--orders", "2", "-f", "json")
    assert json.loads(is_.stdout)["answers"]["q1"]["orders"]["n"] == 2
    pick = openjev(
        "pick", "Which?", "-o", "a", "-o", "b", "-o", "c", "--text", "x", "--orders", "3", "-f", "json"
    )
    assert json.loads(pick.stdout)["answers"]["q1"]["orders"]["n"] == 3


def test_a_stream_is_read_in_orders(openjev: Command) -> None:
    result = openjev("ask", "--each", "-Q", TEAM, "--orders", "2", stdin="a\nb\n")
    alone = ask(openjev, "--text", "b", "-Q", TEAM, "--orders", "2")["answers"]
    lines = [json.loads(line)["answers"] for line in result.stdout.splitlines()]
    assert len(lines) == 2
    assert lines[1]["team"]["probabilities"] == pytest.approx(alone["team"]["probabilities"], abs=1e-5)


def test_a_recorded_set_keeps_the_orders_and_a_check_without_them_says_so(openjev: Command) -> None:
    (openjev.cwd / "questions.txt").write_text(f"{REFUND}\n{TEAM}\n{LEVEL}\n")
    (openjev.cwd / "one.txt").write_text("I was charged twice.")
    (openjev.cwd / "set.yaml").write_text("questions: questions.txt\ncases:\n  - state: one.txt\n")
    assert openjev("record", "set.yaml", "--orders", "2").returncode == 0
    same = openjev("check", "set.yaml", "--orders", "2", "--tolerance", "0", "-f", "json")
    assert (same.returncode, json.loads(same.stdout)["changes"]) == (0, [])
    other = openjev("check", "set.yaml", "-f", "json")
    assert json.loads(other.stdout)["changes"] == ["setting orders: 2 -> None"]


def test_the_stock_engine_gives_the_same_averages(openjev: Command, stock_server: Path) -> None:
    patched = ask(openjev, "--text", "Refund me", *ALL, "--orders", "3")["answers"]
    stock = ask(
        openjev, "--text", "Refund me", *ALL, "--orders", "3", env={"OPENJEV_LLAMA_SERVER": str(stock_server)}
    )["answers"]
    assert stock["team"]["probabilities"] == pytest.approx(patched["team"]["probabilities"], abs=1e-5)
    assert stock["refund"]["noul"] == pytest.approx(patched["refund"]["noul"], abs=1e-5)


def test_more_orders_than_priors_are_remembered_are_still_corrected(openjev: Command) -> None:
    assert openjev("config", "set", "prior", "1").returncode == 0
    asked = [
        word for i in range(5) for word in ("-Q", f"q{i}: Which one, {i}? [red | green | blue | grey | tan]")
    ]
    wire = ask(openjev, "--text", "x", *asked, "--orders", "52")
    assert wire["usage"]["output_tokens"] == 260
    assert [one["orders"]["n"] for one in wire["answers"].values()] == [52] * 5


def test_reused_readings_are_counted_as_readings(openjev: Command) -> None:
    for reused in (0, 6):
        wire = ask(openjev, "--text", "x", "-Q", TEAM, "--orders", "6", "--reuse")
        assert wire["timing"]["reused_answers"] == reused


@pytest.mark.parametrize("n", ["0", "65", "-1", "two"])
def test_a_number_of_orders_that_makes_no_sense_is_refused(n: str, offline: Command) -> None:
    result = offline("ask", "-Q", REFUND, "--text", "x", "--orders", n)
    assert (result.stdout, result.returncode) == (b"", 2)
    assert "--orders" in result.stderr.decode().splitlines()[0]
