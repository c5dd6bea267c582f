"""What a stream prints: a line for every record, flushed; on stderr a summary, and on a terminal a bar.

With `--where` the line is the record itself, unchanged; with `--add` it is the record with its answers in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from openjev_cli import answers, errors, output, questions, reading, records, stream

ANSWERS_FIELD = "answers"
_BAR_EVERY_S = 0.1


class Printer:
    """Prints outcomes. format_name: jsonl (and json), tsv, value or table. passes_records: `--where`.
    adds_answers: `--add`."""

    def __init__(
        self,
        source: records.Records,
        asked: Sequence[questions.Question],
        format_name: str,
        *,
        passes_records: bool,
        adds_answers: bool,
        with_timing: bool,
    ) -> None:
        self._source = source
        self._asked = asked
        self._format = format_name
        self._prints_records = passes_records or adds_answers
        self._adds = adds_answers
        self._with_timing = with_timing
        # A header comes once, and only when there is a record to stand below it.
        self._header_is_due = bool(source.header) and self._prints_records

    def print(self, outcome: stream.Outcome) -> None:
        """Print one outcome. A failed record is a line with `error` and its key; where records are printed,
        that line goes to stderr, since it is no record."""
        if outcome.error is not None:
            self._print_error(outcome, outcome.error)
        elif outcome.decision is not None and outcome.passes:
            if self._header_is_due:
                self._header_is_due = False
                output.raw(self._header())
            if self._prints_records:
                output.raw(self._record(outcome.record, outcome.decision))
            else:
                self._print_answers(outcome, outcome.decision)

    def _print_error(self, outcome: stream.Outcome, error: errors.OpenjevError) -> None:
        message = "; ".join(error.problems)
        name = _key_text(outcome)
        if self._prints_records:
            is_placed = f":{outcome.record.line}:" in message
            output.failure(message if is_placed else f"{name}: {message}")
        elif self._format == "tsv":
            output.line(output.tsv_line((_key_field(outcome), "", "error", message, "", "")))
        elif self._format in ("value", "table"):
            output.line(f"error: {name}: {message}")
        else:
            output.value({**outcome.key, "error": message}, one_line=True)

    def _print_answers(self, outcome: stream.Outcome, decision: answers.Decision) -> None:
        if self._format == "tsv":
            for one in decision.answers:
                output.line(output.tsv_line((_key_field(outcome), *output.tsv_fields(one))))
        elif self._format == "value":
            output.line("\t".join(output.one_line(one.value) for one in decision.answers))
        elif self._format == "table":
            shown = "   ".join(f"{one.id} {one.value} {_p_of(one):.2f}" for one in decision.answers)
            output.line(f"{_key_text(outcome)}   {shown}")
        else:
            output.value({**outcome.key, **decision.to_wire(with_timing=self._with_timing)}, one_line=True)

    # Records.

    def _header(self) -> bytes:
        added = [name for question in self._asked for name in (question.id, f"{question.id}.p")]
        return self._widened(self._source.header, added) if self._adds else _whole_line(self._source.header)

    def _record(self, record: records.Record, decision: answers.Decision) -> bytes:
        if not self._adds:
            return self._unchanged(record)
        if self._source.header:
            added = [text for one in decision.answers for text in (one.value, f"{_p_of(one):.6f}")]
            return self._widened(record.raw, added)
        wire = {one.id: one.to_wire() for one in decision.answers}
        added_json = output.json_bytes(wire, one_line=True).rstrip(b"\n")
        written = self._unchanged(record).strip()
        if not isinstance(record.value, dict):
            value = json.dumps(record.value).encode() if self._source.form == "lines" else written
            written = b'{"record": ' + value + b"}"
        # Put in by bytes, so that the record's own numbers and spaces stay as they are.
        inner = written[:-1].rstrip()
        comma = b"" if inner == b"{" else b", "
        return inner + comma + b'"' + ANSWERS_FIELD.encode() + b'": ' + added_json + b"}\n"

    def _unchanged(self, record: records.Record) -> bytes:
        # An element of an array may go over several lines; as a record of the output it is one.
        if b"\n" in record.raw.strip() and self._source.form == "json":
            return reading.dumps(record.value, compact=True).encode() + b"\n"
        return _whole_line(record.raw)

    def _widened(self, row: bytes, added: Sequence[str]) -> bytes:
        end = row[len(row.rstrip(b"\r\n")) :] or b"\n"
        if self._source.form == "tsv":
            more = "\t".join(output.one_line(text).replace("\t", "\\t") for text in added)
            return row.rstrip(b"\r\n") + b"\t" + more.encode() + end
        quoted = [
            '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text for text in added
        ]
        return row.rstrip(b"\r\n") + b"," + ",".join(quoted).encode() + end


def _whole_line(raw: bytes) -> bytes:
    return raw if raw.endswith(b"\n") else raw + b"\n"


def _p_of(answer: answers.Answer) -> float:
    return float(output.tsv_fields(answer)[3])


def _key_field(outcome: stream.Outcome) -> str:
    return str(next(iter(outcome.key.values())))


def _key_text(outcome: stream.Outcome) -> str:
    return _key_field(outcome) if outcome.id is not None else f"line {outcome.record.line}"


class Bar:
    """Progress on stderr, on a terminal only: records done, of how many, a second, and how many failed."""

    def __init__(self, *, quiet: bool, total: int | None) -> None:
        self._is_on = output.is_terminal(sys.stderr) and not quiet
        self._hides_lines = output.is_terminal(sys.stdout)
        self._total = total
        self._began_at_s = self._drawn_at_s = time.monotonic()
        self._is_drawn = False

    def clear(self) -> None:
        """Make room for a line of output on the same terminal."""
        if self._is_drawn and self._hides_lines:
            self.close()

    def draw(self, tally: stream.Tally) -> None:
        """Show how far the run is; a few times a second at most."""
        now_s = time.monotonic()
        if self._is_on and now_s - self._drawn_at_s >= _BAR_EVERY_S:
            self._drawn_at_s = now_s
            self._is_drawn = True
            output.redraw(describe_progress(tally, now_s - self._began_at_s, self._total))

    def close(self) -> None:
        """Remove the bar."""
        if self._is_drawn:
            self._is_drawn = False
            output.redraw("")


def describe_progress(tally: stream.Tally, elapsed_s: float, total: int | None) -> str:
    """Return `120/1000 records, 45.1/s, 2 failed`."""
    of = f"/{total}" if total is not None else ""
    failed = f", {tally.failed} failed" if tally.failed else ""
    return f"{tally.done}{of} records, {tally.done / max(elapsed_s, 1e-3):.1f}/s{failed}"


def summary(tally: stream.Tally) -> tuple[str, ...]:
    """Return what the user should know at the end of a run, one line each."""
    lines = []
    if not tally.done:
        lines.append("no records in the input")
    if tally.failed:
        lines.append(
            f"{tally.failed} of {tally.done} records failed: {_lines(tally.failed_lines, tally.failed)}"
        )
    if tally.verdicts:
        named = _lines(tally.verdict_lines, tally.verdicts)
        lines.append(f"--fail-if holds for {tally.verdicts} of {tally.answered} records: {named}")
    if tally.unsure:
        lines.append(f"{tally.unsure} of {tally.answered} records are unsure")
    return tuple(lines)


def _lines(lines: Sequence[int], count: int) -> str:
    more = ", ..." if count > len(lines) else ""
    return f"line{'s' if count > 1 else ''} {', '.join(map(str, lines))}{more}"
