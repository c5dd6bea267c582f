"""The lock of an answer set: what was answered, and what produced it. One case a line, so that a changed case is
a changed line; written in one step, so that it is never half there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openjev_cli import errors, reading

LOCK_VERSION = 1


@dataclass(frozen=True)
class Recorded:
    """A recorded answer. p: probability by option (level numbers for a score). flips: its decision was another
    one when the options were reversed; None when that was not asked."""

    question: str
    answer: str
    p: Mapping[str, float]
    flips: bool | None = None


@dataclass(frozen=True)
class RecordedCase:
    """A recorded case. by: the key of its producer. state: digest of what was judged."""

    by: str
    state: str
    answers: Mapping[str, Recorded]


@dataclass(frozen=True)
class Lock:
    """What was recorded. producers: provenance by key. profile: what answered, None = a model file, or a
    server elsewhere."""

    profile: str | None
    producers: Mapping[str, Mapping[str, Any]]
    cases: Mapping[str, RecordedCase]


def read(path: Path) -> Lock | None:
    """Return the lock, or None when there is none. Raises InputError for a damaged one."""
    if not path.exists():
        return None
    text = reading.decode(reading.read_file(path), name=str(path))
    anew = f"remove it and record the whole set again: rm {path}; openjev record"
    next_step = f"Restore it from version control, or {anew}"
    try:
        raw = json.loads(text)
        if raw["version"] != LOCK_VERSION:
            version = reading.shorten(str(raw["version"]))
            raise errors.InputError(
                f"{path}: written by another version of openjev (lock version {version})",
                next_step=f"With this version, {anew}",
            )
        cases = {
            id: RecordedCase(
                held["by"],
                held["state"],
                {name: Recorded(**one) for name, one in held["answers"].items()},
            )
            for id, held in raw["cases"].items()
        }
        lock = Lock(raw["profile"], raw["producers"], cases)
        _check(lock)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        why = reading.shorten(str(exc), 200)
        raise errors.InputError(f"{path}: not a lock of an answer set ({why})", next_step=next_step) from exc
    except RecursionError as exc:
        raise errors.InputError(f"{path}: nested too deeply", next_step=next_step) from exc
    return lock


def _check(lock: Lock) -> None:
    """Raise ValueError or TypeError for what no lock holds: whoever uses one does not look again."""
    if lock.profile is not None:
        _check_text(lock.profile, "profile")
    if not isinstance(lock.producers, dict):
        raise TypeError("producers is no object")
    for key, producer in lock.producers.items():
        if not isinstance(producer, dict):
            raise TypeError(f"producer {key} is no object")
        for name, value in producer.items():
            for one in value.values() if isinstance(value, dict) else (value,):
                if one is not None:
                    _check_text(one, f"{name} of producer {key}")
    for id, case in lock.cases.items():
        _check_text(case.by, f"by of {id}")
        if case.by not in lock.producers:
            raise ValueError(f"{id}: a case names a producer that is not there")
        _check_text(case.state, f"state of {id}")
        for name, one in case.answers.items():
            _check_answer(one, f"{id}, {name}")


def _check_answer(one: Recorded, where: str) -> None:
    _check_text(one.question, f"{where}: question")
    _check_text(one.answer, f"{where}: answer")
    if one.flips not in (None, True, False):
        raise ValueError(f"{where}: flips is neither true nor false")
    for option, p in one.p.items():
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 <= p <= 1.0:
            is_ = reading.shorten(repr(p))
            raise ValueError(f"{where}: the probability of {reading.shorten(option)} is {is_}")


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} is no text")


def write(path: Path, lock: Lock) -> None:
    """Write the lock in one step, one case a line: a reader, or an interrupted write, sees the old one whole.

    Line ends stay as the file has them. Raises InputError when it cannot be written.
    """
    lines = ["{", f'"version": {LOCK_VERSION},', f'"profile": {_json(lock.profile)},', '"producers": {']
    lines += _rows({key: dict(value) for key, value in lock.producers.items()})
    lines += ["},", '"cases": {']
    lines += _rows(
        {
            id: {
                "by": case.by,
                "state": case.state,
                "answers": {name: _answer_json(one) for name, one in case.answers.items()},
            }
            for id, case in lock.cases.items()
        }
    )
    lines += ["}", "}", ""]
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        is_crlf = path.exists() and b"\r\n" in path.read_bytes()[:4096]
        if path.exists() and not path.stat().st_mode & 0o222:
            raise PermissionError(0, "the file is read-only")
        with partial.open("wb") as file:
            file.write(("\r\n" if is_crlf else "\n").join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as exc:
        raise errors.InputError(
            f"{path}: cannot be written: {exc.strerror}", next_step="Make the file and its folder writable."
        ) from exc
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _rows(values: Mapping[str, object]) -> list[str]:
    rows = [f"{_json(key)}: {_json(value)}" for key, value in values.items()]
    return [row + "," for row in rows[:-1]] + rows[-1:]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _answer_json(one: Recorded) -> dict[str, object]:
    flips = {} if one.flips is None else {"flips": one.flips}
    return {"question": one.question, "answer": one.answer, "p": dict(one.p), **flips}


# What differs, in the order in which it explains: a projector is no explanation once the model is another one.
_CAUSES = (
    ("model_sha256", "model"),
    ("projector_sha256", "projector"),
    ("adapter_sha256", "adapter"),
    ("patches", "patches"),
    ("build", "build"),
    ("backend", "backend"),
    ("template", "template"),
    ("wording", "wording of the prompt"),
    ("argv", "settings of the server"),
    ("settings", "settings"),
    ("cpu", "machine"),
)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what of the producer changed, each as `cause: before -> after`."""
    found: list[str] = []
    for key, cause in _CAUSES:
        before, after = then.get(key), now.get(key)
        if before == after:
            continue
        if key == "build" and then.get("patches") != now.get("patches"):
            continue  # a patch is a part of the build, and says more
        if key == "settings" and isinstance(before, dict) and isinstance(after, dict):
            moved = sorted(k for k in {*before, *after} if before.get(k) != after.get(k))
            found += [f"setting {k}: {before.get(k)} -> {after.get(k)}" for k in moved]
            continue
        if key == "model_sha256":
            before, after = f"{then.get('model')} {_short(before)}", f"{now.get('model')} {_short(after)}"
        elif key == "argv":
            before, after = _option_changes(str(before), str(after))
        elif key == "cpu":
            before, after = then.get("machine"), now.get("machine")
            if before == after:
                before, after = "other CPU features", "these"
        found.append(f"{cause}: {_short(before)} -> {_short(after)}")
    return tuple(found)


def _option_changes(before: str, after: str) -> tuple[str, str]:
    def options(text: str) -> list[str]:
        return [("--" + part).strip() for part in text.split("--")[1:]]

    then, now = options(before), options(after)
    gone = " ".join(one for one in then if one not in now)
    new = " ".join(one for one in now if one not in then)
    return gone or "nothing", new or "nothing"


def _short(value: object) -> str:
    text = "unknown" if value is None else str(value)
    is_hash = len(text) >= 32 and set(text) <= set("0123456789abcdef")
    return (
        text[:12] if is_hash else " ".join(word[:12] if len(word) == 64 else word for word in text.split(" "))
    )
