"""Labelled rows: a state, a question and the right answer, one JSON object a line, as `openjev calibrate` takes.

    {"id": "t1", "state": "Refund me!", "question": {"type": "noul", "instructions": "Refund?"}, "label": true}

The question has the shape of the wire. label: true or false for a noul, the name of the option for a choice, the
number of the level, from 0, for a score. Further fields are not read. Files may be packed with gzip.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openjev_cli import errors, questions, reading, records
from openjev_cli import state as states

_CHUNK_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Row:
    """One labelled row. line: where it stands in the file. label: the place of the right option, yes before no."""

    line: int
    id: str
    state: states.State
    question: questions.Question
    label: int


def check(path: Path, *, compact: bool = True) -> tuple[str, ...]:
    """Return the ids of a file's rows. Raises one InputError with everything that is wrong with any of them."""
    problems: list[str] = []
    ids: list[str] = []
    for row in read(path, compact=compact):
        if isinstance(row, errors.InputError):
            problems += row.problems
        else:
            ids.append(row.id)
    if not ids and not problems:
        problems.append(f"{path}: no rows in it")
    if problems:
        raise errors.collect(
            problems, next_step="Correct these rows: id, state, question and label, one JSON object a line."
        )
    return tuple(ids)


def read(path: Path, *, compact: bool = True) -> Iterator[Row | errors.InputError]:
    """Yield the rows of a file in order, one at a time; for one that cannot be used, what is wrong with it.

    Raises InputError when the file itself cannot be read.
    """
    if not path.is_file() and path.exists():
        raise errors.InputError(
            f"{path}: not a regular file, and rows are read twice",
            next_step="Save them in a file, and name that.",
        )
    with io.FileIO(records.open_file(path)) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        held = gzip.GzipFile(fileobj=file) if packed else file

        def more() -> bytes:
            try:
                return held.read(_CHUNK_BYTES) or b""
            except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
                raise errors.InputError(
                    f"{path}: its gzip is damaged or cut off", next_step="Fetch or pack it again."
                ) from exc
            except OSError as exc:
                raise errors.InputError(
                    f"{path}: cannot be read: {exc.strerror}", next_step="Check the path."
                ) from exc

        for record in records.stream_of(os.fspath(path), more, "ndjson"):
            yield record.fault or _row(record, f"{path}:{record.line}", compact)


def _row(record: records.Record, where: str, compact: bool) -> Row | errors.InputError:
    value = record.value
    if not isinstance(value, dict):
        return _bad([f"{where}: must be an object with id, state, question and label"])
    missing = [key for key in ("id", "state", "question", "label") if key not in value]
    problems = [f"{where}: {key}: is missing" for key in missing]
    id = value.get("id")
    if "id" in value and not (isinstance(id, reading.Number) or (isinstance(id, str) and id)):
        problems.append(f"{where}: id: must be a text or a number")
    state = None
    if "state" in value:
        try:
            state = states.from_value(value["state"], compact=compact, name=where)
        except errors.InputError as exc:
            problems += [text if where in text else f"{where}: state: {text}" for text in exc.problems]
    question = None
    if "question" in value:
        asked, found = questions.from_wire({"question": value["question"]})
        problems += [f"{where}: {reading.describe(problem)}" for problem in found]
        question = asked[0] if asked else None
        held = value["question"]
        if isinstance(held, dict) and held.get("instructions") in (None, ""):
            problems.append(f"{where}: question.instructions: is missing")
    label = None
    if question is not None and "label" in value:
        label, message = _place(question, value["label"])
        if message:
            problems.append(f"{where}: label: {message}")
    if problems or state is None or question is None or label is None:
        return _bad(problems)
    return Row(record.line, str(reading.plain(id)), state, question, label)


def _bad(problems: list[str]) -> errors.InputError:
    return errors.collect(problems, next_step="Correct that row.")


def _place(question: questions.Question, label: reading.Value) -> tuple[int | None, str]:
    """Return which option a label names, or None and what is wrong with it."""
    if isinstance(question, questions.Noul):
        if isinstance(label, bool):
            return (0 if label else 1), ""
        return None, "must be true or false for a noul"
    if isinstance(question, questions.Choice):
        names = [option.name for option in question.options]
        if isinstance(label, str) and label in names:
            return names.index(label), ""
        return None, "must be the name of one of the options"
    last = len(question.levels) - 1
    level = reading.plain(label) if isinstance(label, reading.Number) else None
    if isinstance(level, int) and 0 <= level <= last:
        return level, ""
    return None, f"must be the number of a level, 0 to {last}"
