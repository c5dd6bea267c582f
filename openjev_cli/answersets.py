"""Answer sets: cases with expected answers, checked in CI.

Reads the set, asks its questions (also with their options reversed), and compares with what is expected
(`expectations`) and what was recorded (`locks`). What it finds is a `Report`; `answerset_output` prints it. The
set itself is never written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from openjev_cli import answers, decide, errors, gates, locks, questions, reading, record
from openjev_cli import expectations as expected
from openjev_cli import state as states
from openjev_cli.pool import Pool
from openjev_cli.provenance import Provenance
from openjev_cli.request import Request
from openjev_cli.timing import Stages

# On the same CPU backend, and on another one.
TOLERANCE_SAME, TOLERANCE_OTHER = 0.01, 0.05
# Probabilities are kept to six digits; a difference in the last of them is none.
_DIGITS = 6
_ROUNDING = 1.5e-6
_REVERSED = "\0reversed"

Kind: TypeAlias = Literal["expectation", "decision", "probability", "unrecorded", "error"]


@dataclass(frozen=True)
class Case:
    """One case of a set. where: its place in the file. allow_flip: a changed decision is no failure."""

    id: str
    state: states.State
    where: str
    line: int
    expect: Mapping[str, expected.Expectation] = field(default_factory=dict)
    allow_flip: bool = False


@dataclass(frozen=True)
class AnswerSet:
    """A set, read whole: its states too. profile: the one it asks for, or None. tolerance: its own, or None."""

    path: Path
    questions: tuple[questions.Question, ...]
    cases: tuple[Case, ...]
    profile: str | None = None
    tolerance: float | None = None

    @property
    def lock_path(self) -> Path:
        """Where its lock lies."""
        return self.path.with_name(f"{self.path.stem}.lock.json")


@dataclass(frozen=True)
class Result:
    """A case, asked again. answered: in question order. flips: question ids whose decision turned with the
    order of the options; None when that was not asked."""

    case: Case
    answered: tuple[answers.Answer, ...] = ()
    flips: frozenset[str] | None = None
    error: errors.OpenjevError | None = None


@dataclass(frozen=True)
class Finding:
    """One thing to say about an answer. before, after: distributions, where there are any. excuse: why it is
    no failure, or ""."""

    case: Case
    question: str
    kind: Kind
    message: str
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    excuse: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the check fails because of it."""
        return not self.excuse


@dataclass(frozen=True)
class Report:
    """The outcome of a check. changes: what differs from when it was recorded. flips: (case, question) that
    turn with the order of the options. added, removed: case ids in the set only, in the lock only."""

    path: Path
    results: tuple[Result, ...]
    findings: tuple[Finding, ...]
    changes: tuple[str, ...]
    tolerances: tuple[str, ...]
    flips: tuple[tuple[str, str], ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    has_lock: bool

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that make the check fail."""
        return tuple(finding for finding in self.findings if finding.is_failure)

    def exit_code(self) -> errors.Exit:
        """Return OK, VERDICT when something differs, or the code of what kept a case from being asked."""
        codes = [result.error.exit_code for result in self.results if result.error is not None]
        if any(finding.kind != "error" for finding in self.failures):
            codes.append(errors.Exit.VERDICT)
        return errors.most_severe(codes)


# ---------------------------------------------------------------------------------------- reading the set


def read_set(path: Path, *, compact: bool = True) -> AnswerSet:
    """Return the answer set of a YAML or JSON file. Raises one InputError with everything that is wrong."""
    text = reading.decode(reading.read_file(path), name=str(path))
    is_json = path.suffix.lower() == ".json"
    read = reading.read_json if is_json else reading.read_yaml
    reader = _SetReader(path, read(text, name=str(path)), text, is_json=is_json, compact=compact)
    found = reader.read()
    if reader.problems or found is None:
        raise errors.collect(reader.problems, next_step="Correct the answer set there.")
    return found


class _SetReader:
    """Notes every problem of a set with its place."""

    def __init__(
        self, path: Path, document: reading.Document, text: str, *, is_json: bool, compact: bool
    ) -> None:
        self.problems: list[str] = []
        self._path = path
        self._document = document
        self._lines = text.split("\n")
        self._is_json = is_json
        self._compact = compact

    def read(self) -> AnswerSet | None:
        """Return the set, or None; then `problems` says why."""
        value = self._document.value
        if not isinstance(value, dict):
            self._problem((), "an answer set is a mapping with questions and cases")
            return None
        self._check_keys(value, (), ("questions", "profile", "tolerance", "cases"))
        profile, tolerance = value.get("profile"), value.get("tolerance")
        if profile is not None and not (isinstance(profile, str) and profile):
            self._problem(("profile",), "must be the name of a profile")
        asked = self._questions(value.get("questions"))
        held = value.get("cases")
        cases: list[Case] = []
        if not isinstance(held, list) or not held:
            self._problem(("cases",), "must be a list of at least one case: an empty set checks nothing")
        else:
            cases = [case for i, one in enumerate(held) if (case := self._case(one, i, asked)) is not None]
            self._check_ids(held, cases)
        return AnswerSet(
            self._path,
            asked,
            tuple(cases),
            profile if isinstance(profile, str) else None,
            None if tolerance is None else self._values(("tolerance",)).number(tolerance),
        )

    def _problem(self, loc: reading.Loc, message: str) -> None:
        self.problems.append(self._document.line(reading.Problem(loc, message)))

    def _values(self, loc: reading.Loc) -> expected.Values:
        return expected.Values(loc, self._problem, self._is_quoted if not self._is_json else None)

    def _is_quoted(self, loc: reading.Loc) -> bool:
        """YAML is read as strings; whether one was written in quotes is seen in the text only."""
        line, column = self._document.where(loc).rsplit(":", 2)[1:]
        return self._lines[int(line) - 1][int(column) - 1 : int(column)] in ("'", '"')

    def _check_keys(self, value: Mapping[str, object], loc: reading.Loc, known: Sequence[str]) -> None:
        for key in value:
            if key not in known:
                self._problem((*loc, key), f"unknown key; known are {', '.join(known)}")

    def _questions(self, value: reading.Value) -> tuple[questions.Question, ...]:
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) and name for name in names):
            self._problem(("questions",), "must be the path of a question list, or several")
            return ()
        try:
            sources = [
                questions.Source(name, reading.read_file(self._path.parent / name))
                for name in names
                if isinstance(name, str)
            ]
            return questions.load(sources)
        except errors.InputError as exc:
            self.problems += exc.problems
            return ()

    def _case(self, value: reading.Value, i: int, asked: Sequence[questions.Question]) -> Case | None:
        loc: reading.Loc = ("cases", i)
        if not isinstance(value, dict):
            self._problem(loc, "a case is a mapping with a state")
            return None
        self._check_keys(value, loc, ("id", "state", "expect", "allow_flip"))
        path, id = value.get("state"), value.get("id", value.get("state"))
        if not isinstance(path, str) or not path:
            self._problem((*loc, "state"), "must be the path of a state, from the folder of the set")
            return None
        if not isinstance(id, str) or not id:
            self._problem((*loc, "id"), "must be a text")
            return None
        state = self._state(path)
        values = self._values(loc)
        expect = values.expectations(value.get("expect"), (*loc, "expect"), asked)
        flip = value.get("allow_flip")
        allow_flip = flip is not None and values.truth(flip, (*loc, "allow_flip"))
        where = self._document.where(loc)
        if state is None:
            return None
        return Case(id, state, where, int(where.rsplit(":", 2)[1]), expect, allow_flip)

    def _state(self, path: str) -> states.State | None:
        try:
            return states.from_path(self._path.parent / path, compact=self._compact)
        except errors.InputError as exc:
            self.problems += exc.problems
            return None

    def _check_ids(self, held: Sequence[reading.Value], cases: Sequence[Case]) -> None:
        seen: dict[str, str] = {}
        for case in cases:
            if case.id in seen:
                self.problems.append(f"{case.where}: the case {case.id} is there twice (see {seen[case.id]})")
            seen.setdefault(case.id, case.where)


def select(found: AnswerSet, patterns: Sequence[str]) -> tuple[Case, ...]:
    """Return the cases whose id is, or matches, one of the patterns (`*` and `?`); all without a pattern.

    Raises InputError when none does: a check of nothing must not pass.
    """
    from fnmatch import fnmatchcase

    chosen = tuple(
        case
        for case in found.cases
        if not patterns or any(case.id == one or fnmatchcase(case.id, one) for one in patterns)
    )
    if not chosen:
        raise errors.InputError(
            f"{found.path}: no case matches {' or '.join(patterns)}",
            next_step=f"the cases are {', '.join(case.id for case in found.cases[:8])}",
        )
    return chosen


# ------------------------------------------------------------------------------------------------ the lock


def record_results(
    found: AnswerSet,
    results: Iterable[Result],
    before: locks.Lock | None,
    produced_by: Provenance,
    profile: str | None,
    *,
    keeps_others: bool,
) -> locks.Lock:
    """Return the lock with the results in it. keeps_others: what was not selected stays as it was; else the
    lock holds the set's cases only, in the set's order."""
    by, produced = _key(produced_by), produced_by.to_json()
    new = {result.case.id: _recorded(found, result, by) for result in results}
    old = dict(before.cases) if before is not None else {}
    if keeps_others:
        # In place, so that nothing but the selected rows changes.
        cases = {id: new.pop(id, kept) for id, kept in old.items()} | new
    else:
        cases = {case.id: new[case.id] for case in found.cases}
    known = {**(before.producers if before is not None else {}), by: produced}
    used = {case.by for case in cases.values()}
    kept_profile = before.profile if before is not None and keeps_others else profile
    return locks.Lock(kept_profile, {key: value for key, value in known.items() if key in used}, cases)


def _key(produced_by: Provenance) -> str:
    return record.digest(json.dumps(produced_by.to_json(), sort_keys=True))[:12]


def _recorded(found: AnswerSet, result: Result, by: str) -> locks.RecordedCase:
    kept = {}
    for question, answer in zip(found.questions, result.answered, strict=True):
        flips = None if result.flips is None else question.id in result.flips
        kept[question.id] = locks.Recorded(
            digest_of_question(question), answer.value, distribution(answer), flips
        )
    return locks.RecordedCase(by, digest_of_state(result.case.state), kept)


def distribution(answer: answers.Answer) -> dict[str, float]:
    """Return the probabilities as a lock keeps them: six digits, options by name, levels by number."""
    if isinstance(answer, answers.NoulAnswer):
        p = {"yes": answer.noul, "no": 1.0 - answer.noul}
    elif isinstance(answer, answers.ChoiceAnswer):
        p = answer.probabilities
    else:
        p = {str(i): one for i, one in enumerate(answer.probabilities)}
    return {option: round(one, _DIGITS) for option, one in p.items()}


def digest_of_question(question: questions.Question) -> str:
    """Return what changes when the text, the options or the criteria of a question change."""
    return record.digest(json.dumps(questions.to_wire(question), ensure_ascii=False))


def digest_of_state(state: states.State) -> str:
    """Return what changes when the state that the model reads changes."""
    images = [image.digest for image in state.all_images]
    return record.digest(repr((replace(state, notices=()), images)))


# ------------------------------------------------------------------------------------------------- asking


def ask(
    found: AnswerSet,
    cases: Sequence[Case],
    session: decide.Session,
    *,
    with_reversed: bool,
    orders: int = 1,
) -> list[Result]:
    """Ask the questions of every case, concurrently; results in case order.

    with_reversed: say what flips, and for that ask also with the options in reverse order, from the same prefix.
    orders: in so many orders each, averaged; they show themselves what flips. Raises ServerError and ModelError;
    what concerns one case is in its result.
    """
    turned: list[tuple[questions.Question, questions.Question]] = []
    if with_reversed and orders == 1:
        turned = [(one, of) for of in found.questions if (one := _reversed(of)) is not None]
    asked = (*found.questions, *(one for one, _ in turned))
    reversed_of = {one.id: of for one, of in turned}

    def work(case: Case) -> Result:
        try:
            request = Request(case.state, asked, orders=orders, reversed_of=reversed_of)
            decision = session.decide(request, Stages(time.perf_counter()))
        except errors.OF_ONE_REQUEST as exc:
            return Result(case, error=exc)
        by_id = {answer.id: answer for answer in decision.answers}
        straight = tuple(by_id[question.id] for question in found.questions)
        if not with_reversed:
            return Result(case, straight)
        if orders > 1:
            flips = {answer.id for answer in straight if answer.orders is not None and answer.orders.flips}
            return Result(case, straight, frozenset(flips))
        flips = {
            answer.id
            for answer in straight
            if answer.id + _REVERSED in by_id and _turns(answer, by_id[answer.id + _REVERSED])
        }
        return Result(case, straight, frozenset(flips))

    return list(Pool(cases, work, workers=session.workers(len(asked) * orders)))


def _turns(straight: answers.Answer, turned: answers.Answer) -> bool:
    """Return whether the reversed question has another answer. Of equals the first one counts, which says nothing."""
    p = dict(turned.ranked)
    return p.get(straight.value, 0.0) < max(p.values())


def _reversed(question: questions.Question) -> questions.Question | None:
    """Return the question with its options in reverse order; a rubric has only one order."""
    if isinstance(question, questions.Choice):
        return questions.Choice(question.id + _REVERSED, question.text, question.options[::-1])
    if isinstance(question, questions.Noul):
        # A yes/no question is a choice between yes and no to the model.
        options = (questions.Option("no", question.no), questions.Option("yes", question.yes))
        return questions.Choice(question.id + _REVERSED, question.text, options)
    return None


# ---------------------------------------------------------------------------------------------- comparing


def check(
    found: AnswerSet,
    results: Sequence[Result],
    lock: locks.Lock | None,
    produced_by: Provenance,
    *,
    tolerance: float | None = None,
    unsure: tuple[float, float] | None = None,
) -> Report:
    """Return how the results differ from the expectations and from the lock.

    tolerance: of probabilities, both ends included; None = the set's, else 0.01 on the CPU backend that
    recorded and 0.05 on another. unsure: a flip of a yes/no question within this band is no failure.
    """
    now = produced_by.to_json()
    tolerance = found.tolerance if tolerance is None else tolerance
    comparison = _Comparison(found, lock, now, tolerance, unsure)
    findings = [finding for result in results for finding in comparison.of(result)]
    recorded = set(lock.cases) if lock is not None else set()
    in_set = {case.id for case in found.cases}
    flips = [
        (result.case.id, question.id)
        for result in results
        for question in found.questions
        if result.flips and question.id in result.flips
    ]
    return Report(
        found.path,
        tuple(results),
        tuple(findings),
        tuple(dict.fromkeys(comparison.changes)),
        tuple(dict.fromkeys(comparison.tolerances)),
        tuple(flips),
        tuple(case.id for case in found.cases if lock is not None and case.id not in recorded),
        tuple(id for id in (lock.cases if lock is not None else ()) if id not in in_set),
        lock is not None,
    )


class _Comparison:
    """Compares results one by one, and gathers what changed on the way."""

    def __init__(
        self,
        found: AnswerSet,
        lock: locks.Lock | None,
        now: Mapping[str, Any],
        tolerance: float | None,
        unsure: tuple[float, float] | None,
    ) -> None:
        self._found = found
        self._lock = lock
        self._now = now
        self._tolerance = tolerance
        self._unsure = unsure
        self.changes: list[str] = []
        self.tolerances: list[str] = []

    def of(self, result: Result) -> list[Finding]:
        """Return the findings about one result."""
        case = result.case
        if result.error is not None:
            return [Finding(case, "", "error", "; ".join(result.error.problems))]
        kept = self._lock.cases.get(case.id) if self._lock is not None else None
        if kept is None and not case.expect:
            message = "nothing is expected of it and nothing recorded, so there is nothing to check"
            return [Finding(case, "", "unrecorded", message)]
        changed = self._changes_of(case, kept)
        findings: list[Finding] = []
        for question, answer in zip(self._found.questions, result.answered, strict=True):
            one = kept.answers.get(question.id) if kept is not None else None
            expectation = case.expect.get(question.id)
            about: tuple[str, ...] = changed
            if one is not None and one.question != digest_of_question(question):
                about = (*changed, f"question {question.id}")
            self.changes += about
            before = dict(one.p) if one is not None else {}
            tolerance = self._tolerance_for(kept)
            if expectation is not None:
                for message in expectation.unmet(answer, tolerance):
                    after = distribution(answer)
                    findings.append(Finding(case, question.id, "expectation", message, before, after, about))
            if one is not None:
                findings += self._against(case, question.id, answer, one, tolerance, about)
            elif kept is not None:
                self.changes.append(f"question {question.id}: not in the lock")
        return findings

    def _changes_of(self, case: Case, kept: locks.RecordedCase | None) -> tuple[str, ...]:
        if kept is None or self._lock is None:
            return ()
        state = () if kept.state == digest_of_state(case.state) else (f"state of {case.id}",)
        return (*locks.differences(self._lock.producers[kept.by], self._now), *state)

    def _tolerance_for(self, kept: locks.RecordedCase | None) -> float:
        if self._tolerance is not None:
            value, why = self._tolerance, "as set"
        elif kept is None or self._lock is None:
            return TOLERANCE_SAME
        else:
            then = self._lock.producers[kept.by]
            is_same = all(then.get(key) == self._now.get(key) for key in ("backend", "cpu"))
            value = TOLERANCE_SAME if is_same else TOLERANCE_OTHER
            why = "same CPU backend" if is_same else "another CPU backend"
        if kept is not None:
            self.tolerances.append(f"{value:g} ({why}, inclusive)")
        return value

    def _against(
        self,
        case: Case,
        question: str,
        answer: answers.Answer,
        one: locks.Recorded,
        tolerance: float,
        changed: tuple[str, ...],
    ) -> list[Finding]:
        after = distribution(answer)
        if one.answer != answer.value:
            expectation = case.expect.get(question)
            excuse = ""
            if case.allow_flip or (expectation is not None and expectation.allow_flip):
                excuse = "allow_flip"
            elif self._is_in_band(answer, one):
                low, high = self._unsure or (0.0, 0.0)
                excuse = f"within the unsure band {low:g}..{high:g}"
            message = f"was {one.answer}, is {answer.value}"
            return [Finding(case, question, "decision", message, one.p, after, changed, excuse)]
        if set(one.p) != set(after):
            message = "other options than were recorded"
            return [Finding(case, question, "probability", message, one.p, after, changed)]
        moved = max(abs(one.p[option] - p) for option, p in after.items())
        if moved <= tolerance + _ROUNDING:
            return []
        message = f"still {answer.value}, but a probability moved by {moved:.4f} (tolerance {tolerance:g})"
        return [Finding(case, question, "probability", message, one.p, after, changed)]

    def _is_in_band(self, answer: answers.Answer, one: locks.Recorded) -> bool:
        return isinstance(answer, answers.NoulAnswer) and all(
            gates.is_unsure(p, self._unsure) for p in (answer.noul, one.p.get("yes", -1.0))
        )
