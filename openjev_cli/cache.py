"""The exact answer cache of `--reuse`: what the engine read for one prompt, kept across calls.

A key is a digest over everything that decides an answer: the provenance (model, projector and adapter by
their SHA-256; build, patches, CPU features and backend; argv), the readout, the prompt and the label ids in
order. The prompt goes in as its segments: model and build fix the tokenizer, so the segments fix the token
ids, and no engine has to be asked for them. No text of a user is kept, only digests and numbers.

One SQLite file: safe under concurrency, and whole after kill -9. A cache that cannot be used costs time and
never an answer.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openjev_cli import prompt
from openjev_cli.engine.protocol import Reading

if TYPE_CHECKING:
    import sqlite3

FILE_NAME = "answers.sqlite"
MAX_BYTES = 1 << 30
_VERSION = 2
_T = TypeVar("_T")


def key(
    provenance: bytes,
    readout: str,
    prefix: Sequence[prompt.Segment | prompt.ImageSegment],
    suffix: prompt.Suffix,
) -> bytes:
    """Return the 32-byte key of one question of a prompt."""
    from hashlib import blake2b

    found = blake2b(digest_size=32)
    texts = [
        ("image", segment.image.digest)
        if isinstance(segment, prompt.ImageSegment)
        else (segment.text, segment.special)
        for segment in (*prefix, *suffix.segments)
    ]
    # The boundary of the prefix is part of the prompt: it is where an engine resumes.
    options = [[(one.text, one.special) for one in option] for option in suffix.options]
    shape = (_VERSION, readout, len(prefix), [label.token for label in suffix.labels], options)
    for part in (provenance, json.dumps(shape).encode(), json.dumps(texts).encode()):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


class AnswerCache:
    """Readings by key. May be used from several threads, and by several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._is_unusable = False
        self.hits = 0
        self.misses = 0

    def get(self, keys: Sequence[bytes]) -> list[Reading | None]:
        """Return what is kept under each key, None where nothing usable is. Kept readings count all of their
        tokens as cached."""

        def look(database: sqlite3.Connection) -> list[Reading | None]:
            found: list[Reading | None] = []
            for one in keys:
                row = database.execute("SELECT value FROM answers WHERE key = ?", (one,)).fetchone()
                found.append(None if row is None else _reading(row[0]))
            return found

        found = self._use(look) or [None] * len(keys)
        with self._lock:
            self.misses += found.count(None)
            self.hits += len(found) - found.count(None)
        return found

    def put(self, readings: Mapping[bytes, Reading]) -> None:
        """Keep readings; what is there already stays."""
        rows = [
            (one, json.dumps([list(reading.scores), reading.n_tokens, reading.label_mass]))
            for one, reading in readings.items()
        ]

        def keep(database: sqlite3.Connection) -> None:
            with database:
                database.executemany("INSERT OR IGNORE INTO answers (key, value) VALUES (?, ?)", rows)

        self._use(keep)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _use(self, action: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run `action` on the open file; None if it cannot be used."""
        import sqlite3

        with self._lock:
            for is_last in (False, True):
                if self._is_unusable:
                    return None
                try:
                    if self._database is None:
                        self._database = self._open()
                    return action(self._database)
                except sqlite3.OperationalError:
                    # Locked for too long, no space, not writable: leave it alone.
                    self._is_unusable = True
                except (sqlite3.DatabaseError, OSError):
                    self._start_over(is_last)
        return None

    def _start_over(self, is_last: bool) -> None:
        """The file is damaged, or written by something else: it is only a cache."""
        self._is_unusable = is_last
        if self._database is not None:
            self._database.close()
            self._database = None
        for suffix in ("", "-wal", "-shm"):
            try:
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            except OSError:
                self._is_unusable = True

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        # Calls are serialised by our lock, so that one connection serves all threads.
        database = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        # A commit does not wait for the disk: kill -9 loses nothing, a power cut the last moments.
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS answers"
                " (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, value TEXT NOT NULL)"
            )
            self._make_room(database)
        return database

    def _make_room(self, database: sqlite3.Connection) -> None:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        (free,) = database.execute("PRAGMA freelist_count").fetchone()
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        if (pages - free) * page_bytes > MAX_BYTES:
            database.execute(
                "DELETE FROM answers WHERE number <= (SELECT (MIN(number) + MAX(number)) / 2 FROM answers)"
            )


def _reading(text: str) -> Reading | None:
    try:
        scores, n_tokens, label_mass = json.loads(text)
        reading = Reading(tuple(map(float, scores)), int(n_tokens), int(n_tokens), label_mass)
    except (ValueError, TypeError):
        return None
    return reading if reading.scores and not any(map(math.isnan, reading.scores)) else None
