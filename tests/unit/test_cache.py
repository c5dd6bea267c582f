"""The answer cache: a key for everything that decides an answer, and a file nothing can spoil."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from openjev_cli import cache
from openjev_cli.engine.protocol import Reading
from openjev_cli.labels import Label
from openjev_cli.prompt import Segment, Suffix

PREFIX = (Segment("<user>", True), Segment("state", False))
LABELS = (Label("A", 1), Label("B", 2))
SUFFIX = Suffix((Segment(" question", False), Segment("<cue>", True)), LABELS)
READING = Reading((-0.1, -2.5), 40, 40, 0.9)


def key(
    provenance: bytes = b"p",
    readout: str = "Stock",
    prefix: tuple[Segment, ...] = PREFIX,
    suffix: Suffix = SUFFIX,
) -> bytes:
    return cache.key(provenance, readout, prefix, suffix)


def test_whatever_decides_an_answer_is_in_its_key() -> None:
    keys = {
        key(),
        key(provenance=b"q"),
        key(readout="Patched"),
        key(suffix=Suffix(SUFFIX.segments, LABELS[::-1])),
        key(suffix=Suffix(SUFFIX.segments, (*LABELS, Label("C", 3)))),
        key(suffix=Suffix(SUFFIX.segments, options=((Segment(" a", False),), (Segment(" b", False),)))),
        key(suffix=Suffix(SUFFIX.segments, options=((Segment(" b", False),), (Segment(" a", False),)))),
        key(prefix=(Segment("<user>", True), Segment("State", False))),
        key(prefix=(Segment("<user>", False), Segment("state", False))),
        key(prefix=(Segment("<user>state", False),)),
        key(prefix=(*PREFIX, Segment("", False))),
        key(suffix=Suffix((Segment(" question", False), Segment("<cue", True), Segment(">", True)), LABELS)),
        # The same texts, cut elsewhere between prefix and suffix.
        key(prefix=(*PREFIX, SUFFIX.segments[0]), suffix=Suffix(SUFFIX.segments[1:], LABELS)),
    }
    assert len(keys) == 13
    assert key() == key()


def test_what_is_kept_comes_back_whole(tmp_path: Path) -> None:
    kept = cache.AnswerCache(tmp_path / "answers")
    assert kept.get([key()]) == [None]
    kept.put({key(): READING, key(b"q"): Reading((-1.0, -1.0, float("-inf")), 7, 0, None)})
    kept.close()
    again = cache.AnswerCache(tmp_path / "answers")
    assert again.get([key(b"q"), key(b"r"), key()]) == [
        Reading((-1.0, -1.0, float("-inf")), 7, 7, None),
        None,
        READING,
    ]
    assert (again.hits, again.misses) == (2, 1)
    again.close()
    assert (tmp_path / "answers" / cache.FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"this is no database, but long enough to be read as one" * 100])
def test_a_damaged_file_is_started_over(damage: bytes, tmp_path: Path) -> None:
    kept = cache.AnswerCache(tmp_path)
    kept.put({key(): READING})
    kept.close()
    (tmp_path / cache.FILE_NAME).write_bytes(damage)
    again = cache.AnswerCache(tmp_path)
    assert again.get([key()]) == [None]
    again.put({key(): READING})
    assert again.get([key()]) == [READING]
    again.close()


def test_an_unusable_value_is_a_miss(tmp_path: Path) -> None:
    kept = cache.AnswerCache(tmp_path)
    kept.put({key(): READING})
    kept.close()
    for value in ("nonsense", "[]", "[[], 3, null]", "[[NaN, 1], 3, null]", "[1, 2, 3]"):
        with sqlite3.connect(tmp_path / cache.FILE_NAME) as database:
            database.execute("UPDATE answers SET value = ?", (value,))
        database.close()
        again = cache.AnswerCache(tmp_path)
        assert again.get([key()]) == [None]
        again.close()


def test_a_place_that_cannot_be_used_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/nowhere")):
        kept = cache.AnswerCache(folder)
        kept.put({key(): READING})
        assert kept.get([key()]) == [None]
        kept.close()


def test_threads_and_processes_share_one_file(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from openjev_cli import cache;"
        "from openjev_cli.engine.protocol import Reading;"
        "kept = cache.AnswerCache(Path(sys.argv[1])); base = int(sys.argv[2]);"
        "[kept.put({(base + n).to_bytes(32, 'big'): Reading((float(n),), n, 0)}) for n in range(200)]"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(base)], env={**os.environ})
        for base in (0, 1000)
    ]
    kept = cache.AnswerCache(tmp_path)

    def put(base: int) -> None:
        for n in range(200):
            kept.put({(base + n).to_bytes(32, "big"): Reading((float(n),), n, 0)})

    threads = [threading.Thread(target=put, args=(base,)) for base in (2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(60) for process in processes] == [0, 0]
    for base in (0, 1000, 2000, 3000):
        found = kept.get([(base + n).to_bytes(32, "big") for n in range(200)])
        assert [one.scores for one in found if one is not None] == [(float(n),) for n in range(200)]
    kept.close()


def test_a_full_cache_drops_its_oldest_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = cache.AnswerCache(tmp_path)
    kept.put({n.to_bytes(32, "big"): Reading((float(n),) * 50, n, 0) for n in range(1000)})
    kept.close()
    monkeypatch.setattr(cache, "MAX_BYTES", 100_000)
    again = cache.AnswerCache(tmp_path)
    found = again.get([n.to_bytes(32, "big") for n in range(1000)])
    again.close()
    assert [one is not None for one in found] == [n >= 500 for n in range(1000)]
