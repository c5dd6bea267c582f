"""What findings say about answers that are known, missed, or differ between together and alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from openjev_cli import answers, config, decide, doctor, errors, timing
from openjev_cli.doctor import Finding


def settings(tmp_path: Path) -> config.Config:
    return config.load({}, env={"HOME": str(tmp_path)}, cwd=tmp_path)


def decision(model: str, refund: float, billing: float, start_ms: float | None = None) -> answers.Decision:
    team = {"billing": billing, "technical": 1 - billing, "sales": 0.0}
    choice = answers.ChoiceAnswer("team", max(team, key=lambda name: team[name]), team)
    times = timing.Timing(1.0, 1.0, 0.0, 8.0, start_ms=start_ms)
    return answers.Decision(model, (answers.NoulAnswer("refund", refund), choice), answers.Usage(1, 1), times)


@pytest.mark.parametrize(
    ("decided", "level", "says"),
    [
        (decision("SmolLM2-135M-Instruct-Q4_1", 0.36, 0.20), "ok", "off by 0.0080 at most"),
        (decision("SmolLM2-135M-Instruct-Q4_1", 0.9, 0.20), "problem", "0.352, 0.206 was expected"),
        (decision("SmolLM2-135M-Instruct-Q4_1+words-2", 0.99, 0.985), "ok", "off by 0.0140 at most"),
        (decision("Qwen3.5-0.8B-Q4_K_M", 0.9, 0.8), "ok", "both right"),
        (decision("Qwen3.5-0.8B-Q4_K_M", 0.9, 0.2), "problem", "but both are plain"),
        (decision("own", 0.1, 0.2), "ok", "(no expectation for this model)"),
    ],
)
def test_a_known_question_is_judged_by_what_the_model_should_say(
    decided: answers.Decision, level: str, says: str
) -> None:
    found = doctor._known_question(decided)
    assert (found.level, says in found.what, bool(found.next_step)) == (level, True, level == "problem")


def test_the_known_question_is_asked_as_it_was_measured_whatever_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked_with = []

    class Session(decide.Session):
        def __init__(self, settings: config.Config, *_: object) -> None:
            asked_with.append((settings.calibration, settings.readout, settings.prior))
            raise errors.ServerError("none here", next_step="start one")

    monkeypatch.setattr(decide, "Session", Session)
    changed = {"calibration": "mine.json", "readout": "words", "prior": "0.5"}
    settings = config.load(changed, env={}, cwd=tmp_path)
    assert [one.level for one in doctor._answers(settings, {}, print)] == ["problem"]
    assert asked_with == [("off", None, None)]


def test_times_tell_a_start_from_a_server_that_was_up() -> None:
    told = [doctor._times(decision("own", 0, 0, start), 1.5, 0.25).what for start in (1200.0, None)]
    assert told == [
        "4 questions: first 1500 ms, 1200 ms of them to start; again 250 ms",
        "4 questions: first 1500 ms, server was up; again 250 ms",
    ]


def test_only_problems_must_be_fixed() -> None:
    assert not doctor.must_fix([Finding("a", "ok", ""), Finding("b", "warning", "", "x")])
    assert doctor.must_fix([Finding("a", "ok", ""), Finding("b", "problem", "", "x")])


def test_a_missing_compiler_matters_only_without_a_binary() -> None:
    environ = {"PATH": "/nonexistent"}
    levels = [doctor._compiler(environ, is_needed=needed).level for needed in (True, False)]
    assert levels == ["problem", "ok"]
