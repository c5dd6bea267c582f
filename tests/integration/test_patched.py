"""The Python side of POST /decide: one request for everything, the same answers as the stock way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openjev_cli import answers, config, decide, errors, questions, request
from openjev_cli import state as states
from openjev_cli.engine.facts import CHECKED_RENDERINGS
from openjev_cli.timing import Stages

QUESTIONS = (
    questions.Noul("refund", "Refund?"),
    questions.Choice("team", "Team?", (questions.Option("billing", "Payments"), questions.Option("sales"))),
    questions.Score("mood", "Mood?", (questions.Level("calm", "calm"), questions.Level("cross", "cross"))),
)

OpenSession = Callable[..., decide.Session]


@pytest.fixture
def open_session(llama_server: Path, tiny_hybrid: Path, runtime_dir: Path, tmp_path: Path) -> OpenSession:
    """Opens sessions on one managed server; keyword arguments are settings."""
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir), "PATH": "", "OPENJEV_CACHE_DIR": str(tmp_path / "cache")}

    def open_one(**settings: object) -> decide.Session:
        loaded = config.load(
            {"model": tiny_hybrid, **settings},
            env={**environ, "OPENJEV_LLAMA_SERVER": str(llama_server)},
            cwd=tmp_path,
        )
        return decide.Session(loaded, environ)

    return open_one


def ask(session: decide.Session, text: str, asked: tuple[questions.Question, ...]) -> answers.Decision:
    stages = Stages(time.perf_counter())
    return session.decide(request.Request(states.from_text(text), asked), stages)


def numbers(decision: answers.Decision) -> list[float]:
    return [p for answer in decision.answers for _, p in sorted(answer.ranked)]


def test_a_warm_ask_is_one_connection_and_one_request(open_session: OpenSession) -> None:
    """Once the skeleton's first results have been compared with the engine's own rendering."""
    with open_session() as session:
        for number in range(CHECKED_RENDERINGS):
            ask(session, f"I paid {number} times.", QUESTIONS)
    with open_session() as session:
        ask(session, "Another state.", QUESTIONS)
        assert [client.requests_sent for client in session._idle] == [1]


def test_more_questions_than_one_request_takes_are_answered_in_order(open_session: OpenSession) -> None:
    many = tuple(questions.Noul(f"q{i}", f"Is it number {i}?") for i in range(70))
    with open_session() as session:
        together = ask(session, "It is number 7.", many)
        assert [answer.id for answer in together.answers] == [question.id for question in many]
        for i in (0, 63, 64, 69):
            alone = ask(session, "It is number 7.", many[i : i + 1])
            assert numbers(alone) == pytest.approx(
                [p for _, p in sorted(together.answers[i].ranked)], abs=1e-5
            )


def test_a_repeated_state_costs_only_its_questions(open_session: OpenSession) -> None:
    text = "The parcel was late. " * 60
    with open_session() as session:
        cold = ask(session, text, QUESTIONS[:1])
        warm = ask(session, text, QUESTIONS[1:2])
    assert cold.usage.cached_tokens < 20
    # Everything but the question itself was there.
    assert warm.usage.input_tokens - warm.usage.cached_tokens < 60
    assert warm.usage.cached_tokens > 200


def test_no_cache_reads_everything_and_answers_the_same(open_session: OpenSession) -> None:
    text = "The parcel was late. " * 60
    with open_session() as session:
        warm = [ask(session, text, QUESTIONS) for _ in range(2)][-1]
    with open_session(cache=False) as session:
        cold = [ask(session, text, QUESTIONS) for _ in range(2)][-1]
    assert cold.usage.input_tokens == warm.usage.input_tokens
    assert numbers(cold) == pytest.approx(numbers(warm), abs=1e-5)


def test_a_state_that_does_not_fit_names_both_numbers(open_session: OpenSession) -> None:
    with open_session() as session, pytest.raises(errors.InputError) as caught:
        ask(session, "word " * 20000, QUESTIONS)
    assert "tokens, but 8191 are available; nothing was cut" in caught.value.message


def test_times_of_the_engine_fit_into_the_call(open_session: OpenSession) -> None:
    with open_session() as session:
        ask(session, "I paid twice.", QUESTIONS)
        began_at_s = time.perf_counter()
        timing = ask(session, "I paid three times.", QUESTIONS).timing
        wall_ms = (time.perf_counter() - began_at_s) * 1000.0
    assert 0.0 < timing.inference_ms <= wall_ms
    assert 0.0 <= timing.queue_ms <= wall_ms
    assert timing.processing_ms <= wall_ms
