"""What a session keeps and refuses by itself; what it answers is tried on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from openjev_cli import calibration, config, decide, errors
from openjev_cli.calibration import Calibration, Fit, MadeFor

MADE_FOR = MadeFor("own", "a" * 64, None, "letters", "b" * 16)


def session_of(tmp_path: Path, **settings: object) -> decide.Session:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return decide.Session(config.load(settings, env=environ, cwd=tmp_path), environ)


def test_a_calibration_stays_as_it_was_first_read_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    calibration.write(path, Calibration("mine", MADE_FOR, {"noul": Fit(1.5)}))
    session = session_of(tmp_path, calibration=path)
    first = session._read_calibration(path)
    assert first is not None
    assert first.fits == {"noul": Fit(1.5)}
    path.write_text("{")
    assert session._read_calibration(path) is first
    path.unlink()
    assert session._read_calibration(path) is first


def test_a_calibration_that_was_named_must_be_there(tmp_path: Path) -> None:
    session = session_of(tmp_path, calibration=tmp_path / "named.json")
    with pytest.raises(errors.InputError, match="no such file"):
        session._read_calibration(tmp_path / "named.json")
