"""Streams: order, failures that stop nothing, what stops everything, exit codes, and where to go on."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from openjev_cli import answers, decide, errors, gates, questions, reading, records, stream
from openjev_cli.cli import each
from openjev_cli.config import Config
from openjev_cli.errors import Exit
from openjev_cli.request import Request
from openjev_cli.timing import Stages, Timing

ASKED = (questions.Noul("refund", "Refund?"),)
NO_TIME = Timing(0.0, 0.0, 0.0, 0.0)


class Engine(decide.Session):
    """A session whose engine is a function of the state's text: P(yes), or an error to raise."""

    def __init__(self, config: Config, p_yes: Callable[[str], float]) -> None:
        super().__init__(config, {})
        self._p_yes = p_yes

    def decide(self, request: Request, stages: Stages, progress: object = None) -> answers.Decision:
        answer = answers.NoulAnswer("refund", self._p_yes(request.state.text))
        return answers.Decision("model", (answer,), answers.Usage(1, 1), NO_TIME)


@pytest.fixture
def config() -> Config:
    from pathlib import Path

    from openjev_cli import config

    return config.load({}, env={"HOME": "/nonexistent"}, cwd=Path("/"))


def run_of(
    text: str,
    p_yes: Callable[[str], float],
    config: Config,
    plan: stream.Plan | None = None,
    *,
    is_ordered: bool = True,
    workers: int = 4,
) -> stream.Run:
    chunks = iter([text.encode()])
    source = records.stream_of("in", lambda: next(chunks, b""), None)
    plan = plan or stream.Plan(ASKED)
    return stream.Run(source, plan, Engine(config, p_yes), workers=workers, is_ordered=is_ordered)


def p_of(outcome: stream.Outcome) -> float | str:
    if outcome.error is not None:
        return outcome.error.message
    assert outcome.decision is not None
    answer = outcome.decision.answers[0]
    assert isinstance(answer, answers.NoulAnswer)
    return answer.noul


def engine_error() -> errors.EngineError:
    return errors.EngineError("refused", next_step="look")


def test_answers_come_in_the_order_of_the_records_and_are_never_mixed_up(config: Config) -> None:
    def p_yes(text: str) -> float:
        time.sleep(chance.random() / 1000)
        return int(text) / 1000

    chance = random.Random(1)
    run = run_of("".join(f"{n}\n" for n in range(500)), p_yes, config, workers=8)
    assert [(one.record.line, p_of(one)) for one in run] == [(n + 1, n / 1000) for n in range(500)]
    assert (run.tally.answered, run.tally.failed, run.resume_at) == (500, 0, 501)


def test_unordered_answers_are_complete(config: Config) -> None:
    run = run_of(
        "".join(f"{n}\n" for n in range(200)), lambda text: int(text) / 1000, config, is_ordered=False
    )
    assert sorted((one.record.line, p_of(one)) for one in run) == [(n + 1, n / 1000) for n in range(200)]


def test_a_bad_record_stops_nothing(config: Config) -> None:
    def p_yes(text: str) -> float:
        if "long" in text:
            raise errors.InputError("the state does not fit", next_step="shorten it")
        return 0.5

    text = '{"a":"x"}\n{"a":"long"}\n{oops\n{"a":"y"}\n'
    run = run_of(text, p_yes, config)
    assert [(one.key, p_of(one)) for one in run] == [
        ({"line": 1}, 0.5),
        ({"line": 2}, "the state does not fit"),
        ({"line": 3}, "in:3:2: a key in double quotes was expected"),
        ({"line": 4}, 0.5),
    ]
    assert run.tally.failed_lines == [2, 3]
    assert run.tally.exit_code() is Exit.PARTIAL


def test_an_image_for_a_model_that_sees_none_stops_nothing(config: Config) -> None:
    def p_yes(text: str) -> float:
        if "image" in text:
            raise errors.SightError("tiny does not see images", next_step="ask another")
        return 0.5

    run = run_of("a\nimage\nb\n", p_yes, config)
    assert [p_of(one) for one in run] == [0.5, "tiny does not see images", 0.5]
    assert (run.tally.failed_lines, run.tally.exit_code()) == ([2], Exit.PARTIAL)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 512])
def test_no_number_of_failures_becomes_exit_0(count: int, config: Config) -> None:
    run = run_of('{"a":1}\n' + "{bad\n" * count, lambda _: 0.5, config)
    assert sum(1 for _ in run) == count + 1
    assert (run.tally.failed, run.tally.exit_code()) == (count, Exit.PARTIAL)


def test_fields_pick_the_state_and_its_key(config: Config) -> None:
    seen: list[str] = []

    def p_yes(text: str) -> float:
        seen.append(text)
        return 0.5

    first = '{"id":"a1","user":{"text":"hi"},"n":1.50}\n'
    text = first + '{"id":2,"user":{}}\n{"user":{"text":"x"}}\n{"id":[],"n":1}'
    plan = stream.Plan(ASKED, fields=("user.text",), id_field="id")
    outcomes = list(run_of(text, p_yes, config, plan, workers=1))
    assert [(one.key, p_of(one)) for one in outcomes] == [
        ({"id": "a1"}, 0.5),
        ({"id": 2}, "in:2: no field user.text"),
        ({"line": 3}, "in:3: no field id"),
        ({"line": 4}, "in:4: id is neither a text nor a number, so it is no id"),
    ]
    plan = stream.Plan(ASKED, fields=("n", "id"))
    list(run_of(first, p_yes, config, plan))
    assert seen == ["hi", '{"n":1.50,"id":"a1"}']


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", (True, {"b": ["x", {"c": "y"}]})),
        ("a.b.0", (True, "x")),
        ("a.b.1.c", (True, "y")),
        ("d.e", (True, "dotted")),
        ("d.e.f", (False, None)),
        ("g.h.i", (True, "mixed")),
        ("a.b.2", (False, None)),
        ("a.b.-1", (False, None)),
        ("nope", (False, None)),
        ("null", (True, None)),
        ("", (False, None)),
    ],
)
def test_a_path_is_a_key_first_and_then_a_way_down(path: str, expected: tuple[bool, object]) -> None:
    value: reading.Value = {
        "a": {"b": ["x", {"c": "y"}]},
        "d.e": "dotted",
        "g.h": {"i": "mixed"},
        "null": None,
    }
    assert stream.select(value, path) == expected


def test_gates_and_filters_are_kept_per_record(config: Config) -> None:
    plan = stream.Plan(
        ASKED,
        where=(gates.parse("refund > 0.3", ASKED),),
        fail_if=(gates.parse("refund > 0.8", ASKED),),
        thresholds=gates.Thresholds(unsure=(0.4, 0.6)),
    )
    run = run_of("0.1\n0.35\n0.5\n0.9\n", float, config, plan)
    assert [(one.passes, one.fails) for one in run] == [
        (False, False),
        (True, False),
        (None, None),
        (True, True),
    ]
    assert (run.tally.verdicts, run.tally.verdict_lines, run.tally.unsure) == (1, [4], 1)
    assert run.tally.exit_code() is Exit.VERDICT


def test_the_most_severe_of_what_happened_is_the_exit_code() -> None:
    def tally(*what: str) -> stream.Tally:
        return stream.Tally(
            answered=5, failed="failed" in what, verdicts="verdict" in what, unsure="unsure" in what
        )

    assert tally().exit_code() is Exit.OK
    assert tally("unsure").exit_code() is Exit.UNSURE
    assert tally("unsure", "verdict").exit_code() is Exit.VERDICT
    assert tally("verdict", "failed").exit_code() is Exit.PARTIAL
    assert tally("unsure", "failed").exit_code() is Exit.PARTIAL


def test_exit_codes_are_ordered_pair_by_pair() -> None:
    order = [70, 130, 4, 3, 5, 2, 6, 1, 7, 0]
    for i, j in itertools.product(range(len(order)), repeat=2):
        assert errors.most_severe([Exit(order[i]), Exit(order[j])]) == order[min(i, j)]
    assert errors.most_severe([]) is Exit.OK


def test_an_engine_that_answered_nothing_is_an_error_of_the_engine(config: Config) -> None:
    def p_yes(text: str) -> float:
        raise engine_error()

    run = run_of("1\n2\n", p_yes, config)
    assert [p_of(one) for one in run] == ["refused", "refused"]
    assert run.tally.exit_code() is Exit.ENGINE


def test_an_engine_that_keeps_failing_stops_the_stream(config: Config) -> None:
    def p_yes(text: str) -> float:
        if int(text) > 10:
            raise engine_error()
        return 0.5

    run = run_of("".join(f"{n}\n" for n in range(10_000)), p_yes, config, workers=2)
    handed_out: list[stream.Outcome] = []
    with pytest.raises(errors.EngineError):
        handed_out.extend(run)
    assert run.tally.done == 11 + 2 * 2 + 1


def test_readouts_that_are_unusable_fail_their_own_record_only(config: Config) -> None:
    def p_yes(text: str) -> float:
        raise errors.ReadoutError("no label", next_step="check")

    assert sum(1 for _ in run_of("x\n" * 100, p_yes, config, workers=2)) == 100


def test_a_server_that_cannot_be_started_stops_the_stream(config: Config) -> None:
    def p_yes(text: str) -> float:
        if text == "3":
            raise errors.ServerError("died", next_step="look")
        return 0.5

    outcomes: Iterator[stream.Outcome] = iter(run_of("1\n2\n3\n4\n", p_yes, config, workers=1))
    assert [p_of(one) for one in itertools.islice(outcomes, 2)] == [0.5, 0.5]
    with pytest.raises(errors.ServerError):
        next(outcomes)


def test_resume_is_the_first_record_not_finished(config: Config) -> None:
    release = threading.Event()

    def p_yes(text: str) -> float:
        if text == "slow":
            assert release.wait(10)
        return 0.5

    run = run_of("a\n\nslow\nb\nc\n", p_yes, config, is_ordered=False, workers=2)
    outcomes = iter(run)
    assert run.resume_at == 1
    assert [next(outcomes).record.line for _ in range(3)] == [1, 4, 5]
    assert run.resume_at == 3
    release.set()
    assert next(outcomes).record.line == 3
    assert next(outcomes, None) is None
    assert run.resume_at == 6


def test_no_element_of_an_array_is_passed_over_by_a_stream_that_goes_on(config: Config) -> None:
    run = run_of('["a", "b",\n "c"]', lambda _: 0.5, config, workers=1)
    outcomes = iter(run)
    seen = []
    for outcome in outcomes:
        seen.append((outcome.record.line, run.resume_at))
        run.settle(outcome)
        seen.append((outcome.record.line, run.resume_at))
    # What follows may begin on the line of what was settled last, until the array has ended.
    assert [line for line, _ in seen] == [1, 1, 1, 1, 2, 2]
    assert all(at <= line for line, at in seen[:3])
    assert (run.tally.answered, run.resume_at) == (3, 3)


def test_an_outcome_settled_twice_is_counted_once(config: Config) -> None:
    run = run_of("a\nb\n", lambda _: 0.5, config)
    for outcome in run:
        run.settle(outcome)
        run.settle(outcome)
    assert run.tally.answered == 2


def printed_under_ctrl_c(times: int) -> list[str]:
    """Return what is printed of a record when Ctrl-C comes so often before its first byte."""
    printed = []
    try:
        with each._interrupt_held():
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            printed.append("line")
    except KeyboardInterrupt:
        return printed
    pytest.fail("Ctrl-C was lost")


def test_ctrl_c_waits_for_the_record_that_is_being_printed() -> None:
    assert printed_under_ctrl_c(1) == ["line"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    assert printed_under_ctrl_c(2) == []


def test_start_at_passes_over_what_is_before_it(config: Config) -> None:
    plan = stream.Plan(ASKED, start_at=3)
    run = run_of("1\n{bad\n3\n4\n", lambda _: 0.5, config, plan)
    assert [one.record.line for one in run] == [3, 4]


def test_a_field_that_an_answer_would_overwrite_is_refused(config: Config) -> None:
    plan = stream.Plan(ASKED, reserved="answers")
    run = run_of('{"answers":1}\n{"a":1}\n', lambda _: 0.5, config, plan)
    assert [p_of(one) for one in run] == ["in:1: there is a field called answers already", 0.5]
