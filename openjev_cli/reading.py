"""Bytes -> text -> values, strictly: what is read is what was written, or it is refused in one line.

Holds the JSON and YAML readers that states and questions share, and the JSON writer. Values are None, bool,
str, lists, dicts in written order, and `Number`, which keeps a number's own spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number as it was written: 1.0, 1.00 and 1e0 stay three spellings."""

    text: str


Value: TypeAlias = "None | bool | str | Number | list[Value] | dict[str, Value]"
Plain: TypeAlias = "None | bool | str | int | float | list[Plain] | dict[str, Plain]"
Path_: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where (keys and indexes from the top) and what, without the value.

    value: what was found there, shortened; for the user's own terminal only, never for HTTP.
    """

    loc: Path_
    message: str
    value: str | None = None


def decode(data: bytes, *, name: str) -> str:
    """Return the text of UTF-8 bytes without a byte-order mark. Raises InputError with the byte offset."""
    raise NotImplementedError


def parse_json(text: str, *, name: str) -> Value:
    """Return the value of a strict JSON text. Raises InputError that lists every problem."""
    raise NotImplementedError


def parse_yaml(text: str, *, name: str) -> Value:
    """Return the value of a YAML text, every scalar a string as written."""
    raise NotImplementedError


def dumps(value: Value, *, compact: bool) -> str:
    """Return the value as JSON on one line, numbers as written, nothing escaped that need not be."""
    raise NotImplementedError


def visible(text: str) -> str:
    """Return the text with control characters as visible escapes, except tab and line ends."""
    raise NotImplementedError


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises InputError for what cannot be read."""
    raise NotImplementedError


def read_stdin() -> bytes:
    """Return all of stdin. Raises InputError when it is closed or cannot be read."""
    raise NotImplementedError
