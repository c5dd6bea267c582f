"""Labelled rows: what is read of them, and that everything wrong is said at once with its line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from openjev_cli import errors, labelled
from openjev_cli.questions import Choice, Noul, Score

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "labelled.jsonl"
NOUL = {"type": "noul", "instructions": "Refund?"}
CHOICE = {"type": "choice", "instructions": "Team?", "criteria": {"billing": "Payments", "sales": None}}
SCORE = {"type": "score", "instructions": "Urgent?", "criteria": ["low", "mid", "high"]}


def row(**fields: object) -> dict[str, object]:
    return {"id": "r", "state": "Refund me!", "question": NOUL, "label": True, **fields}


def written(path: Path, *rows: object) -> Path:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read(path: Path) -> list[labelled.Row]:
    found = list(labelled.read(path))
    assert all(isinstance(one, labelled.Row) for one in found)
    return [one for one in found if isinstance(one, labelled.Row)]


def test_a_label_is_the_place_of_the_right_option(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.jsonl",
        row(id="a"),
        row(id=7, label=False),
        "",
        row(id="c", question=CHOICE, label="sales", split="train", gold_value=1.5),
        row(id="d", question=SCORE, label=2, state={"text": "x"}),
        row(id="e", state=[{"role": "user", "content": "hi"}]),
    )
    found = read(path)
    assert [(one.line, one.id, one.label) for one in found] == [
        (1, "a", 0),
        (2, "7", 1),
        (4, "c", 1),
        (5, "d", 2),
        (6, "e", 0),
    ]
    assert [type(one.question) for one in found] == [Noul, Noul, Choice, Score, Noul]
    assert [one.state.kind for one in found] == ["text", "text", "text", "json", "chat"]
    assert len(labelled.check(path)) == 5


def test_packed_rows_are_read_whatever_the_name(tmp_path: Path) -> None:
    plain = written(tmp_path / "rows.jsonl", row(id="a"), row(id="b"))
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    other = packed.rename(tmp_path / "rows")
    assert [one.id for one in read(other)] == ["a", "b"]
    assert len(labelled.check(other)) == 2


def test_a_damaged_archive_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    data = gzip.compress(b"".join(os.urandom(50).hex().encode() for _ in range(2000)))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.InputError, match="its gzip is damaged or cut off"):
        labelled.check(path)


def test_every_malformed_row_is_reported_with_its_line(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.jsonl",
        row(),
        "{bad",
        "[1]",
        {"id": "x", "state": "s"},
        row(id=""),
        row(label="yes"),
        row(label=None),
        row(question=CHOICE, label="Sales"),
        row(question=SCORE, label=3),
        row(question=SCORE, label=True),
        row(question=SCORE, label=1.0),
        row(question={"type": "noul", "instructions": ""}),
        row(question={"type": "choice", "instructions": "x", "criteria": ["one"]}, label="one"),
        row(question="Refund?"),
        row(),
    )
    with pytest.raises(errors.InputError) as caught:
        labelled.check(path)
    assert list(caught.value.problems) == [
        f"{path}:2:2: a key in double quotes was expected",
        f"{path}:3: must be an object with id, state, question and label",
        f"{path}:4: question: is missing",
        f"{path}:4: label: is missing",
        f"{path}:5: id: must be a text or a number",
        f"{path}:6: label: must be true or false for a noul",
        f"{path}:7: label: must be true or false for a noul",
        f"{path}:8: label: must be the name of one of the options",
        f"{path}:9: label: must be the number of a level, 0 to 2",
        f"{path}:10: label: must be the number of a level, 0 to 2",
        f"{path}:11: label: must be the number of a level, 0 to 2",
        f"{path}:12: question.instructions: is missing",
        f"{path}:13: question.criteria: 1 option: 2 to 255 are allowed",
        f"{path}:14: question: a question is an object with a type",
    ]
    assert caught.value.exit_code == errors.Exit.INPUT


def test_a_picture_that_cannot_be_read_is_named_with_its_row(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    path = written(tmp_path / "rows.jsonl", row(state=[{"role": "user", "content": [part]}]))
    with pytest.raises(errors.InputError) as caught:
        labelled.check(path)
    assert str(caught.value.message).startswith(f"{path}:1")


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", "", "")
    with pytest.raises(errors.InputError, match="no rows in it"):
        labelled.check(path)


def test_a_pipe_is_refused_since_it_is_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.InputError, match="not a regular file"):
        labelled.check(tmp_path / "pipe")


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="no such file"):
        labelled.check(tmp_path / "gone.jsonl")


def test_the_example_is_what_it_shows() -> None:
    assert len(labelled.check(EXAMPLE)) == 72
