"""Answer sets: reading them strictly, locks that change only where they should, and what a check reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import answers, answersets, calibration, decide, errors, locks, orders, prompt
from openjev_cli.answersets import Result
from openjev_cli.engine.protocol import Reading
from openjev_cli.errors import Exit
from openjev_cli.provenance import Provenance
from openjev_cli.request import Request
from openjev_cli.timing import Stages

QUESTIONS = "refund: Refund?\nteam: Team? [billing | sales]\nlevel: How urgent? [low < high]\n"
HERE = Provenance(
    model="fast",
    model_sha256="a" * 64,
    projector_sha256=None,
    adapter_sha256=None,
    release="b11434",
    build="b" * 64,
    patches="c" * 64,
    backend="cpu",
    cpu="d" * 16,
    machine="machine one",
    argv=("--parallel", "8", "--flash-attn", "off"),
    template="e" * 32,
    wording="f" * 16,
    settings=(("compact_json", "true"), ("cache", "true")),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "questions.txt").write_text(QUESTIONS)
    for number in range(1, 11):
        (tmp_path / f"{number}.txt").write_text(f"state {number}")
    return tmp_path


def write_set(folder: Path, text: str, name: str = "set.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def ten_cases(folder: Path, *numbers: int) -> answersets.AnswerSet:
    rows = "".join(f"  - id: case-{n}\n    state: {n}.txt\n" for n in numbers or range(1, 11))
    return answersets.read_set(write_set(folder, f"questions: questions.txt\ncases:\n{rows}"))


def answered(refund: float = 0.9, billing: float = 0.8, high: float = 0.3) -> tuple[answers.Answer, ...]:
    team = "billing" if billing >= 0.5 else "sales"
    return (
        answers.NoulAnswer("refund", refund),
        answers.ChoiceAnswer("team", team, {"billing": billing, "sales": 1 - billing}),
        answers.ScoreAnswer("level", high, ("low", "high"), ("low", "high"), (1 - high, high)),
    )


def results(found: answersets.AnswerSet, *given: tuple[answers.Answer, ...]) -> list[Result]:
    each = given or (answered(),) * len(found.cases)
    return [Result(case, one, frozenset()) for case, one in zip(found.cases, each, strict=True)]


def lock_of(found: answersets.AnswerSet, by: Provenance = HERE, *given: Any) -> locks.Lock:
    return answersets.record_results(found, results(found, *given), None, by, "fast", keeps_others=False)


def check_one(
    folder: Path,
    before: tuple[answers.Answer, ...],
    after: tuple[answers.Answer, ...],
    *,
    by: Provenance = HERE,
    now: Provenance = HERE,
    case: str = "",
    **options: Any,
) -> answersets.Report:
    text = f"questions: questions.txt\ncases:\n  - state: 1.txt\n    id: one\n{case}"
    found = answersets.read_set(write_set(folder, text))
    return answersets.check(found, results(found, after), lock_of(found, by, before), now, **options)


# Reading a set


def test_a_set_is_read_with_its_states_and_expectations(folder: Path) -> None:
    text = (
        "questions: questions.txt\nprofile: fast\ntolerance: 0.02\ncases:\n"
        "  - id: dup\n    state: 1.txt\n"
        "    expect: {team: billing, refund: {min: 0.8}, level: {between: [0, 0.5]}}\n"
        "  - state: 2.txt\n    allow_flip: true\n"
    )
    found = answersets.read_set(write_set(folder, text))
    assert (found.profile, found.tolerance) == ("fast", 0.02)
    assert found.lock_path == folder / "set.lock.json"
    assert [(case.id, case.state.text, case.allow_flip, case.line) for case in found.cases] == [
        ("dup", "state 1", False, 5),
        ("2.txt", "state 2", True, 8),
    ]
    assert sorted(found.cases[0].expect) == ["level", "refund", "team"]


def test_everything_wrong_with_a_set_is_reported_at_once(folder: Path) -> None:
    text = (
        "questions: questions.txt\ncolour: red\ncases:\n"
        "  - state: 1.txt\n    expect: {team: biling, refnd: yes, refund: {mn: 0.8}}\n"
        "  - state: gone.txt\n"
        "  - state: 1.txt\n    expect: {refund: {min: '0.9'}, level: {max: .nan}, team: {min: 0.5}}\n"
        "  - id: x\n"
        "  - {state: 2.txt, expect: {refund: {min: }, level: {between: [1]}, team: {p: {nope: 1}}}}\n"
    )
    with pytest.raises(errors.InputError) as caught:
        answersets.read_set(write_set(folder, text))
    name = folder / "set.yaml"
    bounds = "min, max and between of a choice need to know of which option: add choice"
    known = "known are min, max, between, p, choice, allow_flip"
    assert list(caught.value.problems) == [
        f"{name}:2:9: colour: unknown key; known are questions, profile, tolerance, cases",
        f"{name}:5:20: cases[0].expect.team: biling is no answer to it; there are billing, sales",
        f"{name}:5:35: cases[0].expect.refnd: no question is called refnd; there are refund, team, level",
        f"{name}:5:53: cases[0].expect.refund.mn: unknown expectation; {known}",
        f"{name}:5:48: cases[0].expect.refund: expects nothing; write min, max, between, p or choice",
        f"{folder / 'gone.txt'}: no such file",
        f"{name}:8:28: cases[2].expect.refund.min: must be a number, and '0.9' in quotes is a text",
        f"{name}:8:49: cases[2].expect.level.max: must be a number, not .nan",
        f"{name}:8:62: cases[2].expect.team: {bounds}",
        f"{name}:9:5: cases[3].state: must be the path of a state, from the folder of the set",
        f"{name}:10:42: cases[4].expect.refund.min: must be a number, not nothing",
        f"{name}:10:63: cases[4].expect.level.between: must be a list of two numbers, without min and max",
        f"{name}:10:86: cases[4].expect.team.p.nope: no option is called that",
        f"{name}:7:5: the case 1.txt is there twice (see {name}:4:5)",
    ]


@pytest.mark.parametrize("cases", ["", "[]", "{}", "nothing"])
def test_an_empty_set_is_an_error_and_no_pass(cases: str, folder: Path) -> None:
    with pytest.raises(errors.InputError, match="an empty set checks nothing"):
        answersets.read_set(write_set(folder, f"questions: questions.txt\ncases: {cases}\n"))


def test_json_sets_have_numbers_and_no_text_for_them(folder: Path) -> None:
    def expect(value: str) -> answersets.AnswerSet:
        text = '{"questions": "questions.txt", "cases": [{"state": "1.txt", "expect": {"refund": %s}}]}'
        return answersets.read_set(write_set(folder, text % value, "set.json"))

    assert expect('{"min": 0.8}').cases[0].expect["refund"].bounds is not None
    assert expect("true").cases[0].expect["refund"].choice == "yes"
    with pytest.raises(errors.InputError, match=r"must be a number, not 0\.8"):
        expect('{"min": "0.8"}')
    with pytest.raises(errors.InputError, match="NaN"):
        expect('{"min": NaN}')


def test_a_filter_that_selects_nothing_is_an_error(folder: Path) -> None:
    found = ten_cases(folder)
    assert [case.id for case in answersets.select(found, ["case-1", "case-[34]"])] == [
        "case-1",
        "case-3",
        "case-4",
    ]
    assert len(answersets.select(found, ["case-*"])) == 10
    with pytest.raises(errors.InputError, match="no case matches case-11 or x"):
        answersets.select(found, ["case-11", "x"])


# Locks


def test_a_lock_is_read_back_as_it_was_written(folder: Path) -> None:
    lock = lock_of(ten_cases(folder))
    locks.write(folder / "set.lock.json", lock)
    assert locks.read(folder / "set.lock.json") == lock
    assert locks.read(folder / "none.lock.json") is None
    text = (folder / "set.lock.json").read_text()
    assert json.loads(text)["cases"]["case-3"]["answers"]["team"]["p"] == {"billing": 0.8, "sales": 0.2}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_case_h03_updating_a_selection_changes_its_rows_only(line_end: str, folder: Path) -> None:
    found = ten_cases(folder)
    path = found.lock_path
    locks.write(path, lock_of(found))
    path.write_bytes(path.read_bytes().replace(b"\n", line_end.encode()))
    before = path.read_bytes().splitlines(keepends=True)
    # The set was shuffled, and case 5 removed, meanwhile; matching is by id.
    shuffled = ten_cases(folder, 9, 3, 1, 2, 4, 6, 7, 8, 10)
    chosen = answersets.select(shuffled, ["case-3"])
    updated = answersets.record_results(
        shuffled,
        [Result(case, answered(refund=0.1), frozenset({"team"})) for case in chosen],
        locks.read(path),
        HERE,
        "fast",
        keeps_others=True,
    )
    locks.write(path, updated)
    after = path.read_bytes().splitlines(keepends=True)
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(changed) == 1
    assert b'"case-3"' in after[changed[0]]
    kept = locks.read(path)
    assert kept is not None
    assert list(kept.cases) == [f"case-{n}" for n in range(1, 11)]
    assert kept.cases["case-3"].answers["refund"] == locks.Recorded(
        kept.cases["case-1"].answers["refund"].question, "no", {"yes": 0.1, "no": 0.9}, False
    )


def test_case_h03_recording_the_whole_set_follows_the_set(folder: Path) -> None:
    old = lock_of(ten_cases(folder))
    smaller = ten_cases(folder, 9, 3)
    new = answersets.record_results(smaller, results(smaller), old, HERE, None, keeps_others=False)
    assert list(new.cases) == ["case-9", "case-3"]


def test_case_h03_added_and_removed_cases_are_reported(folder: Path) -> None:
    lock = lock_of(ten_cases(folder, 1, 2, 3))
    found = ten_cases(folder, 3, 1, 4)
    report = answersets.check(found, results(found), lock, HERE)
    assert (report.added, report.removed) == (("case-4",), ("case-2",))
    assert [(one.case.id, one.kind) for one in report.failures] == [("case-4", "unrecorded")]


def test_another_producer_is_kept_beside_the_first_until_nothing_refers_to_it(folder: Path) -> None:
    found = ten_cases(folder, 1, 2)
    other = replace(HERE, build="9" * 64)
    lock = lock_of(found)

    def update(lock: locks.Lock, id: str) -> locks.Lock:
        chosen = [result for result in results(found) if result.case.id == id]
        return answersets.record_results(found, chosen, lock, other, "fast", keeps_others=True)

    one = update(lock, "case-1")
    assert len(one.producers) == 2
    assert len(update(one, "case-2").producers) == 1


def test_an_interrupted_or_refused_write_leaves_the_old_lock_whole(folder: Path) -> None:
    found = ten_cases(folder, 1)
    path = found.lock_path
    locks.write(path, lock_of(found))
    old = path.read_bytes()
    path.chmod(0o444)
    with pytest.raises(errors.InputError, match="the file is read-only"):
        locks.write(path, lock_of(found, replace(HERE, build="9" * 64)))
    assert path.read_bytes() == old
    assert [one.name for one in folder.iterdir() if one.suffix == ".part"] == []


def test_a_lock_whose_temporary_file_cannot_be_made_or_removed_is_one_clear_line(folder: Path) -> None:
    path = folder / f"{'x' * 240}.lock.json"
    with pytest.raises(errors.InputError, match="cannot be written: File name too long"):
        locks.write(path, lock_of(ten_cases(folder, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "written by another version of openjev"),
        ("0.9", '"0.9"', "the probability of yes is '0.9'"),
        ("0.9", "NaN", "the probability of yes is nan"),
        ("0.9", "1.5", "the probability of yes is 1.5"),
        ('"by": "', '"by": "x', "a case names a producer that is not there"),
        ('"cases"', '"cses"', "not a lock of an answer set"),
        ("}", "", "not a lock of an answer set"),
    ],
)
def test_a_damaged_lock_is_an_error_and_no_pass(old: str, new: str, message: str, folder: Path) -> None:
    found = ten_cases(folder, 1)
    locks.write(found.lock_path, lock_of(found))
    found.lock_path.write_text(found.lock_path.read_text().replace(old, new, 1))
    with pytest.raises(errors.InputError, match=message):
        locks.read(found.lock_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("profile", ["tiny"], "profile is no text"),
        ("profile", 5, "profile is no text"),
        ("producers", ["x"], "producers is no object"),
        ("producers", None, "producers is no object"),
        ("producers/x", "fast", "producer x is no object"),
        ("producers/x/model", 7, "model of producer x is no text"),
        ("producers/x/settings", {"cache": [[]]}, "settings of producer x is no text"),
        ("cases", [], "not a lock of an answer set"),
        ("cases/case-1/by", ["x"], "by of case-1 is no text"),
        ("cases/case-1/state", None, "state of case-1 is no text"),
        ("cases/case-1/answers/refund/question", 1, "case-1, refund: question is no text"),
        ("cases/case-1/answers/refund/answer", True, "case-1, refund: answer is no text"),
        ("cases/case-1/answers/refund/flips", "no", "case-1, refund: flips is neither true nor false"),
        ("cases/case-1/answers/refund/p", [0.5, 0.5], "not a lock of an answer set"),
        ("cases/case-1/answers/refund/p/yes", 10**399, r"the probability of yes is 1000+\.\.\."),
        ("cases/case-1/answers/refund/p/yes", -(10**399), r"the probability of yes is -1000+\.\.\."),
        ("version", "9" * 400, r"lock version 999+\.\.\."),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) < 50 else "value",
)
def test_a_lock_with_a_value_of_the_wrong_kind_is_one_clear_line(
    path: str, value: object, message: str, folder: Path
) -> None:
    found = ten_cases(folder, 1)
    locks.write(found.lock_path, lock_of(found))
    raw = json.loads(found.lock_path.read_text())
    (key,) = raw["producers"]
    raw["producers"]["x"] = raw["producers"].pop(key)
    raw["cases"]["case-1"]["by"] = "x"
    *folders, last = path.split("/")
    held = raw
    for name in folders:
        held = held[name]
    held[last] = value
    found.lock_path.write_text(json.dumps(raw))
    with pytest.raises(errors.InputError, match=message) as caught:
        locks.read(found.lock_path)
    assert len(caught.value.message) < len(str(found.lock_path)) + 200
    assert caught.value.next_step.endswith(f"rm {found.lock_path}; openjev record")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": 1, "profile": ' + '{"a": ' * 100_000])
def test_a_lock_that_is_nested_too_deeply_is_one_clear_line(text: str, folder: Path) -> None:
    path = folder / "set.lock.json"
    path.write_text(text)
    with pytest.raises(errors.InputError, match="nested too deeply"):
        locks.read(path)


# Asking


class Leaning:
    """A session whose model gives each option the same score in every order, but `first` more to the first."""

    def __init__(self, scores: dict[str, float], first: float = 0.0, **fits: calibration.Fit) -> None:
        self.scores = scores
        self.first = first
        made_for = calibration.MadeFor("m", "a" * 64, None, "letters", "w")
        self.calibration = calibration.Calibration("m@1", made_for, fits)  # type: ignore[arg-type]

    def workers(self, n_questions: int) -> int:
        return 1

    def decide(self, request: Request, stages: Stages) -> answers.Decision:
        readings = [
            Reading(
                tuple(
                    self.scores.get(name, 0.0) + (0.0 if i else self.first)
                    for i, (name, _) in enumerate(prompt.options_of(order.question))
                ),
                n_tokens=1,
                cached=0,
            )
            for group in orders.expand(request.questions, request.orders)
            for order in group
        ]
        typed, _, _ = decide._together(request, readings, self.calibration)
        return answers.Decision("m", typed, answers.Usage(1, 1), stages.finish(queue_ms=0, inference_ms=0))


def asked(folder: Path, session: Leaning, *, with_reversed: bool = True, orders: int = 1) -> Result:
    found = ten_cases(folder, 1)
    session_: Any = session
    (result,) = answersets.ask(found, found.cases, session_, with_reversed=with_reversed, orders=orders)
    return result


@pytest.mark.parametrize(
    ("scores", "fits"),
    [
        ({"yes": 1.0, "sales": 0.5}, {"noul": calibration.Fit(prior=(1.0, -1.0))}),
        ({"yes": 1.0, "sales": 9.0}, {"choice": calibration.Fit(positions=(3.0, -3.0))}),
        ({"yes": 1.0, "billing": 1.0}, {"choice": calibration.Fit(prior=(1.0, -1.0))}),
    ],
)
def test_a_reversed_question_is_calibrated_as_the_question_that_it_is(
    scores: dict[str, float], fits: dict[str, calibration.Fit], folder: Path
) -> None:
    session = Leaning(scores, **fits)
    once = asked(folder, session)
    assert once.answered == asked(folder, session, with_reversed=False).answered
    # Read in both orders and averaged, the same numbers tell the same.
    assert once.flips == frozenset()
    assert asked(folder, session, orders=2).flips == frozenset()


def test_an_answer_that_turns_with_the_order_is_marked_with_a_calibration_too(folder: Path) -> None:
    biased = Leaning({"yes": 1.0}, first=2.0, noul=calibration.Fit(temperature=2.0))
    assert asked(folder, biased).flips == {"refund", "team"}


def test_options_that_are_equal_in_both_orders_are_no_flip(folder: Path) -> None:
    assert asked(folder, Leaning({})).flips == frozenset()


@pytest.mark.parametrize("orders", [1, 2])
def test_without_reversed_nothing_is_said_about_flips(orders: int, folder: Path) -> None:
    biased = Leaning({}, first=2.0)
    assert asked(folder, biased, orders=orders).flips
    assert asked(folder, biased, with_reversed=False, orders=orders).flips is None


# Checking


def test_what_agrees_passes_at_tolerance_0(folder: Path) -> None:
    report = check_one(folder, answered(), answered(), tolerance=0.0)
    assert (report.findings, report.changes, report.exit_code()) == ((), (), Exit.OK)
    assert report.tolerances == ("0 (as set, inclusive)",)


def test_case_h04_the_tolerance_is_inclusive_and_stated(folder: Path) -> None:
    def moved(to: float, **options: Any) -> list[str]:
        report = check_one(folder, answered(refund=0.90), answered(refund=to), **options)
        return [finding.message for finding in report.failures]

    assert moved(0.91) == []
    assert moved(0.9101) == ["still yes, but a probability moved by 0.0101 (tolerance 0.01)"]
    assert moved(0.92, tolerance=0.02) == []
    assert moved(0.9, tolerance=0.0) == []
    assert moved(0.90001, tolerance=0.0) == ["still yes, but a probability moved by 0.0000 (tolerance 0)"]
    other = replace(HERE, cpu="9" * 16)
    report = check_one(folder, answered(refund=0.90), answered(refund=0.95), now=other)
    assert (report.failures, report.tolerances) == ((), ("0.05 (another CPU backend, inclusive)",))


def test_case_h04_a_flip_fails_within_any_tolerance_unless_it_is_allowed(folder: Path) -> None:
    before, after = answered(refund=0.501), answered(refund=0.499)
    for tolerance in (0.0, 0.02, 1.0):
        (finding,) = check_one(folder, before, after, tolerance=tolerance).failures
        assert (finding.kind, finding.message) == ("decision", "was yes, is no")
        assert (finding.before, finding.after) == ({"yes": 0.501, "no": 0.499}, {"yes": 0.499, "no": 0.501})
    (excused,) = check_one(folder, before, after, case="    allow_flip: true\n").findings
    assert (excused.excuse, excused.is_failure) == ("allow_flip", False)
    expect = "    expect: {refund: {min: 0.3, allow_flip: true}}\n"
    assert check_one(folder, before, after, case=expect).exit_code() is Exit.OK
    (inside,) = check_one(folder, before, after, unsure=(0.45, 0.55)).findings
    assert inside.excuse == "within the unsure band 0.45..0.55"
    assert check_one(folder, answered(refund=0.6), after, unsure=(0.45, 0.55)).exit_code() is Exit.VERDICT


def test_expectations_hold_whatever_was_recorded(folder: Path) -> None:
    expect = "    expect: {team: billing, refund: {min: 0.95}}\n    allow_flip: true\n"
    report = check_one(folder, answered(), answered(), case=expect)
    assert [(one.kind, one.question, one.message) for one in report.failures] == [
        ("expectation", "refund", "P(yes) 0.9000 is under 0.95")
    ]


def test_without_a_lock_expectations_alone_are_checked(folder: Path) -> None:
    text = "questions: questions.txt\ncases:\n  - {state: 1.txt, expect: {team: billing}}\n"
    found = answersets.read_set(write_set(folder, text))
    report = answersets.check(found, results(found), None, HERE)
    assert (report.findings, report.has_lock, report.exit_code()) == ((), False, Exit.OK)
    bare = ten_cases(folder, 1)
    report = answersets.check(bare, results(bare), None, HERE)
    assert [one.kind for one in report.failures] == ["unrecorded"]


def test_a_case_that_could_not_be_asked_is_its_own_exit_code(folder: Path) -> None:
    found = ten_cases(folder, 1, 2)
    error = errors.InputError("does not fit", next_step="shorten it")
    given = [Result(found.cases[0], error=error), results(found)[1]]
    report = answersets.check(found, given, lock_of(found), HERE)
    assert [(one.kind, one.message) for one in report.failures] == [("error", "does not fit")]
    assert report.exit_code() is Exit.INPUT
    given[1] = Result(found.cases[1], error=errors.EngineError("died", next_step="look"))
    assert answersets.check(found, given, lock_of(found), HERE).exit_code() is Exit.ENGINE


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (
            replace(HERE, model="max", model_sha256="1" * 64),
            f"model: fast {'a' * 12} -> max {'1' * 12}",
        ),
        (replace(HERE, projector_sha256="1" * 64), f"projector: unknown -> {'1' * 12}"),
        (
            replace(HERE, patches="1" * 64, build="2" * 64),
            f"patches: {'c' * 12} -> {'1' * 12}",
        ),
        (replace(HERE, build="2" * 64), f"build: {'b' * 12} -> {'2' * 12}"),
        (replace(HERE, template="1" * 32), f"template: {'e' * 12} -> {'1' * 12}"),
        (replace(HERE, wording="1" * 16), f"wording of the prompt: {'f' * 16} -> {'1' * 16}"),
        (
            replace(HERE, settings=(("compact_json", "false"), ("cache", "true"))),
            "setting compact_json: true -> false",
        ),
        (
            replace(HERE, argv=("--parallel", "4", "--flash-attn", "off")),
            "settings of the server: --parallel 8 -> --parallel 4",
        ),
        (replace(HERE, cpu="1" * 16, machine="machine two"), "machine: machine one -> machine two"),
    ],
)
def test_the_report_names_what_changed(now: Provenance, expected: str, folder: Path) -> None:
    report = check_one(folder, answered(), answered(refund=0.2), now=now)
    assert report.changes == (expected,)
    assert report.failures[0].changed == (expected,)
    assert report.exit_code() is Exit.VERDICT


def test_a_changed_question_and_a_changed_state_are_named(folder: Path) -> None:
    found = ten_cases(folder, 1)
    lock = lock_of(found)
    (folder / "questions.txt").write_text(QUESTIONS.replace("sales", "sales: Selling") + "new: New?\n")
    (folder / "1.txt").write_text("another state")
    found = ten_cases(folder, 1)
    given = (*answered(), answers.NoulAnswer("new", 0.5))
    report = answersets.check(found, results(found, given), lock, HERE)
    assert report.changes == ("state of case-1", "question team", "question new: not in the lock")
    assert report.failures == ()


def test_flips_by_the_order_of_options_are_marked_and_no_failure(folder: Path) -> None:
    found = ten_cases(folder, 1)
    given = [Result(found.cases[0], answered(), frozenset({"team"}))]
    report = answersets.check(found, given, lock_of(found), HERE)
    assert (report.flips, report.failures) == ((("case-1", "team"),), ())
