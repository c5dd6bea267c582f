"""Streams of records: NDJSON, a JSON array, plain lines, CSV and TSV, one record at a time.

Each record knows the physical line it starts on and its own bytes; a bad one carries its fault and does not
stop the others. Memory does not grow with the stream: a record over the limit is a fault and its bytes are
dropped. Values are read as strictly as any other input (`reading`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openjev_cli import errors, reading

FORMS = ("ndjson", "json", "lines", "csv", "tsv")
MAX_RECORD_BYTES = 16 * 2**20

_SUFFIXES: Mapping[str, str] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}
_CHUNK_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

# Returns the next bytes as soon as some are there, b"" at the end.
Read = Callable[[], bytes]


@dataclass(frozen=True)
class Record:
    """One record. line: the physical line it starts on, from 1. raw: its bytes as they were written, line end
    included (an array's element: without what stands round it). fault: why it has no value, or None."""

    line: int
    raw: bytes
    value: reading.Value
    fault: errors.InputError | None = None


@dataclass(frozen=True)
class _Line:
    number: int
    raw: bytes
    is_too_long: bool = False

    @property
    def is_blank(self) -> bool:
        return not self.raw.strip() and not self.is_too_long


def read_from(fd: int) -> Read:
    """Return a reader of a descriptor that hands on whatever has arrived.

    Python's own buffered reader would be locked by a thread that waits in it when the process ends.
    """
    return lambda: os.read(fd, _CHUNK_BYTES)


def open_file(path: Path) -> int:
    """Return a descriptor of a file to read records from. Raises InputError in one line."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if path.is_dir():
            os.close(fd)
            raise IsADirectoryError(0, "is a directory")
    except (OSError, ValueError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise errors.InputError(
            f"{path}: {reason[0].lower()}{reason[1:]}", next_step="Check the path (- reads stdin)."
        ) from exc
    return fd


def count_lines(path: Path) -> int:
    """Return how many physical lines a file has: about how many records a progress bar can expect."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))


class Records:
    """The records of one stream, to be read once. Made by `stream_of`.

    form: one of FORMS. header: the bytes of the header line of CSV and TSV, else b"". columns: its names.
    """

    def __init__(self, name: str, read: Read, form: str) -> None:
        self.name = name
        self.form = form
        self.header = b""
        self.columns: tuple[str, ...] = ()
        self._lines = _lines(read) if form != "json" else iter(())
        self._read = read
        if form in ("csv", "tsv"):
            self._read_header()

    def __iter__(self) -> Iterator[Record]:
        if self.form == "json":
            return self._elements()
        if self.form in ("csv", "tsv"):
            return self._rows()
        return self._single_lines()

    def _where(self, line: int) -> str:
        return f"{self.name}:{line}"

    def _bad(self, line: int, raw: bytes, message: str) -> Record:
        fault = errors.InputError(f"{self._where(line)}: {message}", next_step="Correct that record.")
        return Record(line, raw, None, fault)

    def _too_long(self, line: int) -> Record:
        limit = MAX_RECORD_BYTES // 2**20
        return self._bad(line, b"", f"longer than {limit} MiB: one record a line, shorter than that")

    # NDJSON and plain lines

    def _single_lines(self) -> Iterator[Record]:
        is_json = self.form == "ndjson"
        for line in self._lines:
            if line.is_blank:
                continue
            if line.is_too_long:
                yield self._too_long(line.number)
                continue
            yield self._parsed(line.number, line.raw, is_json=is_json)

    def _parsed(self, line: int, raw: bytes, *, is_json: bool) -> Record:
        name = self._where(line)
        try:
            text = reading.decode(raw, name=name)
            # Without its line end, which in a string that is cut off would look like a part of it.
            text = text.removesuffix("\n").removesuffix("\r")
            return Record(line, raw, reading.parse_json(text, name=name) if is_json else text)
        except errors.InputError as exc:
            # The reader saw a text of its own: what it calls line n is line + n - 1 of the stream. Its
            # columns are the stream's only where a record is a line.
            place = re.compile(rf"^{re.escape(name)}:(\d+)(:\d+): ")
            has_columns = self.form == "ndjson"
            problems = [
                place.sub(
                    lambda found: (
                        f"{self._where(line + int(found[1]) - 1)}{found[2] if has_columns else ''}: "
                    ),
                    problem,
                )
                for problem in exc.problems
            ]
            return Record(line, raw, None, errors.collect(problems, next_step=exc.next_step))

    # A JSON array

    def _elements(self) -> Iterator[Record]:
        for line, raw, problem in _ArraySplitter(self._read).elements():
            if problem:
                yield self._bad(line, raw, problem)
            else:
                yield self._parsed(line, raw, is_json=True)

    # CSV and TSV

    def _read_header(self) -> None:
        for fields, raw, line, problem in self._split_rows():
            if problem is None and len(set(fields)) < len(fields):
                twice = next(name for name in fields if fields.count(name) > 1)
                problem = f"the header has the column {reading.shorten(twice)!r} twice"
            if problem is not None:
                raise errors.InputError(
                    f"{self._where(line)}: {problem}",
                    next_step="Correct the header: each column its own name.",
                )
            self.header, self.columns = raw, tuple(fields)
            return

    def _rows(self) -> Iterator[Record]:
        for fields, raw, line, problem in self._split_rows():
            if problem is not None:
                yield self._bad(line, raw, problem)
            elif len(fields) != len(self.columns):
                count, wanted = len(fields), len(self.columns)
                yield self._bad(line, raw, f"the row has {count} fields and the header {wanted}")
            else:
                yield Record(line, raw, dict(zip(self.columns, fields, strict=True)))

    def _split_rows(self) -> Iterator[tuple[list[str], bytes, int, str | None]]:
        """Yield (fields, bytes, line, problem) of each row. TSV has no quotes (IANA); CSV is RFC 4180."""
        for line in self._lines:
            if line.is_blank:
                continue
            row = _Row(line.number)
            problem = row.add(line, ",") if self.form == "csv" else row.add_plain(line)
            while row.is_open and problem is None:
                following = next(self._lines, None)
                if following is None:
                    problem = "a quote that opens in this row is never closed"
                else:
                    problem = row.add(following, ",")
            yield row.fields, bytes(row.raw), row.line, problem


def stream_of(name: str, read: Read, form: str | None = None) -> Records:
    """Return the records of a stream. form: one of FORMS; None = by the suffix of its name, else by content:
    what starts with { is NDJSON, with [ an array, anything else is plain lines.

    Waits for the first bytes. Raises InputError when it is no UTF-8 text at all, or has a bad header.
    """
    start = b""
    while (not start.strip() or _BOM.startswith(start)) and (more := read()):
        start += more
    if start.startswith(_UTF16):
        raise errors.InputError(
            f"{name}: looks like UTF-16",
            next_step="Save it as UTF-8, for example: iconv -f UTF-16 -t UTF-8 FILE",
        )
    start = start.removeprefix(_BOM)
    if form is None:
        first = start.strip()[:1]
        by_content = {b"{": "ndjson", b"[": "json"}.get(first, "lines")
        form = _SUFFIXES.get(Path(name).suffix.lower(), by_content)
        if form == "json" and first == b"{":
            form = "ndjson"
    chunks = iter([start] if start else [])
    return Records(name, lambda: next(chunks, None) or read(), form)


def _lines(read: Read) -> Iterator[_Line]:
    """Yield the physical lines of a stream, with their line ends; the last one may have none."""
    number = 1
    held = bytearray()
    dropped = False
    while chunk := read():
        at = 0
        while at < len(chunk):
            end = chunk.find(b"\n", at) + 1 or len(chunk)
            held += chunk[at:end]
            at = end
            if len(held) > MAX_RECORD_BYTES:
                dropped = True
                del held[:-1]
            if held.endswith(b"\n"):
                yield _Line(number, b"" if dropped else bytes(held), dropped)
                number += 1
                held.clear()
                dropped = False
    if held:
        yield _Line(number, b"" if dropped else bytes(held), dropped)


class _Row:
    """One row that may go over several physical lines."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.raw = bytearray()
        self.fields: list[str] = []
        self.is_open = False
        self._quoted = ""

    def add_plain(self, line: _Line) -> str | None:
        """Split a TSV line. Returns what is wrong, or None."""
        text, problem = self._take(line)
        self.fields = text.rstrip("\r\n").split("\t")
        return problem

    def add(self, line: _Line, delimiter: str) -> str | None:
        """Read one more physical line of CSV. Returns what is wrong, or None; `is_open`: a quote goes on."""
        text, problem = self._take(line)
        if problem is not None:
            return problem
        end = len(text.rstrip("\r\n"))
        at = 0
        while True:
            if self.is_open or text[at : at + 1] == '"':
                at = self._read_quoted(text, at if self.is_open else at + 1)
                if self.is_open:
                    return None
                if at < end and text[at] != delimiter:
                    return "text behind the closing quote of a field (a quote inside is written twice)"
            else:
                close = text.find(delimiter, at, end)
                close = end if close < 0 else close
                self.fields.append(text[at:close])
                at = close
            if at >= end:
                return None
            at += 1

    def _read_quoted(self, text: str, at: int) -> int:
        """Read on inside quotes; returns the place behind the closing one."""
        while True:
            close = text.find('"', at)
            if close < 0:
                self._quoted += text[at:]
                self.is_open = True
                return len(text)
            self._quoted += text[at:close]
            if text[close + 1 : close + 2] != '"':
                self.fields.append(self._quoted)
                self._quoted, self.is_open = "", False
                return close + 1
            self._quoted += '"'
            at = close + 2

    def _take(self, line: _Line) -> tuple[str, str | None]:
        if line.is_too_long or len(self.raw) + len(line.raw) > MAX_RECORD_BYTES:
            return "", f"longer than {MAX_RECORD_BYTES // 2**20} MiB (is a quote never closed?)"
        self.raw += line.raw
        try:
            return reading.decode(line.raw, name=""), None
        except errors.InputError as exc:
            return "", exc.message.removeprefix(": ")


class _ArraySplitter:
    """Cuts a JSON array into its elements without reading them; only strings and brackets are followed."""

    _outside = re.compile(rb'["\[\]{},]')
    _inside = re.compile(rb'["\\]')

    def __init__(self, read: Read) -> None:
        self._read = read
        self._line = 1
        self._depth = 0
        self._in_string = False
        self._skip = False
        self._held = bytearray()
        self._dropped = False
        self._count = 0
        self._is_done = False

    def elements(self) -> Iterator[tuple[int, bytes, str]]:
        """Yield (line, bytes, problem) of each element; the problem is "" for one that can be read."""
        while chunk := self._read():
            yield from self._feed(chunk)
        if not self._is_done:
            if self._held.strip() or self._dropped:
                yield from self._take(is_last=True)
            yield self._line, b"", "the array ends here without its closing ]"
        elif self._held.strip():
            line, raw = self._placed(bytes(self._held))
            yield (
                line,
                raw,
                "text after the end of the array (one JSON value a line is read with --as ndjson)",
            )

    def _feed(self, chunk: bytes) -> Iterator[tuple[int, bytes, str]]:
        at = 0
        while at < len(chunk):
            if self._skip:
                # The byte behind a backslash.
                self._hold(chunk[at : at + 1])
                self._skip = False
                at += 1
                continue
            found = (self._inside if self._in_string else self._outside).search(chunk, at)
            if found is None or self._is_done:
                self._hold(chunk[at:])
                return
            byte = found[0]
            self._hold(chunk[at : found.start()])
            at = found.end()
            if self._in_string:
                self._hold(byte)
                self._in_string = byte != b'"'
                self._skip = byte == b"\\"
            elif byte == b'"':
                self._hold(byte)
                self._in_string = True
            else:
                yield from self._bracket(byte)

    def _bracket(self, byte: bytes) -> Iterator[tuple[int, bytes, str]]:
        opens, closes = byte in b"[{", byte in b"]}"
        is_edge = (opens and self._depth == 0) or (not opens and self._depth == 1)
        if not is_edge:
            self._hold(byte)
        elif not opens:
            yield from self._take(is_last=closes)
            self._is_done = closes
        else:
            self._line += self._held.count(b"\n")
            self._held.clear()
        self._depth += opens - closes

    def _hold(self, part: bytes) -> None:
        self._held += part
        if len(self._held) > MAX_RECORD_BYTES:
            self._dropped = True
            self._line += self._held.count(b"\n")
            self._held.clear()

    def _placed(self, raw: bytes) -> tuple[int, bytes]:
        """Return the line an element starts on, and its bytes without the space round it."""
        start = len(raw) - len(raw.lstrip())
        return self._line + raw.count(b"\n", 0, start), raw.strip()

    def _take(self, *, is_last: bool) -> Iterator[tuple[int, bytes, str]]:
        held, dropped = bytes(self._held), self._dropped
        self._held.clear()
        self._dropped = False
        line, raw = self._placed(held)
        self._line += held.count(b"\n")
        if dropped:
            yield line, b"", f"longer than {MAX_RECORD_BYTES // 2**20} MiB"
        elif raw:
            yield line, raw, ""
        elif not (is_last and self._count == 0):
            yield line, b"", "a value is missing here (a comma too many?)"
        self._count += 1
