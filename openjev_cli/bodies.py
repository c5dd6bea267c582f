"""What an HTTP body holds: unpacked, its JSON value, and the files that came beside it.

Bounded at every step, and silent about content: its errors say what is wrong and where, never what was sent.
It knows nothing of questions and states.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from openjev_cli import errors, reading

# The part of a multipart body that holds the JSON, as the official SDK names it (typesafe-sdk 0.7.5).
JSON_PART = "request"
MAX_PARTS = 64


class TooLarge(errors.InputError):
    """More bytes than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes", next_step="Send less at once.")


class Unsupported(errors.InputError):
    """An encoding that cannot be read here."""


@dataclass(frozen=True)
class Body:
    """value: the JSON. files: the other parts of a multipart body, by name."""

    value: reading.Value
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def read(data: bytes, *, content_type: str, encoding: str, limit: int) -> Body:
    """Return what a body holds. limit: bytes it may unpack to.

    Raises TooLarge, Unsupported, and InputError whose problems are safe to show to anyone.
    """
    data = unpack(data, encoding=encoding, limit=limit)
    if not content_type.lower().startswith("multipart/form-data"):
        return Body(_json(data))
    files = _parts(data, content_type)
    if JSON_PART not in files:
        raise _fault(f"has no part named {JSON_PART}")
    return Body(_json(files.pop(JSON_PART)), files)


def unpack(data: bytes, *, encoding: str, limit: int) -> bytes:
    """Return the body without its Content-Encoding. Raises TooLarge, Unsupported, InputError."""
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        unpacked = data
    elif kind in ("gzip", "deflate"):
        # 32 lets zlib tell gzip and zlib apart by their first bytes.
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            unpacked = unzip.decompress(data, limit + 1)
        except zlib.error as exc:
            raise _fault(f"is not {kind}, as its Content-Encoding says") from exc
        if not unzip.eof and len(unpacked) <= limit:
            raise _fault(f"is cut off: its {kind} has no end")
    elif kind == "zstd":
        unpacked = _unpack_zstd(data, limit)
    else:
        raise Unsupported(
            "this Content-Encoding is not supported", next_step="Use zstd, gzip, deflate, or none."
        )
    if len(unpacked) > limit:
        raise TooLarge(limit)
    return unpacked


def _unpack_zstd(data: bytes, limit: int) -> bytes:
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        unpacked: bytes = decompressor.decompress(data, limit + 1)
    except zstd.ZstdError as exc:
        raise _fault("is not zstd, as its Content-Encoding says") from exc
    if not decompressor.eof and len(unpacked) <= limit:
        raise _fault("is cut off: its zstd has no end")
    return unpacked


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):  # the first is Python 3.14's own
        with suppress(ImportError):
            return import_module(name)
    raise Unsupported(
        "zstd bodies cannot be read here", next_step="Install openjev-cli[serve], or do not compress."
    )


# What may be told of a fault in JSON; everything else of the reader's messages may repeat what was sent.
_TOLD = (
    ("this key is there twice", "a key is there twice"),
    ("is no JSON number", "NaN and Infinity are no JSON numbers"),
    ("no character", "half of a surrogate pair is no character"),
    ("levels", f"nested deeper than {reading.MAX_DEPTH} levels"),
)
_PLACE = re.compile(r"body:(\d+):(\d+): ")


def _json(data: bytes) -> reading.Value:
    try:
        return reading.parse_json(reading.decode(data, name="body"), name="body")
    except errors.InputError as exc:
        raise errors.collect([_told(problem) for problem in exc.problems], next_step=exc.next_step) from None


def _told(problem: str) -> str:
    place = _PLACE.match(problem)
    if place is None:
        return "is not UTF-8 text"
    what = next((told for end, told in _TOLD if problem.endswith(end)), "not valid JSON")
    return f"{what} (line {place[1]}, column {place[2]})"


# multipart/form-data, RFC 7578

_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'^content-disposition:\s*form-data\s*;(?:.*;)?\s*name="([^"\r\n]*)"', re.I | re.M)


def _parts(data: bytes, content_type: str) -> dict[str, bytes]:
    """Return the parts of a multipart body by name. Raises InputError for what is not one."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise _fault("is multipart, but its Content-Type names no boundary")
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1")
    pieces = (b"\r\n" + data).split(mark, MAX_PARTS + 2)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise _fault(f"is no whole multipart body of at most {MAX_PARTS} parts")
    found: dict[str, bytes] = {}
    for piece in pieces[1:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        name = _NAME.search(head.lstrip())
        if not blank or name is None:
            raise _fault("has a part without a name")
        key = name[1].decode("utf-8", "replace")
        if key in found:
            raise _fault("has two parts of the same name")
        found[key] = content
    return found


def _fault(what: str) -> errors.InputError:
    return errors.InputError(what, next_step="Send JSON, or multipart/form-data as the official SDK does.")
