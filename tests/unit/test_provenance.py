"""What produced an answer: what its key must change with, and what it must not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from openjev_cli import prompt, provenance
from openjev_cli.profiles import Readout
from openjev_cli.provenance import Provenance

HERE = Provenance(
    model="fast",
    model_sha256="a" * 64,
    projector_sha256="b" * 64,
    adapter_sha256="c" * 64,
    release="b11434",
    build="d" * 64,
    patches="e" * 64,
    backend="cpu",
    cpu="f" * 16,
    machine="machine one",
    argv=("--parallel", "8"),
    template="0" * 32,
    wording="1" * 32,
    settings=(("readout", "letters"),),
)
# What things are called, and settings: those that move a reading are in its prompt, which is keyed beside this.
NAMES = {"model", "machine", "settings"}
DECIDING = [field.name for field in fields(Provenance) if field.name not in NAMES]


@pytest.mark.parametrize("name", DECIDING)
def test_the_key_changes_with_whatever_decides_an_answer(name: str) -> None:
    other = ("--parallel", "9") if name == "argv" else "other"
    assert replace(HERE, **{name: other}).key() != HERE.key()


@pytest.mark.parametrize("name", ["projector_sha256", "adapter_sha256"])
def test_a_file_that_is_not_there_is_another_one(name: str) -> None:
    assert replace(HERE, **{name: None}).key() != HERE.key()


def test_a_file_is_known_by_what_it_is_for() -> None:
    swapped = replace(HERE, projector_sha256=HERE.adapter_sha256, adapter_sha256=HERE.projector_sha256)
    assert swapped.key() != HERE.key()


def test_the_key_stays_when_things_only_have_other_names() -> None:
    assert replace(HERE, model="mine", machine="two").with_settings(calibration="x").key() == HERE.key()


@pytest.mark.parametrize("kind", ["letters", "words"])
def test_the_wording_changes_with_the_text_for_no_state_where_a_prior_is_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, corrected = (provenance.wording(Readout(kind, prior)) for prior in (0.0, 0.5))
    monkeypatch.setattr(prompt, "NO_STATE", "nothing")
    assert provenance.wording(Readout(kind)) == plain
    assert provenance.wording(Readout(kind, 0.5)) != corrected


def test_each_readout_has_a_wording_of_its_own() -> None:
    assert provenance.wording(Readout("words")) != provenance.wording(Readout("letters"))
