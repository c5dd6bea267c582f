"""The only printer: answers, lists, notices and errors, on stdout and stderr.

JSON is UTF-8 bytes that depend on the answer alone, never on terminal, colour or locale. Everything for human
eyes is literal (no markup, no emoji names), with control and bidi characters shown as escapes. Nothing is
cut; long cells fold at the width of a real terminal. rich is imported for tables only.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from openjev_cli import answers, errors, timing

if TYPE_CHECKING:
    from rich.table import Table

    from openjev_cli import download

BAR_CELLS = 10
# In a log a download is a line this often.
_TRANSFER_LINE_S = 15.0

# What could move the cursor, hide text or reorder it: C0, DEL, C1, bidi marks and controls (Unicode UAX #9),
# line and paragraph separators, and lone surrogates, which no encoding takes.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE_CHARACTER = re.compile(f"[{_UNSAFE}]")
# In JSON text the same characters only occur inside strings, except for the line ends of indentation.
_UNSAFE_IN_JSON = re.compile(f"(?!\n)[{_UNSAFE}]")
_TSV_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}  # those of jq's @tsv


def shown(text: str) -> str:
    """The text with control and bidi characters as visible escapes, so that it cannot act on a terminal."""
    return _UNSAFE_CHARACTER.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_bytes(value: object, *, one_line: bool = False) -> bytes:
    """UTF-8 JSON with one final newline. Characters that act on a terminal are written as \\uXXXX, which is
    the same JSON. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=None if one_line else 2)
    text = _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.encode() + b"\n"


def tsv_line(fields: Sequence[str]) -> str:
    """The fields with a tab between, escaped as jq's @tsv does, so that a record stays one line."""
    return "\t".join("".join(_TSV_ESCAPES.get(c, c) for c in field) for field in fields)


def one_line(text: str) -> str:
    """Return the text with its line ends as escapes: one answer, one line, whatever an option is called."""
    return re.sub(r"[\n\r]", lambda match: _TSV_ESCAPES[match[0]], text)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; a closed one is not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def stdout_is_terminal() -> bool:
    """Return whether answers are read by somebody at a terminal."""
    return is_terminal(sys.stdout)


def stderr_is_terminal() -> bool:
    """Return whether progress can be drawn."""
    return is_terminal(sys.stderr)


# Answers.


def decision(
    decided: answers.Decision,
    format_name: str | None = None,
    *,
    with_stages: bool = True,
    with_timing: bool = True,
) -> None:
    """Print the answers to stdout in one of the five formats, and the explanation, if any, to stderr.

    format_name: None means a table on a terminal and JSON elsewhere. with_stages: the stage table below a
    table. with_timing: `timing` in JSON.
    """
    format_name = format_name or ("table" if is_terminal(sys.stdout) else "json")
    for text in decided.explanation:
        _to_stderr(shown(text))
    if format_name in ("json", "jsonl"):
        wire = decided.to_wire(with_timing=with_timing)
        _write(json_bytes(wire, one_line=format_name == "jsonl"))
    elif format_name == "tsv":
        _print_text("".join(tsv_line(tsv_fields(one)) + "\n" for one in decided.answers))
    elif format_name == "value":
        _print_text("".join(one_line(one.value) + "\n" for one in decided.answers))
    else:
        text = _answer_table(decided.answers)
        _print_text(text + (_stage_table(decided) if with_stages else ""), is_safe=True)


def _kind(answer: answers.Answer) -> str:
    return str(answer.to_wire()["type"])


def tsv_fields(answer: answers.Answer) -> tuple[str, str, str, str, str]:
    """Return id, type, answer, its probability, confidence (empty for a noul, which has none)."""
    p = _p_of_level(answer) if isinstance(answer, answers.ScoreAnswer) else answer.ranked[0][1]
    confidence = "" if isinstance(answer, answers.NoulAnswer) else f"{answer.confidence:.6f}"
    return answer.id, _kind(answer), answer.value, f"{p:.6f}", confidence


def _p_of_level(answer: answers.ScoreAnswer) -> float:
    # By position: two levels may read the same.
    nearest = min(range(len(answer.levels)), key=lambda i: (abs(answer.score - i), -i))
    return answer.probabilities[nearest]


def _answer_table(all_answers: Sequence[answers.Answer]) -> str:
    rows: list[tuple[str, ...]] = []
    for answer in all_answers:
        (value, p), *others = answer.ranked
        if isinstance(answer, answers.ScoreAnswer):
            value, p = f"{answer.value} ({answer.score:.2f})", _p_of_level(answer)
            others = [pair for pair in answer.ranked if pair[0] != answer.value]
        runner_up = f"{others[0][0]} {others[0][1]:.2f}" if others else ""
        rows.append((answer.id, value, f"{_bar(p, sys.stdout)} {p:.2f}", runner_up, _orders(answer.orders)))
    columns: tuple[str, ...] = ("question", "answer", "probability", "runner-up", "orders")
    if not any(answer.orders for answer in all_answers):
        columns, rows = columns[:4], [row[:4] for row in rows]
    styles = ("", "bold", "cyan", "dim", "dim")[: len(columns)]
    return _table(columns, rows, styles=styles, unfolded=("probability",))


def _orders(orders: answers.Orders | None) -> str:
    """Return `4, spread 0.12, flips` of an answer that was read in several orders."""
    if orders is None:
        return ""
    return f"{orders.n}, spread {orders.spread:.2f}{', flips' if orders.flips else ''}"


def _bar(p: float, stream: TextIO | None) -> str:
    filled = round(p * BAR_CELLS)
    full, empty = ("█", "░") if _can_print("█░─", stream) else ("#", ".")
    return full * filled + empty * (BAR_CELLS - filled)


def _stage_table(decided: answers.Decision) -> str:
    t: timing.Timing = decided.timing
    stages = [("start", t.start_ms)] if t.start_ms is not None else []
    stages += [("parse", t.parse_ms), ("prepare", t.prepare_ms), ("queue", t.queue_ms)]
    stages += [("inference", t.inference_ms), ("total", t.processing_ms)]
    usage = decided.usage
    cached = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    if decided.reused is not None:
        cached += f", {decided.reused} of {usage.output_tokens} answers reused"
    by = decided.model + (f", calibration {decided.calibration}" if decided.calibration is not None else "")
    summary = _encodable(shown(f" {usage.input_tokens} tokens{cached}, {by}"), sys.stdout)
    rows = [(name, f"{ms:9.1f}") for name, ms in stages]
    return "\n" + _table(("stage", "       ms"), rows) + summary + "\n"


# Lists, single lines.


def rows(
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    format_name: str = "table",
    *,
    in_blocks: bool = False,
) -> None:
    """Print a list to stdout: as a table, as JSON (an array of objects), as JSON lines, or as TSV.

    in_blocks: a table that is wider than the terminal becomes a block of lines for each row.
    """
    if format_name in ("json", "jsonl"):
        objects = [dict(zip(columns, fields, strict=True)) for fields in lines]
        one_by_one = b"".join(json_bytes(each, one_line=True) for each in objects)
        _write(json_bytes(objects) if format_name == "json" else one_by_one)
    elif format_name in ("tsv", "value"):
        _print_text("".join(tsv_line(fields) + "\n" for fields in lines))
    elif in_blocks and is_terminal(sys.stdout) and _table_cells(columns, lines) > _terminal_cells():
        _print_text(_blocks(columns, lines), is_safe=True)
    else:
        _print_text(_table(columns, lines), is_safe=True)


def value(wire: object, *, one_line: bool = False) -> None:
    """Print one JSON value to stdout."""
    _write(json_bytes(wire, one_line=one_line))


def line(text: str) -> None:
    """Print one line to stdout, literally; on a terminal its control characters are escaped."""
    _print_text(text + "\n")


def raw(data: bytes) -> None:
    """Print one line of somebody's bytes as they are; on a terminal its control characters are escaped."""
    if is_terminal(sys.stdout):
        line(data.rstrip(b"\r\n").decode("utf-8", "backslashreplace"))
    else:
        _write(data)


# stderr: notices, progress, errors.


def notice(text: str) -> None:
    """Tell something on stderr that is not part of the answer."""
    _to_stderr(f"note: {shown(text)}")


def notices(texts: Sequence[str]) -> None:
    """Tell several, each once."""
    for text in dict.fromkeys(texts):
        notice(text)


def failure(text: str) -> None:
    """Tell on stderr that one of many things failed; the others go on."""
    _to_stderr(f"error: {shown(text)}")


def annotation(text: str) -> None:
    """Write a workflow command of a CI system to stderr; stdout is taken by JSON."""
    _to_stderr(shown(text))


def redraw(text: str) -> None:
    """Put `text` in the place of the line that was drawn before; for terminals."""
    _to_stderr(f"\r{shown(text)}\x1b[K", end="")


class Progress:
    """What is being waited for, on stderr: lines, and on a terminal also one that counts tokens.

    quiet: say nothing. Call `close` when the waiting is over, whatever its end.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_counting = False
        self._counts = is_terminal(sys.stderr) and not quiet
        self._told_at_s = float("-inf")

    def report(self, text: str) -> None:
        """Tell one line."""
        self.close()
        if not self._quiet:
            _to_stderr(f"... {shown(text)}")

    def tokens(self, read: int, total: int) -> None:
        """Show how many tokens of the request were read so far; on a terminal only."""
        if self._counts:
            self._is_counting = True
            _to_stderr(f"\r... {read} / {total} tokens\x1b[K", end="")

    def transfer(self, now: download.Transfer) -> None:
        """Show how far a file is: on a terminal a bar on a line of its own, elsewhere a line now and then."""
        text = _transfer(now)
        if self._counts:
            import shutil

            self._is_counting = True
            line = f"... {_bar(now.done_bytes / now.size_bytes, sys.stderr)} {text}"
            # A line that wraps could not be drawn over.
            _to_stderr(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="")
        elif not self._quiet and time.monotonic() - self._told_at_s >= _TRANSFER_LINE_S:
            self._told_at_s = time.monotonic()
            _to_stderr(f"... {text}")

    def close(self) -> None:
        """Remove the counting line, if there is one."""
        if self._is_counting:
            self._is_counting = False
            _to_stderr("\r\x1b[K", end="")


def _transfer(now: download.Transfer) -> str:
    done, size = (f"{n / 1e9:.2f}" for n in (now.done_bytes, now.size_bytes))
    text = f"{now.done_bytes * 100 // now.size_bytes}% {done} of {size} GB"
    if now.bytes_per_s:
        text += f" {now.bytes_per_s / 1e6:.1f} MB/s"
    if now.left_s is not None:
        minutes, seconds = divmod(round(now.left_s), 60)
        hours, minutes = divmod(minutes, 60)
        text += f" {hours}:{minutes:02d}:{seconds:02d} left" if hours else f" {minutes}:{seconds:02d} left"
    return f"{text} ({now.verb} {shown(now.name)})"


def error(exc: errors.OpenjevError) -> None:
    """Print an error: `error:` once a problem, a dead child's last lines, and `next:`."""
    for problem in exc.problems:
        _to_stderr(f"error: {shown(problem)}")
    for text in getattr(exc, "log_tail", ()):
        _to_stderr(f"log: {shown(text)}")
    _to_stderr(f"next: {shown(exc.next_step)}")


def _to_stderr(text: str, *, end: str = "\n") -> None:
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write(_encodable(text, stream) + end)
        stream.flush()
    except (OSError, ValueError):
        pass  # a full or closed stderr must not change the outcome


# Bytes out.


def _can_print(text: str, stream: TextIO | None) -> bool:
    try:
        text.encode(_encoding(stream))
    except UnicodeEncodeError:
        return False
    return True


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _encodable(text: str, stream: TextIO | None) -> str:
    encoding = _encoding(stream)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _print_text(text: str, *, is_safe: bool = False) -> None:
    """Write text in stdout's own encoding; what that lacks becomes an escape. is_safe: already escaped."""
    if not is_safe and is_terminal(sys.stdout):
        text = "\n".join(shown(line) for line in text.split("\n"))
    encoding = _encoding(sys.stdout)
    try:
        data = text.encode(encoding, "surrogateescape")  # a path keeps its own bytes
    except UnicodeEncodeError:
        data = text.encode(encoding, "backslashreplace")
    _write(data)


def _write(data: bytes) -> None:
    """Write all bytes to stdout and flush. A closed pipe stays a BrokenPipeError, for the entry to end on."""
    stream = sys.stdout
    if stream is None:
        raise unwritable("it is closed")
    try:
        stream.flush()
        # Below the text layer: no translation of line ends or encoding.
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise unwritable(exc.strerror or str(exc)) from exc
    except ValueError as exc:
        raise unwritable("it is closed") from exc


def check_place(path: Path, *, flag: str) -> None:
    """Refuse a path that `to_file` could not write, before there is anything to lose. Raises InputError."""
    if _is_stream(path):
        is_writable = os.access(path, os.W_OK)
    else:
        folder = Path(os.path.realpath(path)).parent
        is_writable = (
            not stat.S_ISDIR(_mode(path))
            and stat.S_ISDIR(_mode(folder))
            and os.access(folder, os.W_OK | os.X_OK)
        )
    if not is_writable:
        raise errors.InputError(
            f"{flag} {path}: no file can be written there", next_step="name a file in a writable folder"
        )


def to_file(path: Path, text: str, *, flag: str) -> None:
    """Write a report to the file that a flag names, in one step; a link stays one, a pipe or device is written
    to. Raises InputError when it cannot be written."""
    try:
        if _is_stream(path):
            with path.open("a", encoding="utf-8") as stream:
                stream.write(text)
            return
        target = Path(os.path.realpath(path))
        # Not with_name, which refuses the path of a folder such as `.`.
        partial = target.parent / f".{target.name}.{os.getpid()}.part"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise errors.InputError(
            f"{flag} {path}: cannot be written: {exc.strerror}", next_step="name a file in a writable folder"
        ) from exc


def _is_stream(path: Path) -> bool:
    """Return whether a path is no place for a file of its own: a pipe, a device, or /dev/stdout."""
    mode = _mode(path)
    if path.is_absolute() and path.parts[1:2] in (("dev",), ("proc",)):
        return mode != 0
    return mode != 0 and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _mode(path: Path) -> int:
    """Return type and rights of what a path leads to, 0 where nothing can be found."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def unwritable(reason: str) -> errors.InputError:
    """Return the error for a stdout that takes nothing, after giving up what is still in its buffer."""
    _abandon_stdout()
    return errors.InputError(
        f"cannot write to standard output: {reason}",
        next_step="Send the output to a file or pipe that takes it, and repeat.",
    )


def _abandon_stdout() -> None:
    """Make the interpreter's own flush at exit harmless: what is left in the buffer goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


# Tables.


def wants_colour(stream: TextIO | None, env: Mapping[str, str]) -> bool:
    """NO_COLOR wins, then FORCE_COLOR, then whether it is a terminal that can (no-color.org)."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and env.get("TERM", "") not in ("", "dumb")


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Sequence[str] = (),
    unfolded: Sequence[str] = (),
) -> str:
    """A table as text. On a terminal long cells fold at its width; elsewhere nothing is folded or cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def cell(text: str, style: str = "") -> Text:
        return Text(_encodable(shown(text), sys.stdout), style=style, overflow="fold")

    styles = styles or ("",) * len(columns)
    can_draw = _can_print("█░─", sys.stdout)
    table = Table(box=box.SIMPLE_HEAD if can_draw else box.ASCII, header_style="", pad_edge=False)
    for name in columns:
        table.add_column(cell(name), overflow="fold", no_wrap=name in unfolded)
    for row in rows:
        table.add_row(*(cell(text, style) for text, style in zip(row, styles, strict=True)))
    # An escape for a character the encoding lacks takes up to ten cells.
    width = _terminal_cells() if is_terminal(sys.stdout) else _table_cells(columns, rows) * 10
    return _rendered(table, width, colour=wants_colour(sys.stdout, os.environ))


def _terminal_cells() -> int:
    import shutil

    # Narrower than this the columns would be a letter wide: let the terminal itself break the lines.
    return max(60, shutil.get_terminal_size().columns)


def _table_cells(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how wide a table is that folds nothing: its columns, three cells between two, one at each end."""
    from rich import cells

    widest = [max(cells.cell_len(shown(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    return sum(widest) + 3 * (len(columns) - 1) + 2


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return each row as its first cell and, below it, a line for every other one, named; a blank line between
    rows. Nothing is folded or cut."""
    names = max(len(name) for name in columns[1:])
    blocks = []
    for row in rows:
        title, *others = (_encodable(shown(text), sys.stdout) for text in row)
        named = [
            f"  {name:<{names}}  {text}".rstrip() for name, text in zip(columns[1:], others, strict=True)
        ]
        blocks.append("\n".join([title, *named]))
    return "\n\n".join(blocks) + "\n"


def _rendered(table: Table, width: int, *, colour: bool) -> str:
    import io

    from rich.console import Console

    # Everything rich would guess from the environment is given, the height too: with TERM=dumb it would
    # otherwise fall back to 80 columns and cut.
    options: dict[str, Any] = {
        "width": width,
        "height": 1000,
        "color_system": "standard" if colour else None,
        "force_terminal": colour,
        "no_color": not colour,
        "legacy_windows": False,
        "markup": False,
        "emoji": False,
        "highlight": False,
    }
    console = Console(file=io.StringIO(), **options)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"
