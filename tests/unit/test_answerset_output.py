"""Reports of answer sets: readable text, valid XML and annotations whatever the texts hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openjev_cli import answerset_output, errors, output, state
from openjev_cli.answersets import Case, Finding, Report, Result

NASTY = "a<b>&\"'\x00\x07\x1b[31m\ud800\uffff\r\n\t]]> :,% ü 😀"


def report(name: str = "case one", message: str = "was yes, is no") -> Report:
    case = Case(name, state.from_text("x"), "set.yaml:4:5", 4)
    finding = Finding(
        case,
        "refund",
        "decision",
        message,
        {"yes": 0.6, "no": 0.4},
        {"yes": 0.3, "no": 0.7},
        ("model: a -> b",),
    )
    excused = Finding(case, "team", "decision", "was a, is b", excuse="allow_flip")
    return Report(
        Path("set.yaml"),
        (Result(case), Result(Case("other", case.state, "set.yaml:8:5", 8))),
        (finding, excused),
        ("model: a -> b",),
        ("0.01 (same CPU backend, inclusive)",),
        (("case one", "team"),),
        ("new one",),
        ("old one",),
        True,
    )


def test_a_flip_shows_both_distributions_and_what_changed() -> None:
    assert answerset_output.text_lines(report()) == [
        "FAIL case one refund: was yes, is no",
        "     yes  0.6000 -> 0.3000  ######",
        "     no   0.4000 -> 0.7000  ##############",
        "     changed since it was recorded: model: a -> b",
        "ok   case one team: was a, is b (allow_flip)",
        "flip case one team: another decision when the options are reversed",
        "new  new one: not in the lock; write it with: openjev record set.yaml",
        "gone old one: in the lock, and no case of the set any more",
        "changed: model: a -> b",
        "tolerance 0.01 (same CPU backend, inclusive)",
        "set.yaml: 1 of 2 cases differ",
    ]


def test_junit_counts_suites_cases_failures_and_errors() -> None:
    one = report()
    broken = Result(one.results[1].case, error=errors.InputError("no fit", next_step="-"))
    finding = Finding(broken.case, "", "error", "no fit")
    both = Report(one.path, (one.results[0], broken), (*one.findings, finding), (), (), (), (), (), True)
    root = ElementTree.fromstring(answerset_output.junit([both]))
    (suite,) = root
    assert suite.attrib == {"name": "set.yaml", "tests": "2", "failures": "1", "errors": "1"}
    assert [(case.get("name"), [inner.tag for inner in case]) for case in suite] == [
        ("case one", ["failure"]),
        ("other", ["error"]),
    ]
    assert suite[0][0].get("message") == "refund was yes, is no"


def test_junit_is_valid_xml_whatever_the_texts_hold() -> None:
    text = answerset_output.junit([report(NASTY, NASTY)])
    case = ElementTree.fromstring(text.encode())[0][0]
    shown = "a<b>&\"'\\x00\\x07\\x1b[31m\\ud800\\uffff\r\n\t]]> :,% ü 😀"
    assert case.get("name") == shown
    assert case[0].get("message") == f"refund {shown}"


def test_annotations_are_one_line_each_and_cannot_hold_another_command() -> None:
    assert answerset_output.github_annotations(report("a,b:c", "one\n::error::two%")) == [
        "::error file=set.yaml,line=4,title=a%2Cb%3Ac refund::one%0A::error::two%25"
    ]


def test_the_report_for_programs_is_json_and_complete() -> None:
    wire = json.loads(json.dumps(answerset_output.to_json(report())))
    assert wire["ok"] is False
    assert wire["findings"][0] == {
        "case": "case one",
        "question": "refund",
        "kind": "decision",
        "message": "was yes, is no",
        "failure": True,
        "excuse": "",
        "before": {"yes": 0.6, "no": 0.4},
        "after": {"yes": 0.3, "no": 0.7},
        "changed": ["model: a -> b"],
        "line": 4,
    }
    assert (wire["added"], wire["removed"], wire["locked"]) == (["new one"], ["old one"], True)


def test_junit_is_written_in_one_step_or_refused(tmp_path: Path) -> None:
    answerset_output.write_junit(tmp_path / "r.xml", [report()])
    assert ElementTree.parse(tmp_path / "r.xml").getroot().tag == "testsuites"
    with pytest.raises(errors.InputError, match="cannot be written"):
        answerset_output.write_junit(tmp_path / "no" / "r.xml", [report()])


def test_junit_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    beyond = (tmp_path / "file" / "r.xml", tmp_path / ("x" * 250))
    for path in (tmp_path / "folder", Path(), *beyond):
        with pytest.raises(errors.InputError, match="cannot be written"):
            answerset_output.write_junit(path, [report()])
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "home") == ["file", "folder"]


def test_junit_keeps_a_link_and_writes_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "real.xml").write_text("old")
    (tmp_path / "link.xml").symlink_to("real.xml")
    answerset_output.write_junit(tmp_path / "link.xml", [report()])
    assert (tmp_path / "link.xml").is_symlink()
    assert ElementTree.parse(tmp_path / "real.xml").getroot().tag == "testsuites"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        answerset_output.write_junit(tmp_path / "pipe", [report()])
        assert os.read(reader, 100_000).decode() == (tmp_path / "real.xml").read_text()
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_place_where_no_report_can_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "new.xml", Path("new.xml"), Path(os.devnull)):
        output.check_place(path, flag="--junit")
    for path in (tmp_path, tmp_path / "no" / "r.xml", tmp_path / "file" / "r.xml"):
        with pytest.raises(errors.InputError, match=r"--junit .*: no file can be written there"):
            output.check_place(path, flag="--junit")


def test_two_checks_that_write_one_junit_file_have_a_temporary_file_each(tmp_path: Path) -> None:
    other = tmp_path / ".r.xml.part"
    other.write_text("of another process")
    answerset_output.write_junit(tmp_path / "r.xml", [report()])
    assert other.read_text() == "of another process"
