"""Fits on rows with a known answer, the file, and when a calibration applies."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from openjev_cli import calibration, errors, labels
from openjev_cli.calibration import Calibration, Fit, MadeFor, Scored
from openjev_cli.questions import Choice, Noul, Option

HERE = MadeFor("fast", "a" * 64, None, "letters", "f" * 16)


def drawn(seed: int, n: int, k: int, fit: Fit, *, spread: float = 2.0) -> list[Scored]:
    """Rows whose labels are drawn from their scores after a known calibration."""
    chance = random.Random(seed)
    rows = []
    for _ in range(n):
        scores = tuple(chance.gauss(0.0, spread) for _ in range(k))
        p = labels.probabilities(fit.adjust(scores, range(k)))
        rows.append(Scored(scores, chance.choices(range(k), p)[0]))
    return rows


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_fit_recovers_a_known_temperature(temperature: float) -> None:
    rows = drawn(1, 2000, 3, Fit(temperature))
    assert calibration.with_temperature(rows, Fit()).temperature == pytest.approx(temperature, rel=0.1)


def test_the_fitted_temperature_is_the_bottom_of_the_valley() -> None:
    rows = drawn(2, 300, 4, Fit(1.7))
    found = calibration.with_temperature(rows, Fit()).temperature
    least = calibration.nll(rows, Fit(found))
    assert all(calibration.nll(rows, Fit(found * by)) > least for by in (0.95, 1.05))


def test_a_few_rows_that_are_all_right_do_not_make_every_answer_certain() -> None:
    rows = [Scored((1.0, 0.0), 0)] * 30
    sure = labels.probabilities(calibration.with_temperature(rows, Fit()).adjust((1.0, 0.0), (0, 1)))[0]
    assert labels.probabilities((1.0, 0.0))[0] < 0.74 < 0.95 < sure < 0.999


def test_a_fit_that_does_not_help_is_not_kept() -> None:
    # What is held out is as sharp as the scores say; what is fitted is noise.
    noise, sharp = drawn(3, 200, 3, Fit(10.0)), drawn(4, 200, 3, Fit(1.0))
    found = calibration.fit("choice", noise, sharp)
    assert found.fit == Fit()
    assert not found.is_kept
    assert [(trial.what, trial.is_kept) for trial in found.trials] == [("temperature", False)]
    assert found.trials[0].after > found.trials[0].before


def test_a_fit_that_helps_is_kept() -> None:
    found = calibration.fit("score", drawn(5, 400, 4, Fit(3.0)), drawn(6, 200, 4, Fit(3.0)))
    assert found.is_kept
    assert found.fit.temperature == pytest.approx(3.0, rel=0.2)
    assert found.trials[0].after < found.trials[0].before


def test_the_fit_recovers_a_known_position_bias() -> None:
    true = Fit(2.0, positions=(1.2, -0.2, -0.4, -0.6))
    found = calibration.fit("choice", drawn(7, 600, 4, true), drawn(8, 300, 4, true), position_bias=True).fit
    assert found.temperature == pytest.approx(2.0, rel=0.15)
    assert found.positions == pytest.approx(true.positions, abs=0.25)
    assert math.fsum(found.positions) == pytest.approx(0.0, abs=1e-9)


def test_the_fit_recovers_a_known_label_prior() -> None:
    true = Fit(1.0, prior=(0.8, -0.8))
    rows, held_out = drawn(9, 600, 2, true), drawn(10, 300, 2, true)
    found = calibration.fit("noul", rows, held_out, label_prior=True)
    assert found.fit.prior == pytest.approx((0.8, -0.8), abs=0.2)
    assert [trial.what for trial in found.trials] == ["temperature", "label prior"]


def test_biases_are_fitted_only_when_asked_for_and_only_where_they_mean_something() -> None:
    rows, held_out = drawn(11, 60, 2, Fit(2.0)), drawn(12, 60, 2, Fit(2.0))

    def tried(kind: calibration.Type, **asked: bool) -> list[str]:
        return [trial.what for trial in calibration.fit(kind, rows, held_out, **asked).trials]

    assert tried("noul") == tried("score") == ["temperature"]
    assert tried("noul", position_bias=True) == ["temperature"]
    assert tried("score", position_bias=True, label_prior=True) == ["temperature"]
    assert tried("choice", position_bias=True, label_prior=True) == ["temperature", "position bias"]


def test_rows_with_different_numbers_of_options_share_their_labels_biases() -> None:
    true = Fit(1.0, positions=(1.0, -0.5, -0.5))
    rows = drawn(13, 400, 3, true) + drawn(14, 400, 2, true)
    found = calibration.fit(
        "choice", rows, drawn(15, 300, 3, true) + drawn(16, 300, 2, true), position_bias=True
    )
    differences = [found.fit.positions[0] - one for one in found.fit.positions[1:]]
    assert differences == pytest.approx([1.5, 1.5], abs=0.3)


def test_what_was_not_tried_is_carried_over_and_what_no_longer_helps_is_removed() -> None:
    before: dict[calibration.Type, Fit] = {"noul": Fit(1.5), "choice": Fit(2.0), "score": Fit(3.0)}
    failed = calibration.Trial("temperature", 0.5, 0.6)
    now: dict[calibration.Type, calibration.Fitted] = {
        "noul": calibration.Fitted(Fit(), (failed,)),
        "score": calibration.Fitted(Fit(), reason="3 rows to fit and 2 held out: 10 and 5 are needed"),
    }
    assert calibration.merge(before, now) == (
        {"choice": Fit(2.0), "score": Fit(3.0)},
        ("choice", "score"),
        ("noul",),
    )
    now["choice"] = calibration.Fitted(Fit(4.0))
    assert calibration.merge(before, now).fits == {"choice": Fit(4.0), "score": Fit(3.0)}


def test_too_few_rows_are_not_fitted_and_the_reason_is_given() -> None:
    few = drawn(17, 9, 2, Fit())
    assert calibration.fit("noul", few, few) == calibration.Fitted(
        Fit(), reason="9 rows to fit and 9 held out: 10 and 5 are needed"
    )


def test_rows_are_held_out_by_their_id_alone() -> None:
    ids = [f"row-{i}" for i in range(3000)]
    held_out = [id for id in ids if calibration.is_held_out(id)]
    assert 900 < len(held_out) < 1100
    assert held_out == [id for id in reversed(ids) if calibration.is_held_out(id)][::-1]
    assert [calibration.is_held_out(id) for id in ids[:9]] == [
        calibration.is_held_out(f"row-{i}") for i in range(9)
    ]
    # What was held out in one version must be in the next.
    assert [i for i in range(20) if calibration.is_held_out(f"row-{i}")] == HELD_OUT_OF_TWENTY


HELD_OUT_OF_TWENTY = [2, 3, 4, 7, 8, 9, 13, 14, 16, 19]


def test_scores_are_divided_then_biases_subtracted_by_label_and_by_option() -> None:
    fit = Fit(2.0, positions=(0.5, -0.5), prior=(0.25, -0.25))
    assert fit.adjust((4.0, 2.0), (0, 1)) == (2.0 - 0.5 - 0.25, 1.0 + 0.5 + 0.25)
    # The same question with no before yes: A is now the no.
    assert fit.adjust((4.0, 2.0), (1, 0)) == (2.0 - 0.5 + 0.25, 1.0 + 0.5 - 0.25)
    # A label that no row had is not moved.
    assert fit.adjust((1.0, 1.0, 6.0), (0, 1, 2))[2] == 3.0


def test_the_identity_changes_no_score() -> None:
    assert Fit().adjust((4.0, -math.inf, 0.1), (0, 1, 2)) == (4.0, -math.inf, 0.1)


# The file


def stored(path: Path, made_for: MadeFor = HERE, **fits: Fit) -> Calibration:
    held = {calibration._kind(kind): fit for kind, fit in fits.items()}
    found = Calibration(
        calibration.name_of(path, made_for, held), made_for, held, {"rows": {"fitted": 9, "held_out": 4}}
    )
    calibration.write(path, found)
    return found


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration" / "fast.json"
    written = stored(path, noul=Fit(1.5, prior=(0.1, -0.1)), choice=Fit(2.0, (0.5, -0.5)))
    assert calibration.read(path) == written
    assert written.name.startswith("fast@")
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_one_before_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    first = stored(path, noul=Fit(1.5))
    second = stored(path, noul=Fit(1.6))
    assert calibration.read(path) == second
    backup = calibration.read(tmp_path / "fast.json.bak")
    assert backup.fits == first.fits
    assert sorted(one.name for one in tmp_path.glob("fast*")) == ["fast.json", "fast.json.bak"]


def test_a_name_tells_one_calibration_from_another(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    names = {
        stored(path, noul=Fit(1.5)).name,
        stored(path, noul=Fit(1.6)).name,
        stored(path, choice=Fit(1.5)).name,
        stored(path, HERE._replace(wording="e" * 16), noul=Fit(1.5)).name,
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "written by another version"),
        ({"types": {"nul": {"temperature": 1}}}, "no type of question is called 'nul'"),
        ({"types": {"noul": {"temperature": 0}}}, "the temperature is 0"),
        ({"types": {"noul": {"temperature": True}}}, "True is no number"),
        ({"types": {"noul": {"temperature": 1, "prior": ["x"]}}}, "'x' is no number"),
        ({"types": {"noul": {"temperature": 1, "bias": []}}}, "unknown: bias"),
        ({"types": {"noul": {}}}, "temperature"),
        ({"made_for": {}}, "not a calibration"),
        ({"types": []}, "not a calibration"),
        ({"types": {"noul": {"temperature": 10**400}}}, "a number is too large"),
        ({"types": {"noul": {"temperature": 1, "prior": [math.inf]}}}, "inf is no number"),
        ({"made_for": {**HERE._asdict(), "readout": None}}, "made_for.readout is no text"),
        ({"made_for": {**HERE._asdict(), "model": [[]]}}, "made_for.model is no text"),
    ],
)
def test_a_damaged_file_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    stored(path, noul=Fit(1.5))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(errors.InputError) as caught:
        calibration.read(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"version": 1}', "[" * 100_000])
def test_a_file_that_is_no_calibration_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(errors.InputError, match="not a calibration"):
        calibration.read(path)


# In use


def test_it_applies_to_exactly_what_it_was_made_for(tmp_path: Path) -> None:
    path = tmp_path / "fast.json"
    written = stored(path, noul=Fit(1.5))
    assert calibration.in_use(path, HERE) == (written, None)
    assert calibration.in_use(path, HERE._replace(model="the same under another name")) == (written, None)


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (HERE._replace(model_sha256="b" * 64), "another model;"),
        (HERE._replace(adapter_sha256="c" * 64), "another adapter;"),
        (HERE._replace(readout="words"), "another readout;"),
        (HERE._replace(wording="e" * 16, readout="words"), "another readout and wording;"),
        (HERE._replace(model_sha256=None), "it is not known which model answers"),
    ],
)
def test_one_made_for_something_else_is_not_applied_and_the_notice_says_why(
    now: MadeFor, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "fast.json"
    stored(path, noul=Fit(1.5))
    found, notice = calibration.in_use(path, now)
    assert found is None
    assert notice is not None
    assert named in notice
    assert str(path) in notice


def kept_for(folder: Path, made_for: MadeFor, **fits: Fit) -> Path:
    path = folder / f"fast-{made_for.key}.json"
    stored(path, made_for, **fits)
    return path


def test_a_key_stands_for_everything_but_the_name() -> None:
    assert HERE.key == HERE._replace(model="the same under another name").key
    changed: list[dict[str, str]] = [{field: "x"} for field in MadeFor._fields[1:]]
    assert len({HERE.key, *(HERE._replace(**one).key for one in changed)}) == 5


def test_of_several_stored_the_one_for_what_answers_is_applied(tmp_path: Path) -> None:
    words = HERE._replace(readout="words", wording="e" * 16)
    other = HERE._replace(model_sha256="b" * 64)
    paths = [kept_for(tmp_path, one, noul=Fit(2.0)) for one in (HERE, words, other)]
    for made_for, path in zip((HERE, words, other), paths, strict=True):
        assert calibration.stored_for(paths, made_for) == (calibration.read(path), None)


def test_when_none_is_for_what_answers_the_notice_is_about_the_nearest(tmp_path: Path) -> None:
    near, far = HERE._replace(wording="e" * 16), HERE._replace(readout="words", wording="e" * 16)
    paths = [kept_for(tmp_path, one, noul=Fit(2.0)) for one in (far, near)]
    found, notice = calibration.stored_for(paths, HERE)
    assert found is None
    assert notice is not None
    assert "another wording;" in notice


def test_a_damaged_one_matters_only_where_it_would_be_applied(tmp_path: Path) -> None:
    damaged = kept_for(tmp_path, HERE, noul=Fit(2.0))
    damaged.write_text("{")
    words = HERE._replace(readout="words")
    assert calibration.stored_for([damaged], words) == (None, None)
    with pytest.raises(errors.InputError, match="not a calibration"):
        calibration.stored_for([damaged], HERE)


def test_an_unknown_model_is_never_the_same_as_another_unknown_one() -> None:
    nobody = HERE._replace(model_sha256=None)
    assert nobody.differences(nobody) == ("model",)


def test_only_the_types_it_holds_are_touched() -> None:
    found = Calibration("x", HERE, {"noul": Fit(2.0)})
    noul = Noul("a", "?")
    choice = Choice("b", "?", (Option("x"), Option("y")))
    assert found.fit_of(noul) == Fit(2.0)
    assert found.fit_of(choice) is None
    assert found.touches([choice, noul])
    assert not found.touches([choice])
