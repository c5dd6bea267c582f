"""`openjev calibrate` without an engine: what it stores, prints and refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import answers, calibration, config, errors, request, timing
from openjev_cli.calibration import Fit, MadeFor
from openjev_cli.cli import calibrate as command

HERE = MadeFor("fast", "a" * 64, None, "letters", "f" * 16)
NOUL = {"type": "noul", "instructions": "Refund?"}
SCORE = {"type": "score", "instructions": "Urgent?", "criteria": ["low", "high"]}


class Answering:
    """Stands in for a session: an option is twice as likely as the other when its number is in the state."""

    made = HERE

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def made_for(self) -> MadeFor:
        return self.made

    def model_key(self) -> str:
        return "fast"

    def workers(self, n_questions: int) -> int:
        return 1

    def decide(self, asked: request.Request, stages: timing.Stages) -> answers.Decision:
        said = int(asked.state.text)
        scores = tuple(math.log(2.0) if at == said else 0.0 for at in range(2))
        spent = stages.finish(queue_ms=0.0, inference_ms=0.0)
        return answers.Decision("fast", (), answers.Usage(1, 1), spent, scores=(scores,))


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answering]]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_session", lambda settings: Answering())
    yield Answering
    Answering.made = HERE


def rows(path: Path, *questions: dict[str, Any], says: bool = True, n: int = 45) -> Path:
    """Labelled rows. says: whether the fitted rows and the held-out ones agree about the model, which is always
    right then."""
    lines = []
    for question in questions:
        for i in range(n):
            right = i % 2
            id = f"{question['type']}-{i}"
            said = right if says or not calibration.is_held_out(id) else 1 - right
            label = right == 0 if question is NOUL else right
            lines.append({"id": id, "state": str(said), "question": question, "label": label})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def calibrate(capsys: pytest.CaptureFixture[str], *arguments: Any, **named: Any) -> dict[str, Any]:
    assert command.calibrate(*arguments, format_="json", quiet=True, **named) == 0
    wire: dict[str, Any] = json.loads(capsys.readouterr().out)
    return wire


@pytest.mark.parametrize("name", ["tsv", "value"])
def test_a_format_that_a_report_does_not_have_is_refused_on_the_command_line_only(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(tmp_path / "rows.jsonl", NOUL)
    with pytest.raises(
        errors.InputError, match=f"--format {name}: a report is printed as table, json or jsonl"
    ):
        command.calibrate(path, format_=name)
    (tmp_path / "config" / "openjev").mkdir(parents=True)
    (tmp_path / "config" / "openjev" / "config.toml").write_text(f'format = "{name}"\n')
    assert command.calibrate(path, quiet=True) == 0
    assert json.loads(capsys.readouterr().out)["calibration"] is not None


def test_a_run_on_one_type_leaves_the_fits_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = calibrate(capsys, rows(tmp_path / "noul.jsonl", NOUL))
    before = calibration.read(Path(first["file"]))
    second = calibrate(capsys, rows(tmp_path / "score.jsonl", SCORE))
    found = calibration.read(Path(second["file"]))
    assert first["file"] == second["file"]
    assert set(found.fits) == {"noul", "score"}
    assert found.fits["noul"] == before.fits["noul"]
    assert found.facts["noul"] == before.facts["noul"]
    assert (second["carried_over"], second["removed"]) == (["noul"], [])
    assert second["calibration"] == found.name


def test_a_type_that_nothing_helps_any_more_loses_its_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(calibrate(capsys, rows(tmp_path / "both.jsonl", NOUL, SCORE))["file"])
    now = calibrate(capsys, rows(tmp_path / "noise.jsonl", SCORE, says=False))
    assert (now["carried_over"], now["removed"]) == (["noul"], ["score"])
    assert set(calibration.read(path).fits) == {"noul"}
    now = calibrate(capsys, rows(tmp_path / "noise.jsonl", NOUL, says=False))
    assert (now["calibration"], now["file"], now["removed"]) == (None, None, ["noul"])
    assert not path.exists()
    assert set(calibration.read(path.with_name(path.name + ".bak")).fits) == {"noul"}


def test_one_made_for_something_else_is_neither_overwritten_nor_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], session: type[Answering]
) -> None:
    first = calibrate(capsys, rows(tmp_path / "rows.jsonl", NOUL))
    session.made = HERE._replace(readout="words")
    second = calibrate(capsys, rows(tmp_path / "rows.jsonl", NOUL))
    assert first["file"] != second["file"]
    assert calibration.read(Path(first["file"])).made_for == HERE
    assert second["carried_over"] == []
    calibrate(capsys, rows(tmp_path / "noise.jsonl", NOUL, says=False))
    assert Path(first["file"]).exists()
    assert not Path(second["file"]).exists()


def test_a_run_with_too_few_rows_changes_nothing_that_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = calibrate(capsys, rows(tmp_path / "rows.jsonl", NOUL))
    kept = Path(first["file"]).read_bytes()
    second = calibrate(capsys, rows(tmp_path / "few.jsonl", NOUL, n=3))
    assert (second["calibration"], second["carried_over"]) == (first["calibration"], ["noul"])
    assert Path(first["file"]).read_bytes() == kept
    assert not Path(first["file"] + ".bak").exists()


def test_a_file_that_is_named_keeps_what_was_made_for_the_same_and_drops_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.json"
    calibrate(capsys, rows(tmp_path / "noul.jsonl", NOUL), target=mine)
    calibrate(capsys, rows(tmp_path / "score.jsonl", SCORE), target=mine)
    assert set(calibration.read(mine).fits) == {"noul", "score"}
    foreign = HERE._replace(readout="words")
    calibration.write(mine, calibration.Calibration("x", foreign, {"choice": Fit(2.0)}))
    now = calibrate(capsys, rows(tmp_path / "score.jsonl", SCORE), target=mine)
    assert (set(calibration.read(mine).fits), now["carried_over"]) == ({"score"}, [])


def refuse_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(settings: object) -> Any:
        raise AssertionError("something was asked")

    monkeypatch.setattr(command, "_session", session)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_ask(monkeypatch)
    path = rows(tmp_path / "rows.jsonl", NOUL)
    with pytest.raises(errors.InputError, match=f"--output {tmp_path}: no file can be written there"):
        command.calibrate(path, target=tmp_path)
    with pytest.raises(errors.InputError, match=f"--plot {tmp_path}: no file can be written there"):
        command.calibrate(path, plot=tmp_path)
    fitted_only = rows(tmp_path / "one.jsonl", NOUL, n=1)
    with pytest.raises(errors.InputError, match="--plot: no row is held out"):
        command.calibrate(fitted_only, plot=tmp_path / "plot.svg")


def test_the_folder_of_calibrations_is_checked_before_rows_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").touch()
    monkeypatch.setattr(Answering, "decide", None)
    with pytest.raises(errors.InputError, match="no file can be written there"):
        command.calibrate(rows(tmp_path / "rows.jsonl", NOUL), quiet=True)


def test_a_diagram_that_fails_late_costs_neither_the_report_nor_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plots").mkdir()
    monkeypatch.setattr(Answering, "made_for", lambda self: (tmp_path / "plots").rmdir() or HERE)
    path = rows(tmp_path / "rows.jsonl", NOUL)
    with pytest.raises(errors.InputError, match=r"--plot .* cannot be written: No such file"):
        command.calibrate(path, plot=tmp_path / "plots" / "x.svg", format_="json", quiet=True)
    wire = json.loads(capsys.readouterr().out)
    assert calibration.read(Path(wire["file"])).name == wire["calibration"]


def test_a_calibration_that_cannot_be_stored_costs_neither_the_report_nor_the_diagram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(config, "replace_file", full)
    plot = tmp_path / "plot.svg"
    with pytest.raises(errors.InputError, match="No space left on device"):
        command.calibrate(rows(tmp_path / "rows.jsonl", NOUL), plot=plot, format_="table", quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].lstrip().startswith("held out")
    assert lines[-1].startswith("not stored: cannot write ")
    assert plot.read_text().startswith("<svg")


def test_a_model_whose_name_is_no_utf_8_can_be_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], session: type[Answering]
) -> None:
    session.made = HERE._replace(model="mod\udcffel")
    wire = calibrate(capsys, rows(tmp_path / "rows.jsonl", NOUL), plot=tmp_path / "plot.svg")
    assert calibration.read(Path(wire["file"])).made_for == session.made
