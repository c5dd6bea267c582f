"""Bytes -> text -> values, strictly: what is read is what was written, or it is refused in one line.

Holds the JSON and YAML readers that states and questions share, and the JSON writer. Values are None, bool,
str, lists, dicts in written order, and `Number`, which keeps a number's own spelling. Streams of records
(NDJSON and CSV one at a time) belong here too, once `--each` is built.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from openjev_cli import errors

if TYPE_CHECKING:
    import yaml

# Deeper values are refused: json, yaml and our own writer recurse, and Python stops at 1000 frames.
MAX_DEPTH = 256
# What aliases may repeat in a YAML text, in nodes; an alias bomb is about 10^9.
MAX_ALIASED_NODES = 10_000


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number as it was written: 1.0, 1.00 and 1e0 stay three spellings."""

    text: str


Value: TypeAlias = "bool | str | Number | list[Value] | dict[str, Value] | None"
Plain: TypeAlias = "bool | str | int | float | list[Plain] | dict[str, Plain] | None"
Loc: TypeAlias = tuple[str | int, ...]
Positions: TypeAlias = Mapping[Loc, tuple[int, int]]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where (keys and indexes from the top) and what, without the value.

    value: what was found there, for the user's own terminal only; HTTP never echoes it.
    """

    loc: Loc
    message: str
    value: str | None = None


@dataclass(frozen=True)
class Document:
    """A value and where its parts stand in the text it was read from."""

    name: str
    value: Value
    _positions: Callable[[], Positions] = field(repr=False, compare=False)

    def where(self, loc: Loc) -> str:
        """Return `name:line:column` of a part; of what is missing, that of what should hold it."""
        positions = self._positions()
        while loc not in positions and loc:
            loc = loc[:-1]
        line, column = positions.get(loc, (1, 1))
        return f"{self.name}:{line}:{column}"

    def line(self, problem: Problem) -> str:
        """Return the problem as one line for the terminal."""
        return f"{self.where(problem.loc)}: {describe(problem)}"


class SyntaxFault(errors.InputError):
    """The text is no JSON (or YAML) at all; plain InputError is raised for JSON that is not accepted."""


def show(loc: Loc) -> str:
    """Return a path as text: `questions.team.criteria[2]`, keys that are no plain words quoted."""
    shown = ""
    for part in loc:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part.isidentifier():
            shown += f".{part}" if shown else part
        else:
            shown += f"[{json.dumps(part, ensure_ascii=False)}]"
    return shown


def describe(problem: Problem) -> str:
    """Return `path: message (got value)`, without the parts that are empty."""
    path = show(problem.loc)
    got = "" if problem.value is None else f" (got {shorten(problem.value)})"
    return f"{path}: {problem.message}{got}" if path else problem.message + got


def shorten(text: str, limit: int = 60) -> str:
    """Return the text on one line and at most `limit` characters long, for use inside a message."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


# Bytes and text


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises InputError for what is missing, a directory or not readable."""
    try:
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise errors.InputError(
            f"{path}: no such file",
            next_step="Check the path (- reads stdin).",
        ) from exc
    except IsADirectoryError as exc:
        raise errors.InputError(f"{path}: is a directory", next_step="Name a file inside it.") from exc
    except PermissionError as exc:
        raise errors.InputError(
            f"{path}: permission denied", next_step=f"Make it readable: chmod u+r {path}"
        ) from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise errors.InputError(f"{path}: cannot be read: {reason}", next_step="Check the path.") from exc


def read_stdin() -> bytes:
    """Return all of stdin. Raises InputError when it is closed or cannot be read."""
    next_step = "Pipe the text in, or name a file."
    if sys.stdin is None:  # closed by the shell: <&-
        raise errors.InputError("stdin: it is closed", next_step=next_step)
    try:
        return sys.stdin.buffer.read()
    except OSError as exc:
        raise errors.InputError(f"stdin: cannot be read: {exc.strerror}", next_step=next_step) from exc


def argument(text: str, *, name: str) -> str:
    """Return a command-line argument as text. Raises InputError when it was not given as UTF-8."""
    return decode(argument_bytes(text), name=name)


def argument_bytes(text: str) -> bytes:
    """Return the bytes a command-line argument was given as, also where they are no UTF-8: `decode` refuses
    those in its one line."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def decode(data: bytes, *, name: str, otherwise: str = "is not UTF-8 text") -> str:
    """Return the text of UTF-8 bytes, without a leading byte-order mark, nothing replaced.

    Raises InputError with the offset of the first byte that is not UTF-8. otherwise: what it says then.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        is_utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        what = "looks like UTF-16" if is_utf16 else otherwise
        raise errors.InputError(
            f"{name}: {what} (byte 0x{data[exc.start]:02x} at offset {exc.start})",
            next_step="Save it as UTF-8, for example: iconv -f UTF-16 -t UTF-8 FILE"
            if is_utf16
            else "Save it as UTF-8, for example: iconv -f LATIN1 -t UTF-8 FILE",
        ) from exc
    return text.removeprefix("\ufeff")


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return the text with control characters as escapes (\\u0000), except tab and line ends."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, line without its line end). Only \\n and \\r\\n end a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r")


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Return the 1-based line and column, in characters, of an offset."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


# JSON


def parse_json(text: str, *, name: str) -> Value:
    """Return the value of a strict JSON text (RFC 8259). Raises as `read_json`."""
    return read_json(text, name=name).value


def read_json(text: str, *, name: str) -> Document:
    """Return a strict JSON text as a document: numbers as written, keys in order.

    Duplicate keys, NaN, Infinity and lone surrogates are refused, all at once, with path, line and column.
    Raises SyntaxFault when it is no JSON, InputError when it is but cannot be taken.
    """
    value = _read_json_fast(text)
    if value is not _UNSURE:
        return Document(name, value, lambda: _JsonScanner(text).scan().positions)  # type: ignore[arg-type]
    scanner = _JsonScanner(text).scan()
    if not scanner.faults:
        return Document(name, scanner.value, lambda: scanner.positions)
    problems = []
    for offset, loc, message in scanner.faults:
        line, column = line_column(text, offset)
        problems.append(f"{name}:{line}:{column}: {describe(Problem(loc, message))}")
    kind = SyntaxFault if scanner.is_broken else errors.InputError
    raise kind(
        problems[0], next_step="Correct it there; JSON is read strictly (RFC 8259).", problems=problems
    )


def read_ndjson(text: str, *, name: str) -> list[Value]:
    """Return the values of a text that holds one JSON value a line; blank lines are skipped.

    Raises one InputError for all lines that are no JSON, by their physical line number.
    """
    values: list[Value] = []
    problems: list[str] = []
    for number, line in lines(text):
        if not line.strip():
            continue
        try:
            values.append(parse_json(line, name=name))
        except errors.InputError as exc:
            # The scanner saw a text of one line; its place in the file is this one.
            problems += [p.replace(f"{name}:1:", f"{name}:{number}:", 1) for p in exc.problems]
    if problems:
        raise errors.collect(problems, next_step="Correct these lines: one JSON value a line.")
    return values


_UNSURE = object()


class _Refused(Exception):
    """The fast reader met something that only the scanner can place."""


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused
    return value


def _constant(name: str) -> Value:
    raise _Refused


def _read_json_fast(text: str) -> object:
    """Return the value, or _UNSURE if the careful scanner has to look (it is about 20 times slower)."""
    try:
        value: Value = json.loads(
            text, object_pairs_hook=_unique, parse_int=Number, parse_float=Number, parse_constant=_constant
        )
    except (ValueError, RecursionError, _Refused):
        return _UNSURE
    has_escapes = "\\ud" in text or "\\uD" in text
    level: list[Value] = [value]
    depth = 0
    while level:
        depth += 1
        below: list[Value] = []
        for one in level:
            if depth > MAX_DEPTH and isinstance(one, dict | list):
                return _UNSURE
            if isinstance(one, dict):
                if has_escapes and any(_has_surrogate(key) for key in one):
                    return _UNSURE
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
            elif has_escapes and isinstance(one, str) and _has_surrogate(one):
                return _UNSURE
        level = below
    return value


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class _Stop(Exception):
    """A fault after which nothing more can be read."""


class _JsonScanner:
    """Reads JSON one character at a time to say exactly where every part and every fault stands."""

    _number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
    _chunk = re.compile(r'[^"\\\x00-\x1f]*')
    _word = re.compile(r"[-+]?\w+")
    _escapes: Mapping[str, str] = dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True))

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.value: Value = None
        self.faults: list[tuple[int, Loc, str]] = []
        self.is_broken = False
        self.positions: dict[Loc, tuple[int, int]] = {}
        self._line, self._line_at, self._counted_to = 1, 0, 0

    def scan(self) -> _JsonScanner:
        """Read the whole text; value, faults and positions hold what was found."""
        try:
            self._space()
            if self.at == len(self.text):
                self._stop((), "empty: a JSON value was expected")
            self.value = self._read((), 1)
            self._space()
            if self.at < len(self.text):
                self._stop((), "text after the end of the JSON value (one value a line is .ndjson)")
        except _Stop:
            pass
        return self

    def _stop(self, loc: Loc, message: str, at: int | None = None) -> None:
        self.is_broken = True
        self.faults.append((self.at if at is None else at, loc, message))
        raise _Stop

    def _mark(self, loc: Loc) -> None:
        # Counted onwards from the last mark, so that marking stays linear in the text.
        newlines = self.text.count("\n", self._counted_to, self.at)
        if newlines:
            self._line += newlines
            self._line_at = self.text.rfind("\n", 0, self.at) + 1
        self._counted_to = self.at
        self.positions.setdefault(loc, (self._line, self.at - self._line_at + 1))

    def _space(self) -> None:
        text, at = self.text, self.at
        while at < len(text) and text[at] in " \t\n\r":
            at += 1
        self.at = at

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _read(self, loc: Loc, depth: int) -> Value:
        self._mark(loc)
        start = self._peek()
        if depth > MAX_DEPTH and start in ("{", "["):
            self.faults.append((self.at, (), f"nested deeper than {MAX_DEPTH} levels"))
            raise _Stop
        if start == "{":
            return self._object(loc, depth)
        if start == "[":
            return self._array(loc, depth)
        if start == '"':
            return self._string(loc)
        number = self._number.match(self.text, self.at)
        word = self._word.match(self.text, self.at)
        if number and (word is None or word.end() <= number.end()):
            self.at = number.end()
            return Number(number[0])
        if word:
            return self._constant(loc, word[0])
        self._stop(loc, "the value is missing" if not start or start in ",:]}" else self._unexpected())
        return None

    def _unexpected(self) -> str:
        start = self._peek()
        if start == "'":
            return "strings need double quotes"
        if start in "/#":
            return "JSON has no comments"
        return f"unexpected character {start}" if start.isprintable() else f"unexpected U+{ord(start):04X}"

    def _constant(self, loc: Loc, word: str) -> Value:
        if word in ("NaN", "Infinity", "-Infinity"):
            self.faults.append((self.at, loc, f"{word} is no JSON number"))
        elif word not in ("true", "false", "null"):
            self._stop(loc, f"{shorten(word, 20)} is no JSON value (strings need double quotes)")
        self.at += len(word)
        return {"true": True, "false": False}.get(word)

    def _array(self, loc: Loc, depth: int) -> Value:
        opened = self.at
        values: list[Value] = []
        self.at += 1
        self._space()
        if self._peek() == "]":
            self.at += 1
            return values
        while True:
            values.append(self._read((*loc, len(values)), depth + 1))
            if self._closes(loc, "]", opened):
                return values
            if self._peek() == "]":
                self._stop(loc, "a comma before ] (nothing follows it)")

    def _object(self, loc: Loc, depth: int) -> Value:
        opened = self.at
        values: dict[str, Value] = {}
        self.at += 1
        self._space()
        if self._peek() == "}":
            self.at += 1
            return values
        while True:
            if self._peek() != '"':
                if self.at == len(self.text):
                    self._stop(loc, "{ is never closed", opened)
                self._stop(loc, "a key in double quotes was expected")
            at = self.at
            key = self._string(loc)
            if key in values:
                self.faults.append((at, (*loc, key), "this key is there twice"))
            self._space()
            if self._peek() != ":":
                self._stop((*loc, key), "a colon was expected after the key")
            self.at += 1
            self._space()
            values[key] = self._read((*loc, key), depth + 1)
            if self._closes(loc, "}", opened):
                return values
            if self._peek() == "}":
                self._stop(loc, "a comma before } (nothing follows it)")

    def _closes(self, loc: Loc, bracket: str, opened: int) -> bool:
        """Step over a comma (False) or the closing bracket (True)."""
        self._space()
        found = self._peek()
        if found == bracket:
            self.at += 1
            return True
        if not found:
            self._stop(loc, f"{self.text[opened]} is never closed", opened)
        if found != ",":
            self._stop(loc, f"a comma or {bracket} was expected")
        self.at += 1
        self._space()
        return False

    def _string(self, loc: Loc) -> str:
        opened = self.at
        parts: list[str] = []
        self.at += 1
        while True:
            chunk = self._chunk.match(self.text, self.at)
            assert chunk is not None  # it also matches nothing
            parts.append(chunk[0])
            self.at = chunk.end()
            found = self._peek()
            if found == '"':
                self.at += 1
                return "".join(parts)
            if not found:
                self._stop(loc, "the string is never closed", opened)
            if found != "\\":
                self._stop(
                    loc, f"control character U+{ord(found):04X} in a string: write \\u{ord(found):04x}"
                )
            parts.append(self._escape(loc))

    def _escape(self, loc: Loc) -> str:
        at, kind = self.at, self.text[self.at + 1 : self.at + 2]
        if kind != "u":
            if kind not in self._escapes or not kind:
                self._stop(loc, f"\\{kind} is no JSON escape (a backslash is \\\\)")
            self.at += 2
            return self._escapes[kind]
        high = self._hex(loc, at)
        self.at += 6
        if not 0xD800 <= high <= 0xDFFF:
            return chr(high)
        if high < 0xDC00 and self.text.startswith("\\u", self.at):
            low = self._hex(loc, self.at)
            if 0xDC00 <= low <= 0xDFFF:
                self.at += 6
                return chr(0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00))
        self.faults.append((at, loc, f"\\u{high:04x} is half of a surrogate pair, no character"))
        return "\ufffd"

    def _hex(self, loc: Loc, at: int) -> int:
        digits = self.text[at + 2 : at + 6]
        if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            self._stop(loc, "\\u needs four hexadecimal digits", at)
        return int(digits, 16)


def dumps(value: Value, *, compact: bool) -> str:
    """Return the value as JSON on one line, numbers as written, nothing escaped that need not be.

    compact: no space after comma and colon.
    """
    comma, colon = (",", ":") if compact else (", ", ": ")
    quote = json.encoder.encode_basestring

    def write(one: Value) -> str:
        if isinstance(one, str):
            return quote(one)
        if isinstance(one, Number):
            return one.text
        if isinstance(one, dict):
            return "{" + comma.join([f"{quote(key)}{colon}{write(held)}" for key, held in one.items()]) + "}"
        if isinstance(one, list):
            return "[" + comma.join([write(held) for held in one]) + "]"
        return "null" if one is None else "true" if one else "false"

    return write(value)


def plain(value: Value) -> Plain:
    """Return the value with numbers as int or float, for `json.dumps`. A number that neither can hold stays
    its text."""
    if isinstance(value, dict):
        return {key: plain(held) for key, held in value.items()}
    if isinstance(value, list):
        return [plain(held) for held in value]
    if not isinstance(value, Number):
        return value
    if re.fullmatch(r"-?[0-9]{1,300}", value.text):
        return int(value.text)
    number = float(value.text)
    return number if number - number == 0 else value.text


# YAML

_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "binary")} | {"!"}
_SEQUENCES = {_TAG + kind for kind in ("seq", "omap", "pairs")}


def parse_yaml(text: str, *, name: str) -> Value:
    """Return the value of a YAML text, every scalar a string as written. Raises as `read_yaml`."""
    return read_yaml(text, name=name).value


def read_yaml(text: str, *, name: str, refuse_cut: bool = False) -> Document:
    """Return a YAML text as a document whose scalars are all strings as written (also dates and `no`).

    !!binary stays its base64 text and !!set becomes a list. Duplicate keys, unknown tags, alias bombs and
    keys that are no scalars are refused, all at once. refuse_cut: so is a value that YAML ends at ` #`.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as exc:
        raise _yaml_fault(exc, text, name) from exc
    except yaml.reader.ReaderError as exc:
        line, column = line_column(text, exc.position)
        raise SyntaxFault(
            f"{name}:{line}:{column}: character U+{ord(text[exc.position]):04X} is not allowed in YAML",
            next_step="Write it as an escape in a double-quoted string, or use JSON.",
        ) from exc
    except RecursionError:
        raise errors.InputError(
            f"{name}: nested deeper than {MAX_DEPTH} levels", next_step="Give a flatter value."
        ) from None
    builder = _YamlBuilder(text, refuse_cut=refuse_cut)
    value = builder.build(root)
    document = Document(name, value, lambda: builder.positions)
    if builder.faults:
        problems = [
            f"{name}:{line}:{column}: {describe(problem)}" for line, column, problem in builder.faults
        ]
        raise errors.collect(problems, next_step="Correct it there; YAML is read as strings.")
    return document


def quote_yaml(line: str) -> str:
    """Return a YAML line with its text in single quotes: all of a list item, or the value behind a key."""
    body = line.strip()
    lead = ""
    while body.startswith("- "):
        lead, body = lead + "- ", body[2:].lstrip()
    if not lead and ": " in body:
        key, _, body = body.partition(": ")
        lead = f"{key}: "
    quoted = body.strip().replace("'", "''")
    return f"{lead}'{quoted}'"


def _yaml_fault(exc: yaml.MarkedYAMLError, text: str, name: str) -> errors.InputError:
    mark = exc.problem_mark or exc.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    said = f"{exc.context}, {exc.problem}" if (exc.problem or "but ").startswith("but ") else exc.problem
    problem = shorten(str(said), 120)
    if mark and exc.problem == "mapping values are not allowed here":
        written = text.split("\n")[mark.line] if mark.line < text.count("\n") + 1 else ""
        return SyntaxFault(
            f"{where}: a text with a colon and a space in it must be quoted in YAML",
            next_step=f"Write it as: {shorten(quote_yaml(written), 400)}",
        )
    return SyntaxFault(f"{where}: not valid YAML: {problem}", next_step="Correct it there.")


class _YamlBuilder:
    """Turns composed YAML nodes into values, and notes where each stands and what is wrong."""

    def __init__(self, text: str, *, refuse_cut: bool) -> None:
        self.text = text
        self.refuse_cut = refuse_cut
        self.positions: dict[Loc, tuple[int, int]] = {}
        self.faults: list[tuple[int, int, Problem]] = []
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._aliased = 0

    def build(self, root: yaml.Node | None) -> Value:
        """Return the value of the whole text ("" for an empty one); faults holds what was wrong."""
        try:
            return "" if root is None else self._build(root, (), 1)
        except _Stop:
            return None

    def _fault(self, node: yaml.Node, loc: Loc, message: str) -> None:
        mark = node.start_mark
        self.faults.append((mark.line + 1, mark.column + 1, Problem(loc, message)))

    def _build(self, node: yaml.Node, loc: Loc, depth: int) -> Value:
        import yaml

        self.positions.setdefault(loc, (node.start_mark.line + 1, node.start_mark.column + 1))
        if id(node) in self._open:
            self._fault(node, loc, "an alias that contains itself")
            raise _Stop
        self._aliased += id(node) in self._seen
        if self._aliased > MAX_ALIASED_NODES:
            self._fault(node, (), f"aliases repeat more than {MAX_ALIASED_NODES} values")
            raise _Stop
        self._seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        if depth > MAX_DEPTH:
            self._fault(node, (), f"nested deeper than {MAX_DEPTH} levels")
            raise _Stop
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, loc, _SEQUENCES)
                return [self._build(held, (*loc, i), depth + 1) for i, held in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            if node.tag == _TAG + "set":
                return [self._key(key, (*loc, i)) for i, (key, _) in enumerate(node.value)]
            self._check_tag(node, loc, {_TAG + "map"})
            return self._mapping(node, loc, depth)
        finally:
            self._open.discard(id(node))

    def _check_tag(self, node: yaml.Node, loc: Loc, known: set[str]) -> None:
        if node.tag not in known:
            self._fault(node, loc, f"unknown tag {shorten(node.tag.replace(_TAG, '!!'))}")

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> str:
        self._check_tag(node, loc, _SCALARS)
        # A plain scalar ends where a comment starts; the reader of a question list means it as text.
        if self.refuse_cut and node.style is None and node.end_mark is not None:
            rest = self.text[node.end_mark.index :].partition("\n")[0]
            if rest.lstrip(" \t").startswith("#") and rest[:1] in " \t":
                line = self.text.split("\n")[node.end_mark.line]
                self._fault(
                    node, loc, f"YAML cuts this at # as a comment; write: {shorten(quote_yaml(line), 400)}"
                )
        value: str = node.value
        return value

    def _key(self, node: yaml.Node, loc: Loc) -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            self._fault(node, loc, "a key must be a plain text")
            raise _Stop
        self._check_tag(node, loc, _SCALARS | {_TAG + "merge"})
        value: str = node.value
        return value

    def _mapping(self, node: yaml.MappingNode, loc: Loc, depth: int) -> dict[str, Value]:
        import yaml

        values: dict[str, Value] = {}
        merged: list[dict[str, Value]] = []
        for key_node, held in node.value:
            key = self._key(key_node, loc)
            inner = (*loc, key)
            is_merge = key == "<<" and key_node.style is None and not isinstance(held, yaml.ScalarNode)
            value = self._build(held, inner, depth + 1)
            if is_merge:
                parts: Sequence[Value] = value if isinstance(value, list) else [value]
                merged += [part for part in parts if isinstance(part, dict)]
            elif key in values:
                self._fault(key_node, inner, "this key is there twice")
            else:
                values[key] = value
        for part in merged:
            for key, value in part.items():
                values.setdefault(key, value)
        return values
