"""Which profile an answer set is checked with, which one its lock names, and what a report is printed as."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openjev_cli import answersets, config, errors, locks, models, profiles
from openjev_cli.cli import calibrate, check, common
from tests.unit.test_answersets import HERE
from tests.unit.test_models import put_as_if_verified

ADDRESS = "http://127.0.0.1:9"


def loaded(folder: Path, user: str = "", project: str = "", env: str = "", **flags: object) -> config.Config:
    """Settings where `fast` is the best installed profile. user, project: what the files hold."""
    environment = {"HOME": str(folder), "OPENJEV_CACHE_DIR": str(folder / "cache"), "OPENJEV_PROFILE": env}
    user_file = folder / ".config" / "openjev" / "config.toml"
    user_file.parent.mkdir(parents=True, exist_ok=True)
    user_file.write_text(user)
    (folder / ".openjev.toml").write_text(project)
    settings = config.load(flags, env=environment, cwd=folder)
    fast = profiles.PROFILES["fast"]
    put_as_if_verified(models.path_of(fast, settings), fast.weights)
    return settings


def answer_set(folder: Path, profile: str | None = None) -> answersets.AnswerSet:
    return answersets.AnswerSet(folder / "set.yaml", (), (), profile)


def lock_of(profile: str | None) -> locks.Lock:
    return locks.Lock(profile, {}, {})


def asked(settings: config.Config, found: answersets.AnswerSet, lock: locks.Lock | None = None) -> str:
    return models.described(check._with_profile(settings, found, lock))


def test_the_profile_of_the_lock_is_asked_else_that_of_the_set_never_the_best_installed(
    tmp_path: Path,
) -> None:
    settings = loaded(tmp_path)
    bare, with_max = answer_set(tmp_path), answer_set(tmp_path, "max")
    by_lock = f"profile tiny (project file {tmp_path / 'set.lock.json'})"
    assert asked(settings, bare, lock_of("tiny")) == by_lock
    assert asked(settings, with_max, lock_of("tiny")) == by_lock
    by_set = f"profile max (project file {tmp_path / 'set.yaml'})"
    assert [asked(settings, with_max, lock) for lock in (None, lock_of(None))] == [by_set] * 2
    best = "profile fast (best installed profile)"
    assert [asked(settings, bare, lock) for lock in (None, lock_of(None))] == [best] * 2


@pytest.mark.parametrize(
    "user",
    ["profile = 'quality'", "model = 'x.gguf'\nmmproj = 'y.gguf'", f"connect = '{ADDRESS}'"],
    ids=["profile", "model", "connect"],
)
def test_the_profile_of_a_set_counts_more_than_the_user_file_and_the_project_file(
    user: str, tmp_path: Path
) -> None:
    settings = loaded(tmp_path, user, "profile = 'balanced'")
    expected = f"profile fast (project file {tmp_path / 'set.yaml'})"
    assert asked(settings, answer_set(tmp_path, "fast")) == expected
    used = check._with_profile(settings, answer_set(tmp_path, "fast"), None)
    assert models.resolve(used).mmproj is None


def test_the_call_itself_counts_more_than_the_set_and_the_lock(tmp_path: Path) -> None:
    found, lock = answer_set(tmp_path, "tiny"), lock_of("balanced")
    path = tmp_path / "x.gguf"
    assert asked(loaded(tmp_path, profile="max"), found, lock) == "profile max (flag --profile)"
    assert asked(loaded(tmp_path, model=path), found, lock) == f"{path} (flag --model)"
    assert asked(loaded(tmp_path, connect=ADDRESS), found, lock) == f"{ADDRESS} (flag --connect)"
    by_variable = "profile max (environment OPENJEV_PROFILE)"
    assert asked(loaded(tmp_path, env="max"), found, lock) == by_variable


@pytest.mark.parametrize(
    ("flags", "user", "profile", "expected"),
    [
        ({}, "", None, "fast"),
        ({}, "", "tiny", "tiny"),
        ({"profile": "tiny"}, "model = 'x.gguf'", None, "tiny"),
        ({}, "model = 'x.gguf'", None, None),
        ({}, "model = 'x.gguf'", "fast", "fast"),
        ({"model": "x.gguf"}, "", "tiny", None),
        ({"connect": ADDRESS}, "", "tiny", None),
    ],
)
def test_a_lock_names_the_profile_that_answered(
    flags: dict[str, object], user: str, profile: str | None, expected: str | None, tmp_path: Path
) -> None:
    found = answer_set(tmp_path, profile)
    used = check._with_profile(loaded(tmp_path, user, **flags), found, None)
    check._write(found, [], None, HERE, used, keeps_others=False)
    assert json.loads(found.lock_path.read_text())["profile"] == expected


@pytest.mark.parametrize("name", ["tsv", "value"])
def test_a_format_of_answers_is_refused_for_a_report_only_when_the_call_names_it(
    name: str, tmp_path: Path
) -> None:
    common.refuse_format_of_answers(loaded(tmp_path, f"format = '{name}'", f"format = '{name}'"))
    common.refuse_format_of_answers(loaded(tmp_path, f"format = '{name}'", format="json"))
    for command in (
        lambda: check.check([Path("gone")], format_=name),
        lambda: calibrate.calibrate(Path("gone"), format_=name),
    ):
        with pytest.raises(errors.InputError) as caught:
            command()
        assert caught.value.message == f"--format {name}: a report is printed as table, json or jsonl"
