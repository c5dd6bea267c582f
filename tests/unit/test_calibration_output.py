"""What `openjev calibrate` prints and draws."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openjev_cli import calibration_output, errors, reliability
from openjev_cli.calibration import Fit, Fitted, MadeFor, Scored, Trial
from openjev_cli.calibration_output import Report, Tried
from openjev_cli.metrics import Bin

HERE = MadeFor("fast <1>", "a" * 64, None, "letters", "f" * 16)
# Twice as sure as it should be: 3 of 4 right at 0.88.
SURE = tuple(Scored((2.0, 0.0), label) for label in (0, 0, 0, 1))
FITTED = Fitted(
    Fit(1.8, prior=(0.25, -0.25)), (Trial("temperature", 0.63, 0.56), Trial("label prior", 0.56, 0.55))
)


def report(path: Path, name: str | None = "fast@12345678") -> Report:
    too_few = Fitted(Fit(), reason="3 rows to fit and 2 held out: 10 and 5 are needed")
    return Report(
        HERE,
        {"noul": Tried(20, SURE, FITTED), "score": Tried(3, (), too_few)},
        name,
        path,
    )


def test_json_holds_both_sides_of_every_measure(tmp_path: Path) -> None:
    wire = json.loads(json.dumps(calibration_output.to_json(report(tmp_path / "fast.json"))))
    assert wire["calibration"] == "fast@12345678"
    assert wire["rows"] == {"fitted": 23, "held_out": 4}
    before, after = wire["held_out"]["before"], wire["held_out"]["after"]
    assert before["accuracy"] == after["accuracy"] == 0.75
    assert before["ece"] == pytest.approx(0.8808 - 0.75, abs=1e-4)
    assert after["ece"] < before["ece"]
    assert after["nll"] < before["nll"]
    assert set(before) == {"accuracy", "accuracy_95", "ece", "nll", "brier", "automate"}
    assert set(before["automate"]) == {"0.01", "0.05", "0.1"}
    # All four are equally sure, and one is wrong: no threshold gives 10 % error.
    assert before["automate"]["0.1"] == {"share": 0.0, "threshold": None}
    assert wire["types"]["noul"]["tried"][0] == {
        "what": "temperature",
        "nll_before": 0.63,
        "nll_after": 0.56,
        "kept": True,
    }
    assert wire["types"]["score"]["not_tried"] == "3 rows to fit and 2 held out: 10 and 5 are needed"
    assert wire["types"]["score"]["held_out"] == {}


def test_a_score_is_judged_by_its_level_which_a_temperature_can_move(tmp_path: Path) -> None:
    # (0.47, 0.24, 0.29): level 0 is the most probable one, level 1 the answer; sharpened it is level 0.
    row = Scored((0.5, -0.2, 0.0), 1)
    tried = Tried(20, (row,), Fitted(Fit(0.2)))
    found = calibration_output.compared({"score": tried})
    assert (found["before"]["accuracy"], found["after"]["accuracy"]) == (1.0, 0.0)
    assert found["before"]["ece"] == pytest.approx(1 - 0.236, abs=1e-3)
    as_choice = calibration_output.compared({"choice": tried})
    assert (as_choice["before"]["accuracy"], as_choice["after"]["accuracy"]) == (0.0, 0.0)


def test_the_table_has_a_row_for_each_measure_of_each_type(tmp_path: Path) -> None:
    rows = calibration_output.table_rows(report(tmp_path / "fast.json"))
    assert [row[0] for row in rows[:8]] == [
        "all: 4 rows",
        "  accuracy",
        "  ECE, 15 bins",
        "  NLL",
        "  Brier",
        "  automate at 1% error",
        "  automate at 5% error",
        "  automate at 10% error",
    ]
    assert rows[1][1:] == ("0.750 (0.301-0.954)",) * 2
    assert rows[5][1:] == ("none", "none")
    assert [row[0] for row in rows if not row[1]] == ["all: 4 rows", "noul: 4 rows", "score: 0 rows"]


def test_below_it_stands_what_was_tried_kept_and_stored(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    assert calibration_output.text_lines(report(path)) == [
        "noul: temperature: NLL 0.6300 -> 0.5600, kept",
        "noul: label prior: NLL 0.5600 -> 0.5500, kept",
        "noul: temperature 1.8",
        "noul: leans to yes by 0.500 nats",
        "score: not fitted: 3 rows to fit and 2 held out: 10 and 5 are needed",
        "4 held-out rows tell little: 100 and more are better",
        f"stored as fast@12345678: {path}",
    ]
    last = calibration_output.text_lines(report(path, None))[-1]
    assert last == "nothing to store: the probabilities are used as they are"
    path.write_text("{}")
    nothing = replace(report(path, None), types={})
    assert calibration_output.text_lines(nothing)[-1] == f"nothing to store; {path} stays as it was"


def test_what_becomes_of_fits_that_were_stored_before_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    both = replace(report(path), carried=("choice",), removed=("score",))
    assert calibration_output.text_lines(both)[-3:] == [
        "choice: not fitted now; its stored fit stays",
        "score: nothing helps now; its stored fit is removed",
        f"stored as fast@12345678: {path}",
    ]
    gone = replace(report(path, None), types={}, removed=("score",))
    last = calibration_output.text_lines(gone)[-1]
    assert last == f"nothing to store; what was stored is now {path}.bak"
    wire = calibration_output.to_json(both)
    assert (wire["carried_over"], wire["removed"]) == (["choice"], ["score"])


def test_the_diagram_is_well_formed_and_holds_both_series(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    calibration_output.write_plot(path, report(tmp_path / "fast.json"))
    root = ElementTree.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{name}svg"
    texts = [one.text for one in root.iter(f"{name}text")]
    assert texts[0] == "Reliability of fast <1>"
    assert [text for text in texts if text and "ECE" in text] == ["before (ECE 0.131)", "after (ECE 0.102)"]
    assert len(list(root.iter(f"{name}polyline"))) == 1
    assert not list(tmp_path.glob(".*"))  # no half-written file is left


def test_a_bar_is_as_high_as_its_answers_are_right() -> None:
    bins = [Bin(0.0, 0.5, 0, 0.0, 0.0), Bin(0.5, 1.0, 4, 0.9, 0.75)]
    root = ElementTree.fromstring(reliability.svg("x", [reliability.Series("only", bins)]))
    bars = [
        one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("class") == "b" and len(one)
    ]
    assert [float(one.get("height", "")) for one in bars] == [pytest.approx(0.75 * 330, abs=0.1)]
    assert bars[0][0].text == "4 answers at 0.90: 0.75 right"


@pytest.mark.parametrize("length", [1, 40, 200])
def test_a_title_of_any_length_fits_into_the_diagram(length: int) -> None:
    root = ElementTree.fromstring(reliability.svg("W" * length, [reliability.Series("only", [])]))
    title = next(one for one in root.iter("{http://www.w3.org/2000/svg}text") if one.text == "W" * length)
    found = re.search(r"font-size:([\d.]+)px", title.get("style", ""))
    assert found is not None
    assert float(title.get("x", "")) + 0.6 * length * float(found[1]) < float(root.get("width", ""))


def test_a_diagram_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="cannot be written"):
        calibration_output.write_plot(tmp_path / "gone" / "plot.svg", report(tmp_path / "fast.json"))


def test_a_diagram_that_fails_leaves_no_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partials: list[Path] = []

    def fail(partial: Path, target: Path) -> None:
        partials.append(partial)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(errors.InputError, match="No space left on device"):
        calibration_output.write_plot(tmp_path / "plot.svg", report(tmp_path / "fast.json"))
    assert [one.name for one in partials] == [f".plot.svg.{os.getpid()}.part"]
    assert not list(tmp_path.glob("*plot*"))


def places_without_a_file(folder: Path) -> list[Path]:
    (folder / "file").touch()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return [folder, folder / "file" / "x", folder / "loop", folder / "pipe", folder / ("x" * 300)]


def test_a_place_that_is_no_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    calibration_output.check_plot(tmp_path / "plot.svg", 1)
    for path in (*places_without_a_file(tmp_path), tmp_path / "gone" / "plot.svg"):
        with pytest.raises(errors.InputError, match="no file can be written there"):
            calibration_output.check_plot(path, 1)


def test_a_place_to_store_is_refused_like_one_for_a_diagram_but_its_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to("target")
    for path in (tmp_path / "fast.json", tmp_path / "new" / "folder" / "fast.json", tmp_path / "linked"):
        calibration_output.check_output(path, name="x")
    for path in places_without_a_file(tmp_path):
        with pytest.raises(errors.InputError, match="mine: no file can be written there"):
            calibration_output.check_output(path, name="mine")


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file system is not asked: root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    for check in (
        lambda: calibration_output.check_plot(tmp_path / "plot.svg", 1),
        lambda: calibration_output.check_output(tmp_path / "new" / "fast.json", name="x"),
    ):
        with pytest.raises(errors.InputError, match="no file can be written there"):
            check()


def test_a_diagram_without_a_held_out_row_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="no row is held out"):
        calibration_output.check_plot(tmp_path / "plot.svg", 0)


def test_a_diagram_of_no_rows_is_refused(tmp_path: Path) -> None:
    empty = Report(HERE, {}, None, tmp_path / "fast.json")
    with pytest.raises(errors.InputError, match="no row was held out"):
        calibration_output.write_plot(tmp_path / "plot.svg", empty)
