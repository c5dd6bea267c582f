"""What reaches stdout and stderr: literal text, the same JSON bytes everywhere, nothing cut."""

from __future__ import annotations

import base64
import json
import os
import pickle
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from openjev_cli import answers, errors, output, timing

LONG = "escalate-to-regional-customer-operations-manager-for-northern-and-western-territories-"

DECISION = answers.Decision(
    "SmolLM2-135M",
    (
        answers.NoulAnswer("[bold]q1", 0.13),
        answers.ChoiceAnswer("route", "[/done]", {"a \\[b]": 0.2, "[/done]": 0.7, ":smile:": 0.1}),
        answers.ChoiceAnswer("where", LONG + "a", {LONG + "a": 0.6, LONG + "b": 0.4}),
        answers.ScoreAnswer(
            "urgency",
            1.6,
            ("Routine", "This week", "東京"),
            ("Routine", "This week", "東京"),
            (0.1, 0.2, 0.7),
        ),
    ),
    answers.Usage(985, 4, 900),
    timing.Timing(parse_ms=0.9, prepare_ms=2.1, queue_ms=0.0, inference_ms=128.2),
)

# Hostile names: they would colour, ring, reorder or break lines.
HOSTILE = answers.Decision(
    "model",
    (answers.ChoiceAnswer("a\tb", "x\x1b[31m\x9b\u202ey\nz", {"x\x1b[31m\x9b\u202ey\nz": 0.75, "n": 0.25}),),
    answers.Usage(1, 1),
    timing.Timing(0.0, 0.0, 0.0, 0.0),
)

ORDERED = answers.Decision(
    "model",
    (
        answers.NoulAnswer("a", 0.75, answers.Orders(2, 0.125, False)),
        answers.NoulAnswer("b", 0.25, answers.Orders(2, 0.5, True)),
    ),
    answers.Usage(40, 4),
    timing.Timing(0.0, 0.0, 0.0, 0.0),
    reused=3,
    calibration="fast@1",
)

PRINT = """
import base64, pickle, sys
from openjev_cli import output
output.decision(pickle.loads(base64.b64decode(sys.argv[1])), sys.argv[2] or None)
"""
DECISIONS = {"plain": DECISION, "hostile": HOSTILE, "ordered": ORDERED}


def command(which: str, format_name: str, *, program: str = PRINT) -> list[str]:
    decided = base64.b64encode(pickle.dumps(DECISIONS[which])).decode()
    return [sys.executable, "-c", program, decided, format_name]


def printed(which: str, format_name: str, **env: str) -> str:
    """stdout of a process that prints into a pipe; UTF-8."""
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    done = subprocess.run(command(which, format_name), capture_output=True, env={**clean, **env}, check=True)
    assert done.stderr == b""
    return done.stdout.decode("utf-8")


def on_terminal(which: str, format_name: str, **env: str) -> str:
    """What a process that prints a decision writes to a real terminal."""
    return on_terminal_of(command(which, format_name), **env)


def on_terminal_of(argv: Sequence[str], **env: str) -> str:
    """What a process writes to a real terminal."""
    master, slave = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    with subprocess.Popen(argv, stdout=slave, env={**clean, "TERM": "xterm", **env}) as child:
        os.close(slave)
        data = b""
        while True:
            try:
                block = os.read(master, 65536)
            except OSError:  # EIO: how Linux reports that the other side was closed
                break
            if not block:
                break
            data += block
        os.close(master)
    assert child.returncode == 0
    return data.decode("utf-8").replace("\r\n", "\n")


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_json_is_the_wire_shape_with_one_final_newline() -> None:
    text = printed("plain", "json")
    assert json.loads(text) == DECISION.to_wire()
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("format_name", ["json", "jsonl"])
def test_json_bytes_do_not_depend_on_the_environment(format_name: str) -> None:
    environments: list[dict[str, str]] = [
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"TERM": "dumb", "COLUMNS": "20", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ]
    expected = {which: printed(which, format_name) for which in DECISIONS}
    assert "\x1b" not in "".join(expected.values())
    for env in environments:
        assert {which: printed(which, format_name, **env) for which in DECISIONS} == expected
    assert {which: on_terminal(which, format_name) for which in DECISIONS} == expected


def test_json_escapes_what_acts_on_a_terminal_and_keeps_the_value() -> None:
    text = printed("hostile", "jsonl")
    assert "x\\u001b[31m\\u009b\\u202ey\\nz" in text
    assert json.loads(text) == HOSTILE.to_wire()


def test_json_never_holds_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.json_bytes({"p": float("nan")})


def test_jsonl_is_one_line() -> None:
    assert printed("plain", "jsonl").count("\n") == 1


def test_tsv_holds_id_type_answer_p_and_confidence() -> None:
    assert printed("plain", "tsv").splitlines() == [
        "[bold]q1\tnoul\tno\t0.870000\t",
        "route\tchoice\t[/done]\t0.700000\t0.550000",
        f"where\tchoice\t{LONG}a\t0.600000\t0.200000",
        "urgency\tscore\t東京\t0.700000\t0.400000",
    ]


def test_tsv_and_value_keep_one_line_a_record() -> None:
    assert printed("hostile", "tsv") == "a\\tb\tchoice\tx\x1b[31m\x9b\u202ey\\nz\t0.750000\t0.500000\n"
    assert printed("hostile", "value") == "x\x1b[31m\x9b\u202ey\\nz\n"


def test_value_is_the_bare_answer() -> None:
    assert printed("plain", "value").splitlines() == ["no", "[/done]", LONG + "a", "東京"]


def test_a_terminal_gets_escapes_for_control_and_bidi_characters() -> None:
    assert on_terminal("hostile", "value") == "x\\x1b[31m\\x9b\\u202ey\\nz\n"
    assert "x\\x1b[31m\\x9b\\u202ey\\nz" in without_colour(on_terminal("hostile", "table", COLUMNS="200"))


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb", "COLUMNS": "20"}])
def test_a_piped_table_is_literal_and_uncut(env: dict[str, str]) -> None:
    text = printed("plain", "table", **env)
    assert ("\x1b[" in text) == ("FORCE_COLOR" in env)
    lines = [re.split(r"\s{2,}", line.strip()) for line in without_colour(text).splitlines()]
    assert [line for line in lines if not set("".join(line)) <= {"─"}] == [
        ["question", "answer", "probability", "runner-up"],
        ["[bold]q1", "no", "█████████░ 0.87", "yes 0.13"],
        ["route", "[/done]", "███████░░░ 0.70", "a \\[b] 0.20"],
        ["where", LONG + "a", "██████░░░░ 0.60", LONG + "b 0.40"],
        ["urgency", "東京 (1.60)", "███████░░░ 0.70", "This week 0.20"],
        ["stage", "ms"],
        ["parse", "0.9"],
        ["prepare", "2.1"],
        ["queue", "0.0"],
        ["inference", "128.2"],
        ["total", "131.2"],
        ["985 tokens, 900 of them cached, SmolLM2-135M"],
    ]


def test_a_stdout_without_box_characters_gets_ascii_ones_and_escapes() -> None:
    text = printed("plain", "table", PYTHONIOENCODING="ascii")
    assert text.isascii()
    lines = [line.split("|") for line in text.splitlines() if "|" in line and "-+-" not in line]
    assert [cell.strip() for cell in lines[4][1:5]] == [
        "urgency",
        "\\u6771\\u4eac (1.60)",
        "#######... 0.70",
        "This week 0.20",
    ]
    assert printed("plain", "value", PYTHONIOENCODING="ascii").splitlines()[-1] == "\\u6771\\u4eac"


def test_a_narrow_terminal_folds_and_cuts_nothing() -> None:
    text = without_colour(on_terminal("plain", "table", COLUMNS="20"))
    assert "…" not in text
    column = re.findall(r"^ .{8} {3}(\S+)", text, re.MULTILINE)
    assert LONG + "a" in "".join(column)


def test_colour_follows_the_terminal_and_the_variables() -> None:
    assert "\x1b[" in on_terminal("plain", "table")
    assert "\x1b[" not in on_terminal("plain", "table", NO_COLOR="1")
    assert "\x1b[" not in on_terminal("plain", "table", TERM="dumb")
    assert "\x1b[" not in printed("plain", "table", FORCE_COLOR="1", NO_COLOR="1")


def test_without_a_format_a_terminal_gets_a_table_and_a_pipe_gets_json() -> None:
    assert on_terminal("plain", "").startswith(" question ")
    assert printed("plain", "") == printed("plain", "json")


def test_no_table_means_no_rich() -> None:
    program = PRINT + "import sys; print('rich' in sys.modules, file=sys.stderr)"
    for format_name, expected in (("json", "False"), ("tsv", "False"), ("value", "False"), ("table", "True")):
        arguments = command("plain", format_name, program=program)
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stderr.strip() == expected


def test_errors_are_one_line_a_problem_and_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    output.error(errors.collect(["[red]x.json: bad\n\x1b[2J", "also :smile:"], next_step="Repeat."))
    output.error(errors.ServerError("died", next_step="Look.", log_tail=["out of \x07memory"]))
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines() == [
        "error: [red]x.json: bad\\n\\x1b[2J",
        "error: also :smile:",
        "next: Repeat.",
        "error: died",
        "log: out of \\x07memory",
        "next: Look.",
    ]


def test_notices_are_told_once_each_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.notices(["a", "b", "a"])
    assert capsys.readouterr() == ("", "note: a\nnote: b\n")


def test_progress_off_a_terminal_is_lines_without_counting(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        progress = output.Progress(quiet=quiet)
        progress.report("loading")
        progress.tokens(1, 2)
        progress.close()
    assert capsys.readouterr() == ("", "... loading\n")


def test_rows_print_as_table_json_lines_and_tsv(capfd: pytest.CaptureFixture[str]) -> None:
    for format_name in ("json", "jsonl", "tsv", "table"):
        output.rows(("a", "b"), [("[x]", "1"), ("y\tz", "2")], format_name)
    text = capfd.readouterr().out
    assert text == (
        '[\n  {\n    "a": "[x]",\n    "b": "1"\n  },\n  {\n    "a": "y\\tz",\n    "b": "2"\n  }\n]\n'
        '{"a": "[x]", "b": "1"}\n{"a": "y\\tz", "b": "2"}\n'
        "[x]\t1\ny\\tz\t2\n"
        " a      b\n ────────\n [x]    1\n y\\tz   2\n"
    )


def listed_on_terminal(columns: int) -> str:
    """What a terminal of that width shows of a list that needs 76 columns."""
    program = """
from openjev_cli import output
lines = [("k1", "m" * 40, "s" * 25), ("k2", "\\x1b[2J", "")]
output.rows(("key", "model", "state"), lines, in_blocks=True)
"""
    return without_colour(on_terminal_of([sys.executable, "-c", program], COLUMNS=str(columns)))


def test_a_table_that_is_wider_than_the_terminal_becomes_blocks() -> None:
    model, state = "m" * 40, "s" * 25
    assert listed_on_terminal(75) == (
        f"k1\n  model  {model}\n  state  {state}\n\nk2\n  model  \\x1b[2J\n  state\n"
    )
    whole = listed_on_terminal(76).splitlines()
    assert whole[0].split() == ["key", "model", "state"]
    assert whole[2].split() == ["k1", model, state]


def test_a_path_that_is_not_utf8_keeps_its_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.line(os.fsdecode(b"/tmp/\xff.gguf"))
    assert capfdbinary.readouterr().out == b"/tmp/\xff.gguf\n"


def test_a_full_disk_is_an_error_and_not_a_verdict() -> None:
    program = """
import sys
from openjev_cli import errors, output
try:
    output.line("x" * 100_000)
except errors.InputError as exc:
    print(exc.message, exc.exit_code, file=sys.stderr)
"""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=True
        )
    assert done.stderr == "cannot write to standard output: No space left on device 2\n"


def test_a_closed_stderr_changes_nothing() -> None:
    program = "import sys; from openjev_cli import output; output.notice('x'); output.line('answer')"
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{program}" 2>&-'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("answer\n", "")


def test_a_table_of_several_orders_has_a_column_for_them() -> None:
    lines = printed("ordered", "table").splitlines()
    assert lines[0].split() == ["question", "answer", "probability", "runner-up", "orders"]
    assert lines[2].rstrip().endswith("2, spread 0.12")
    assert lines[3].rstrip().endswith("2, spread 0.50, flips")
    assert lines[-1] == " 40 tokens, 3 of 4 answers reused, model, calibration fast@1"
    assert "orders" not in printed("plain", "table")
