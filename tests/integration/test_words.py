"""Options read by their own text, on the real engine: the numbers are those of writing the option token by token."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import labels, words
from tests.conftest import CASES, Command
from tests.integration.decide_server import TOLERANCE, Server, some_tokens

END = 2


@pytest.fixture(scope="module", params=["tiny_hybrid", "tiny_model"])
def engine(llama_server: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    weights = request.getfixturevalue(request.param)
    with Server(llama_server, weights, slots=4, context=2048) as server:
        yield server


def ask(
    server: Server, prefix: list[int], asked: list[tuple[list[int], list[list[int]]]], **fields: object
) -> list[Any]:
    """The results for questions (ids, options) of token ids."""
    body = {
        "prefix": [{"tokens": prefix}],
        "suffixes": [
            {"segments": [{"tokens": ids}], "options": [[{"tokens": one}] for one in options], "end": END}
            for ids, options in asked
        ],
        **fields,
    }
    status, reply = server.call("POST", "/decide", body)
    assert status == 200, reply
    results: list[Any] = reply["results"]
    return results


def by_labels(server: Server, prefix: list[int], ids: list[int], options: list[list[int]]) -> list[float]:
    """log P of each option, each branching point asked alone, by labels, with nothing cached."""
    trie = words.build(options, END)
    scores = [
        server.lone(prefix, ([*ids, *branching.path], list(branching.tokens)))["logits"]
        for branching in trie.branchings
    ]
    return list(words.log_probabilities(trie, scores))


def some_options(rng: random.Random, count: int) -> list[list[int]]:
    found: set[tuple[int, ...]] = set()
    while len(found) < count:
        found.add(tuple(rng.choice((30, 31, 32)) for _ in range(rng.randint(1, 4))))
    return [list(one) for one in sorted(found, key=lambda _: rng.random())]


@pytest.mark.parametrize(("count", "questions"), [(2, 1), (5, 3), (26, 1)])
def test_options_have_the_probability_of_being_written_token_by_token(
    engine: Server, count: int, questions: int
) -> None:
    rng = random.Random(count)
    prefix = some_tokens(rng, 20)
    asked = [(some_tokens(rng, 9), some_options(rng, count)) for _ in range(questions)]
    expected_of = [by_labels(engine, prefix, ids, options) for ids, options in asked]
    for cache_prompt in (False, True, True):
        results = ask(engine, prefix, asked, cache_prompt=cache_prompt)
        for result, expected in zip(results, expected_of, strict=True):
            assert max(abs(a - b) for a, b in zip(result["logprobs"], expected, strict=True)) <= TOLERANCE
            assert math.fsum(map(math.exp, result["logprobs"])) == pytest.approx(1.0)
            assert 0 < result["mass"] <= 1


def test_options_of_one_token_are_what_labels_are(engine: Server) -> None:
    rng = random.Random(3)
    prefix, ids, tokens = some_tokens(rng, 40), some_tokens(rng, 8), [50, 60, 70]
    (result,) = ask(engine, prefix, [(ids, [[one] for one in tokens])])
    lone = engine.lone(prefix, (ids, tokens))
    expected = [math.log(p) for p in labels.probabilities(lone["logits"])]
    assert result["logprobs"] == pytest.approx(expected, abs=TOLERANCE)
    mass = sum(math.exp(logit - lone["logsumexp"]) for logit in lone["logits"])
    assert result["mass"] == pytest.approx(mass, abs=TOLERANCE)


def test_questions_by_labels_and_by_options_share_a_request(engine: Server) -> None:
    rng = random.Random(4)
    prefix = some_tokens(rng, 40)
    ids = [some_tokens(rng, 6) for _ in range(3)]
    options = some_options(rng, 4)
    body = {
        "prefix": [{"tokens": prefix}],
        "suffixes": [
            {"segments": [{"tokens": ids[0]}], "labels": [50, 60]},
            {"segments": [{"tokens": ids[1]}], "options": [[{"tokens": one}] for one in options], "end": END},
            {"segments": [{"tokens": ids[2]}], "labels": [70, 80, 90]},
        ],
    }
    status, reply = engine.call("POST", "/decide", body)
    assert status == 200
    first, second, third = reply["results"]
    assert first["logits"] == pytest.approx(engine.lone(prefix, (ids[0], [50, 60]))["logits"], abs=TOLERANCE)
    assert second["logprobs"] == pytest.approx(by_labels(engine, prefix, ids[1], options), abs=TOLERANCE)
    assert third["logits"] == pytest.approx(
        engine.lone(prefix, (ids[2], [70, 80, 90]))["logits"], abs=TOLERANCE
    )
    assert reply["tokens"]["suffixes"] == [6, 6, 6]


WORDS = ("--readout", "words", "-f", "json")
QUESTIONS = (
    ("refund: A refund?", "team: Which? [billing: money | bills of others | bill | sales]"),
    ("refund: A refund?", "urgency: How urgent? [Not at all < Not very < Very]"),
)


def probabilities(openjev: Command, state: str, *arguments: str) -> dict[str, Any]:
    run = openjev("ask", "--text", state, *arguments)
    assert run.returncode == 0, run.stderr.decode()
    answers: dict[str, Any] = json.loads(run.stdout)["answers"]
    return answers


def asking(questions: tuple[str, ...]) -> list[str]:
    return [word for question in questions for word in ("-Q", question)]


@pytest.mark.parametrize("questions", QUESTIONS)
def test_repeated_and_reordered_questions_have_the_same_answers(
    openjev: Command, questions: tuple[str, ...]
) -> None:
    together = probabilities(openjev, "I paid twice.", *asking(questions), *WORDS)
    again = probabilities(openjev, "I paid twice.", *asking(questions[::-1]), *WORDS)
    cold = probabilities(openjev, "I paid twice.", *asking(questions), *WORDS, "--no-cache")
    for name, answer in together.items():
        expected = pytest.approx(distribution(answer), abs=1e-5)
        assert distribution(again[name]) == expected
        assert distribution(cold[name]) == expected


def test_options_that_part_at_more_points_than_one_request_takes_are_read_in_several(
    openjev: Command,
) -> None:
    names = [" ".join(letters) for letters in itertools.product("xy", repeat=4)]
    names[:2] = [f"{name} {last}" for name in names[:2] for last in "xy"]
    # 18 options part at 17 points: 1088 in 64 questions, and the engine takes 1024.
    questions = tuple(f"q{i}: Which is number {i}? [{' | '.join(names)}]" for i in range(64))
    together = probabilities(openjev, "I paid twice.", *asking(questions), *WORDS)
    assert len(together) == 64
    for i in (0, 63):
        alone = probabilities(openjev, "I paid twice.", *asking(questions[i : i + 1]), *WORDS)
        expected = pytest.approx(distribution(alone[f"q{i}"]), abs=1e-5)
        assert distribution(together[f"q{i}"]) == expected


def distribution(answer: dict[str, Any]) -> list[float]:
    return [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())


def test_a_state_that_says_nothing_is_undecided_once_the_prior_is_taken_off(
    openjev: Command, tmp_path: Path
) -> None:
    settings = tmp_path / "config" / "openjev" / "config.toml"
    settings.write_text(settings.read_text() + "prior = 1.0\n")
    for _ in range(2):  # the second time the prior is remembered
        answers = probabilities(openjev, "N/A", *asking(QUESTIONS[0]), *WORDS)
        assert answers["refund"]["noul"] == pytest.approx(0.5, abs=1e-6)
        assert list(answers["team"]["probabilities"].values()) == pytest.approx([0.25] * 4, abs=1e-6)
    told = probabilities(openjev, "I paid twice.", *asking(QUESTIONS[0]), *WORDS)
    assert told["refund"]["noul"] != pytest.approx(0.5, abs=1e-6)


def test_options_that_look_the_same_are_refused_with_what_to_do(openjev: Command, stock_server: Path) -> None:
    asked = json.dumps(
        {"q": {"type": "choice", "instructions": "?", "criteria": {"a\x01": None, "a\\u0001": None}}}
    )
    for env in ({}, {"OPENJEV_LLAMA_SERVER": str(stock_server)}):
        run = openjev("ask", "--text", "x", "-q", "-", *WORDS, stdin=asked, env=env)
        assert run.returncode == 2, run.stderr.decode()
        assert b"--readout letters" in run.stderr


def test_a_stock_engine_refuses_words_beside_images_as_input(
    openjev: Command, stock_server: Path, tiny_projector: Path
) -> None:
    picture = ("ask", CASES / "C01_plain.png", "-Q", "Is it red?", "--mmproj", tiny_projector, *WORDS)
    run = openjev(*picture, env={"OPENJEV_LLAMA_SERVER": str(stock_server)})
    assert (run.returncode, run.stdout) == (2, b""), run.stderr.decode()
    assert b"by their own text beside images" in run.stderr


def test_explain_shows_the_options_as_they_are_read(openjev: Command) -> None:
    run = openjev("ask", "--text", "x", "-Q", "Which? [billing | sales]", "--readout", "words", "--explain")
    assert run.returncode == 0, run.stderr.decode()
    shown = (run.stdout + run.stderr).decode()
    assert "option" in shown
    assert "' billing'" in shown
    assert "Answer:" in shown
