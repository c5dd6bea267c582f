"""The lock of an answer set: what was answered, and what produced it. One case a line, so that a changed case is
a changed line; written in one step, so that it is never half there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
    """What was recorded. producers: provenance by key. profile: what it was asked with, None = a model file."""

    profile: str | None
    producers: Mapping[str, Mapping[str, Any]]
    cases: Mapping[str, RecordedCase]


def read(path: Path) -> Lock | None:
    """Return the lock, or None when there is none. Raises InputError for a damaged one."""
    if not path.exists():
        return None
    text = reading.decode(reading.read_file(path), name=str(path))
    next_step = f"Restore it from version control, or write it anew: openjev record (lock: {path})"
    try:
        raw = json.loads(text)
        if raw["version"] != LOCK_VERSION:
            raise errors.InputError(
                f"{path}: written by another version of openjev (lock version {raw['version']})",
                next_step="record the set again with this version: openjev record",
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
        if any(case.by not in lock.producers for case in cases.values()):
            raise errors.InputError(f"{path}: a case names a producer that is not there", next_step=next_step)
        _check_numbers(path, lock, next_step)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise errors.InputError(f"{path}: not a lock of an answer set ({exc})", next_step=next_step) from exc
    return lock


def _check_numbers(path: Path, lock: Lock, next_step: str) -> None:
    for id, case in lock.cases.items():
        for name, one in case.answers.items():
            for option, p in one.p.items():
                if isinstance(p, bool) or not isinstance(p, int | float) or not 0.0 <= p <= 1.0:
                    raise errors.InputError(
                        f"{path}: {id}, {name}: the probability of {reading.shorten(option)} is {p!r}",
                        next_step=next_step,
                    )


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
