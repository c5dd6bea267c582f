"""Many states: every record of a stream is asked the same questions, concurrently, and none is lost.

A record that cannot be read or asked about is an outcome with an error; the others go on. What stops the
whole stream: a server that cannot be started again, a missing model, and an engine that keeps failing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from openjev_cli import answers, decide, errors, gates, questions, reading, records
from openjev_cli import state as states
from openjev_cli.pool import Pool
from openjev_cli.request import Request
from openjev_cli.timing import Stages

# Lines named in the summary of a run; there may be millions.
MAX_NAMED = 10


@dataclass(frozen=True)
class Plan:
    """What is done with each record. fields: paths that pick the state (none = the whole record). id_field:
    the path of the record's own key. where: gates a record must pass to be printed. fail_if: gates that must
    not hold. compact: JSON states without spaces. start_at: records on earlier lines are passed over.
    reserved: a field that records must not have, since an answer would be written over it. orders: in how many
    orders of its options each question is read."""

    questions: tuple[questions.Question, ...]
    fields: tuple[str, ...] = ()
    id_field: str | None = None
    where: tuple[gates.Gate, ...] = ()
    fail_if: tuple[gates.Gate, ...] = ()
    thresholds: gates.Thresholds = gates.SURE
    compact: bool = True
    start_at: int = 1
    reserved: str | None = None
    orders: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a record: a decision or an error. id: its own key, None without an id_field or when it
    could not be read. fails: whether a gate holds. passes: whether it passes the filter."""

    record: records.Record
    id: reading.Plain
    decision: answers.Decision | None = None
    error: errors.OpenjevError | None = None
    fails: gates.Truth = False
    passes: gates.Truth = True

    @property
    def key(self) -> dict[str, reading.Plain]:
        """The record's name in a line of output: its id, else its line."""
        return {"id": self.id} if self.id is not None else {"line": self.record.line}


@dataclass
class Tally:
    """What came of a run so far."""

    answered: int = 0
    failed: int = 0
    engine_failed: int = 0
    unsure: int = 0
    verdicts: int = 0
    failed_lines: list[int] = field(default_factory=list)
    verdict_lines: list[int] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Records finished, well or not."""
        return self.answered + self.failed

    def count(self, outcome: Outcome) -> None:
        """Add one outcome."""
        if outcome.error is not None:
            self.failed += 1
            self.engine_failed += isinstance(outcome.error, errors.EngineError)
            self._name(self.failed_lines, outcome)
            return
        self.answered += 1
        if outcome.fails:
            self.verdicts += 1
            self._name(self.verdict_lines, outcome)
        elif outcome.fails is None or outcome.passes is None:
            self.unsure += 1

    def _name(self, lines: list[int], outcome: Outcome) -> None:
        if len(lines) < MAX_NAMED:
            lines.append(outcome.record.line)

    def exit_code(self) -> errors.Exit:
        """Return the most severe of what happened. An engine that answered nothing at all is exit 5."""
        codes = [errors.Exit.OK]
        if self.failed:
            engine_alone = self.answered == 0 and self.engine_failed == self.failed
            codes.append(errors.Exit.ENGINE if engine_alone else errors.Exit.PARTIAL)
        if self.verdicts:
            codes.append(errors.Exit.VERDICT)
        if self.unsure:
            codes.append(errors.Exit.UNSURE)
        return errors.most_severe(codes)


class Run:
    """One pass over a stream. Iterate it once, in one thread; `tally` and `resume_at` change as outcomes are
    settled: by whoever iterates, or else when the next one is asked for."""

    def __init__(
        self,
        source: records.Records,
        plan: Plan,
        session: decide.Session,
        *,
        workers: int,
        is_ordered: bool = True,
    ) -> None:
        self._source = source
        self._plan = plan
        self._session = session
        self._workers = workers
        self._is_ordered = is_ordered
        self._lock = threading.Lock()
        # The line of each record that was read and not settled, by the record's identity: the elements of an
        # array can share a line.
        self._under_way: dict[int, int] = {}
        self._last_line = plan.start_at - 1
        self._has_more = True
        self.tally = Tally()

    @property
    def resume_at(self) -> int:
        """The first line with a record that has not been settled. What is done on that line is done again."""
        with self._lock:
            # The next element of an array may begin on the line of the last one.
            shares_line = self._source.form == "json" and self._has_more
            following = self._last_line if shares_line else self._last_line + 1
            return min(self._under_way.values(), default=max(following, self._plan.start_at))

    def settle(self, outcome: Outcome) -> None:
        """Note that an outcome has been dealt with: it is counted, and a resumed stream passes over it."""
        with self._lock:
            if self._under_way.pop(id(outcome.record), None) is not None:
                self.tally.count(outcome)

    def __iter__(self) -> Iterator[Outcome]:
        """Yield outcomes. Raises ServerError, ModelError, and EngineError when nothing else comes."""
        failures = 0
        pool = Pool(self._records(), self._work, workers=self._workers, is_ordered=self._is_ordered)
        for outcome in pool:
            is_engine = isinstance(outcome.error, errors.EngineError)
            failures = failures + 1 if is_engine and not isinstance(outcome.error, errors.ReadoutError) else 0
            if outcome.error is not None and failures > 2 * self._workers:
                self.settle(outcome)
                raise outcome.error
            yield outcome
            self.settle(outcome)

    def _records(self) -> Iterator[records.Record]:
        for record in self._source:
            if record.line >= self._plan.start_at:
                with self._lock:
                    self._under_way[id(record)] = record.line
                    self._last_line = record.line
                yield record
        self._has_more = False

    def _work(self, record: records.Record) -> Outcome:
        stages = Stages(began_at_s=time.perf_counter())
        id: reading.Plain = None
        try:
            if record.fault is not None:
                raise record.fault
            id = self._id(record)
            if isinstance(record.value, dict) and self._plan.reserved in record.value:
                raise self._fault(record, f"there is a field called {self._plan.reserved} already")
            judged = self._state(record)
            request = Request(judged, self._plan.questions, orders=self._plan.orders)
            decision = self._session.decide(request, stages)
        except errors.OF_ONE_REQUEST as exc:
            return Outcome(record, id, error=exc)
        thresholds = self._plan.thresholds
        fails = [gate.evaluate(decision.answers, thresholds) for gate in self._plan.fail_if]
        passes = [gate.evaluate(decision.answers, thresholds) for gate in self._plan.where]
        return Outcome(record, id, decision, None, gates.any_of(fails), gates.all_of(passes))

    def _id(self, record: records.Record) -> reading.Plain:
        if self._plan.id_field is None:
            return None
        value = self._select(record, self._plan.id_field)
        if isinstance(value, str | reading.Number):
            return reading.plain(value)
        raise self._fault(record, f"{self._plan.id_field} is neither a text nor a number, so it is no id")

    def _state(self, record: records.Record) -> states.State:
        paths = self._plan.fields
        value: reading.Value
        if not paths:
            value = record.value
        elif len(paths) == 1:
            value = self._select(record, paths[0])
        else:
            value = {path: self._select(record, path) for path in paths}
        return states.from_value(value, compact=self._plan.compact, name=self._where(record))

    def _select(self, record: records.Record, path: str) -> reading.Value:
        found, value = select(record.value, path)
        if not found:
            raise self._fault(record, f"no field {reading.shorten(path)}")
        return value

    def _where(self, record: records.Record) -> str:
        return f"{self._source.name}:{record.line}"

    def _fault(self, record: records.Record, message: str) -> errors.InputError:
        return errors.InputError(
            f"{self._where(record)}: {message}", next_step="Check the fields of the records."
        )


def select(value: reading.Value, path: str) -> tuple[bool, reading.Value]:
    """Return whether there is a field at a dotted path, and what it holds: `user.name`, `lines.0.text`.

    A key that holds dots itself is found before the path is taken apart.
    """
    if isinstance(value, dict):
        if path in value:
            return True, value[path]
        head, dot, rest = path.partition(".")
        while dot:
            if head in value:
                found, inner = select(value[head], rest)
                if found:
                    return True, inner
            more, dot, rest = rest.partition(".")
            head = f"{head}.{more}"
    elif isinstance(value, list):
        head, dot, rest = path.partition(".")
        if head.isascii() and head.isdigit() and int(head) < len(value):
            return select(value[int(head)], rest) if dot else (True, value[int(head)])
    return False, None
