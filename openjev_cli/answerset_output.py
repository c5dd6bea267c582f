"""How a checked answer set is shown: text, JSON, JUnit XML, and annotations for GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from openjev_cli import answersets, output

_BAR_CELLS = 20
# What XML 1.0 (section 2.2) can hold; nothing else may stand in it, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text_lines(report: answersets.Report) -> list[str]:
    """Return the report for human eyes, one line each, with both distributions of everything that differs."""
    lines: list[str] = []
    for finding in report.findings:
        mark = "FAIL" if finding.is_failure else "ok  "
        excuse = f" ({finding.excuse})" if finding.excuse else ""
        question = f" {finding.question}:" if finding.question else ":"
        lines.append(f"{mark} {finding.case.id}{question} {finding.message}{excuse}")
        lines += _difference(finding.before, finding.after)
        if finding.changed:
            lines.append(f"     changed since it was recorded: {'; '.join(finding.changed)}")
    for case, question in report.flips:
        lines.append(f"flip {case} {question}: another decision when the options are reversed")
    for id in report.added:
        lines.append(f"new  {id}: not in the lock; write it with: openjev record {report.path}")
    for id in report.removed:
        lines.append(f"gone {id}: in the lock, and no case of the set any more")
    lines += [f"changed: {change}" for change in report.changes]
    if not report.has_lock:
        lines.append(f"no lock: expectations only; write one with: openjev record {report.path}")
    lines += [f"tolerance {tolerance}" for tolerance in report.tolerances]
    failed = {finding.case.id for finding in report.failures}
    total = len(report.results)
    verdict = f"{len(failed)} of {total} cases differ" if failed else f"{total} cases agree"
    lines.append(f"{report.path}: {verdict}")
    return lines


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return a line for every option: both probabilities, and a bar of the new one."""
    options = list(dict.fromkeys([*before, *after]))
    if len(options) > 12:
        options.sort(key=lambda option: -max(before.get(option, 0.0), after.get(option, 0.0)))
        options = options[:12]
    width = max((len(option) for option in options), default=0)
    lines = []
    for option in options:
        old = f"{before[option]:.4f}" if option in before else "   -  "
        new = f"{after[option]:.4f}" if option in after else "   -  "
        bar = "#" * round(after.get(option, 0.0) * _BAR_CELLS)
        arrow = f"{old} -> {new}" if before else new
        lines.append(f"     {option:<{width}}  {arrow}  {bar}".rstrip())
    return lines


def to_json(report: answersets.Report) -> dict[str, object]:
    """Return the report for programs."""
    return {
        "set": str(report.path),
        "cases": len(report.results),
        "ok": not report.failures,
        "findings": [
            {
                "case": finding.case.id,
                "question": finding.question,
                "kind": finding.kind,
                "message": finding.message,
                "failure": finding.is_failure,
                "excuse": finding.excuse,
                "before": dict(finding.before),
                "after": dict(finding.after),
                "changed": list(finding.changed),
                "line": finding.case.line,
            }
            for finding in report.findings
        ],
        "changes": list(report.changes),
        "flips": [{"case": case, "question": question} for case, question in report.flips],
        "added": list(report.added),
        "removed": list(report.removed),
        "locked": report.has_lock,
        "tolerances": list(report.tolerances),
    }


# ----------------------------------------------------------------------------------------------- JUnit XML


def junit(reports: Sequence[answersets.Report]) -> str:
    """Return JUnit XML: a suite a set, a test case a case; valid whatever the texts hold."""
    suites = "".join(_suite(report) for report in reports)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{suites}</testsuites>\n'


def _suite(report: answersets.Report) -> str:
    cases = [_test_case(report, result) for result in report.results]
    failed = {finding.case.id for finding in report.failures if finding.kind != "error"}
    broken = sum(result.error is not None for result in report.results)
    name = _attribute(str(report.path))
    head = f'<testsuite name="{name}" tests="{len(cases)}" failures="{len(failed)}" errors="{broken}">\n'
    return f"{head}{''.join(cases)}</testsuite>\n"


def _test_case(report: answersets.Report, result: answersets.Result) -> str:
    inner = ""
    for finding in report.findings:
        if finding.case.id == result.case.id and finding.is_failure:
            tag = "error" if finding.kind == "error" else "failure"
            body = [finding.message, *_difference(finding.before, finding.after)]
            body += [f"changed: {change}" for change in finding.changed]
            message = _attribute(f"{finding.question} {finding.message}".strip())
            inner += f'<{tag} message="{message}">{_escaped(chr(10).join(body))}</{tag}>\n'
    name, suite = _attribute(result.case.id), _attribute(str(report.path))
    start = f'<testcase classname="{suite}" name="{name}"'
    return f"{start}>\n{inner}</testcase>\n" if inner else f"{start}/>\n"


def _escaped(text: str) -> str:
    text = _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(text: str) -> str:
    # Line ends and tabs of an attribute would be read as spaces (XML 1.0, section 3.3.3).
    text = _escaped(text).replace('"', "&quot;")
    return text.replace("\t", "&#9;").replace("\n", "&#10;").replace("\r", "&#13;")


def write_junit(path: Path, reports: Sequence[answersets.Report]) -> None:
    """Write the XML (see `output.to_file`). Raises InputError when it cannot be written."""
    output.to_file(path, junit(reports), flag="--junit")


# ---------------------------------------------------------------------------------------- GitHub Actions


def github_annotations(report: answersets.Report) -> list[str]:
    """Return workflow commands, one line each, that mark every failure at its case in the set's file."""
    return [
        f"::error file={_property(str(report.path))},line={finding.case.line},"
        f"title={_property(f'{finding.case.id} {finding.question}'.strip())}::{_data(finding.message)}"
        for finding in report.failures
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def print_report(report: answersets.Report, *, as_json: bool, annotates: bool) -> None:
    """Print one report to stdout; annotations too, unless stdout is JSON."""
    if as_json:
        output.value(to_json(report), one_line=True)
    else:
        for line in text_lines(report):
            output.line(line)
    if annotates:
        for line in github_annotations(report):
            if as_json:
                output.annotation(line)
            else:
                output.line(line)
