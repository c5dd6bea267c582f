"""`openjev ask --each`, gates and the answer cache, on the real engine."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import config, decide, questions
from openjev_cli import state as states
from openjev_cli.request import Request
from openjev_cli.timing import Stages
from tests.conftest import Command

CASES = Path(__file__).parent.parent / "cases"
REFUND = "refund: Does the customer ask for a refund?"
TEAM = "team: Which team? [billing | technical | sales]"


def lines_of(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@contextmanager
def running(openjev: Command, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A call whose stdin is still open; killed and reaped at the end."""
    with subprocess.Popen(
        openjev.argv(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(openjev.environment),
        cwd=openjev.cwd,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_case_a04_good_records_are_answered_and_bad_ones_named(openjev: Command) -> None:
    holes = CASES / "A04_holes.ndjson"
    result = openjev("ask", "--each", holes, "-Q", REFUND)
    lines = lines_of(result.stdout)
    assert [one["line"] for one in lines] == [1, 3, 5, 6, 7]
    assert ["error" in one for one in lines] == [False, False, True, False, True]
    assert lines[2]["error"] == f"{holes}:5:12: t: the string is never closed"
    assert result.stderr.decode().splitlines()[-1] == "note: 2 of 5 records failed: lines 5, 7"
    assert result.returncode == 6


def test_a_record_with_an_image_fails_alone_where_the_model_sees_none(openjev: Command) -> None:
    url = "data:image/png;base64," + base64.b64encode((CASES / "C01_plain.png").read_bytes()).decode()
    seen = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    records = [{"text": "Refund me."}, {"messages": seen}, {"text": "Hello."}]
    stdin = "".join(json.dumps(one) + "\n" for one in records)
    result = openjev("ask", "--each", "-Q", REFUND, stdin=stdin)
    lines = lines_of(result.stdout)
    assert ["error" in one for one in lines] == [False, True, False], result.stderr.decode()
    assert "does not see images" in lines[1]["error"]
    assert result.returncode == 6


def test_case_a01_a_byte_order_mark_does_not_cost_the_first_record(openjev: Command) -> None:
    result = openjev("ask", "--each", "-Q", REFUND, stdin=b'\xef\xbb\xbf{"t":"a"}\n{"t":"b"}\n')
    plain = openjev("ask", "--each", "-Q", REFUND, stdin=b'{"t":"a"}\n{"t":"b"}\n')
    assert [one["answers"] for one in lines_of(result.stdout)] == [
        one["answers"] for one in lines_of(plain.stdout)
    ]
    assert (result.returncode, len(lines_of(result.stdout))) == (0, 2)


def test_an_answer_is_there_before_the_next_record_is_written(openjev: Command) -> None:
    with running(openjev, "ask", "--each", "-Q", REFUND) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in (1, 2, 3):
            process.stdin.write(b'{"n": %d}\n' % number)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["line"] == number
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(30) == 0


def test_where_passes_the_records_it_holds_for_unchanged(openjev: Command) -> None:
    records = [b'{"b": 1.00,  "a":"x\\u00e9"}\r\n', b'{"n": 2}\n', b'  {"n": 3}\n', b'{"last": 4}']
    answered = lines_of(openjev("ask", "--each", "-Q", REFUND, stdin=b"".join(records)).stdout)
    p_yes = [one["answers"]["refund"]["noul"] for one in answered]
    middle = sorted(p_yes)[1]
    result = openjev(
        "ask", "--each", "-Q", REFUND, "--where", f"refund > {middle:.9f}", stdin=b"".join(records)
    )
    expected = [one if one.endswith(b"\n") else one + b"\n" for one in records]
    assert result.stdout == b"".join(
        one for one, p in zip(expected, p_yes, strict=True) if p > float(f"{middle:.9f}")
    )
    assert result.returncode == 0


def test_add_writes_the_answers_into_the_record(openjev: Command) -> None:
    record = b'{"id": 7, "x": 1.50}\n'
    plain = lines_of(openjev("ask", "--each", "-Q", REFUND, "--field", "x", stdin=record).stdout)[0]
    result = openjev("ask", "--each", "-Q", REFUND, "--field", "x", "--add", stdin=record)
    assert result.stdout.startswith(b'{"id": 7, "x": 1.50, "answers": {')
    assert json.loads(result.stdout)["answers"] == plain["answers"]


def test_csv_comes_back_as_csv(openjev: Command) -> None:
    csv = b'id,text\n1,"a, ""b"""\n2,hello\n'
    where = openjev("ask", "--each", "--as", "csv", "-Q", REFUND, "--where", "refund >= 0", stdin=csv)
    assert (where.stdout, where.returncode) == (csv, 0)
    none = openjev("ask", "--each", "--as", "csv", "-Q", REFUND, "--where", "refund > 1", stdin=csv)
    assert (none.stdout, none.returncode) == (b"", 0)
    added = openjev("ask", "--each", "--as", "csv", "-Q", REFUND, "--add", stdin=csv).stdout.splitlines()
    assert added[0] == b"id,text,refund,refund.p"
    assert added[1].startswith(b'1,"a, ""b""",')


def test_a_closed_pipe_ends_the_process_by_sigpipe(openjev: Command) -> None:
    with running(openjev, "ask", "--each", "-Q", REFUND) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"n": 1}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b'{"n": 2}\n')
        process.stdin.flush()
        assert process.wait(30) == -signal.SIGPIPE


def test_ctrl_c_says_where_to_go_on(openjev: Command) -> None:
    with running(openjev, "ask", "--each", "-Q", REFUND) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b'{"n": 1}\n\n{"n": 3}\n')
        process.stdin.flush()
        for number in (1, 3):
            assert json.loads(process.stdout.readline())["line"] == number
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert (
            process.stderr.read().decode().splitlines()[-1] == "note: 2 records done; go on with --start-at 4"
        )


def test_strict_stops_at_the_first_bad_record(openjev: Command) -> None:
    result = openjev("ask", "--each", "-Q", REFUND, "--strict", stdin=b'{"n":1}\n{bad}\n{"n":3}\n')
    assert [one["line"] for one in lines_of(result.stdout)] == [1]
    assert result.stderr.decode().splitlines()[-3:] == [
        "note: 1 record done; go on with --start-at 2",
        "error: stdin:2:2: a key in double quotes was expected",
        "next: Correct it there; JSON is read strictly (RFC 8259).",
    ]
    assert result.returncode == 2


def test_a_wrong_expression_is_refused_before_anything_is_read_or_started(offline: Command) -> None:
    result = offline("ask", "--each", "-", "-Q", REFUND, "--where", "refnd > 0.2", stdin=b"x\n")
    assert result.stderr.decode().splitlines() == [
        "error: --where: column 1, at refnd > 0.2: no question is called refnd (did you mean refund?)",
        "next: The questions are refund (P(yes)).",
    ]
    assert (result.stdout, result.returncode) == (b"", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "refund > 0.2"], "--where: only with --each"),
        (["--add"], "--add: only with --each"),
        (["--start-at", "3"], "--start-at: only with --each"),
        (["--each", "--text", "x"], "--text: --each reads records"),
        (["--each", "--as", "xml"], "--as xml: no such form of records"),
        (["--each", "nowhere.csv"], "nowhere.csv: no such file or directory"),
        (["--reuse", "--no-cache"], "--reuse and --no-cache contradict each other"),
        (
            ["--unsure", "0.6..0.4"],
            "--unsure: '0.6..0.4' is not a band of probabilities; write it as 0.4..0.6",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], message: str, offline: Command) -> None:
    result = offline("ask", "-Q", REFUND, *arguments, stdin=b"x\n")
    assert result.stderr.decode().splitlines()[0] == f"error: {message}"
    assert (result.stdout, result.returncode) == (b"", 2)


def test_gates_decide_the_exit_code_of_a_single_state(openjev: Command) -> None:
    def ask(*arguments: str) -> tuple[int, list[str]]:
        result = openjev("ask", "--text", "Refund me!", "-Q", REFUND, "-Q", TEAM, "-f", "value", *arguments)
        assert len(result.stdout.splitlines()) == 2
        return result.returncode, [
            line for line in result.stderr.decode().splitlines() if "--fail-if" in line
        ]

    assert ask("--fail-if", "refund > 1") == (0, [])
    assert ask("--fail-if", "refund >= 0") == (1, ["note: --fail-if holds: refund >= 0"])
    assert ask("--fail-if", "refund >= 0", "--unsure", "0..1") == (
        7,
        ["note: --fail-if is unsure: refund >= 0"],
    )
    assert ask("--fail-if", 'team == "sales"', "--min-confidence", "1")[0] == 7
    both = ask("--fail-if", 'team == "sales"', "--min-confidence", "1", "--fail-if", "refund <= 1")
    assert both[0] == 1


def test_gates_decide_the_exit_code_of_a_stream_below_failures(openjev: Command) -> None:
    def ask(stdin: bytes, gate: str) -> int:
        return openjev("ask", "--each", "-Q", REFUND, "--fail-if", gate, stdin=stdin).returncode

    assert ask(b'{"n":1}\n', "refund > 1") == 0
    assert ask(b'{"n":1}\n{"n":2}\n', "refund >= 0") == 1
    assert ask(b'{"n":1}\n{bad\n', "refund >= 0") == 6


# Short, for thousands of requests.
SHORT = "team: Team? [billing | sales]"


def one_by_one(openjev: Command, texts: list[str]) -> list[dict[str, Any]]:
    """The answers to each text, asked when the one before is answered, with nothing cached."""
    settings = config.load({"cache": False}, env=openjev.environment, cwd=openjev.cwd)
    asked = questions.load([questions.inline(SHORT)])
    with decide.Session(settings, openjev.environment) as session:
        decisions = (
            session.decide(Request(states.from_text(text), asked), Stages(time.perf_counter()))
            for text in texts
        )
        return [decision.to_wire()["answers"]["team"] for decision in decisions]


@pytest.mark.slow
def test_two_streams_at_once_keep_their_answers_apart(openjev: Command) -> None:
    texts = {name: [f"{name} {n}" for n in range(1000)] for name in ("ticket", "invoice")}
    assert openjev("server", "start").returncode == 0
    printed = {name: openjev.cwd / f"{name}.jsonl" for name in texts}
    processes = []
    for name, some in texts.items():
        (openjev.cwd / f"{name}.txt").write_text("\n".join(some))
        with printed[name].open("wb") as stdout:
            argv = openjev.argv("ask", "--each", f"{name}.txt", "--as", "lines", "-Q", SHORT)
            environment = dict(openjev.environment)
            processes.append(subprocess.Popen(argv, stdout=stdout, env=environment, cwd=openjev.cwd))
    try:
        # Both have answered some and neither has all: they do run at once.
        while not all(path.stat().st_size for path in printed.values()):
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.01)
        assert [process.poll() for process in processes] == [None, None]
        assert [process.wait(1800) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    seen = []
    for name, some in texts.items():
        got = lines_of(printed[name].read_bytes())
        assert [one["line"] for one in got] == list(range(1, 1001))
        for line, alone in zip(got, one_by_one(openjev, some), strict=True):
            mine = line["answers"]["team"]
            assert mine["choice"] == alone["choice"]
            assert mine["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)
            seen.append(round(alone["probabilities"]["billing"], 4))
    # A mixed-up answer would have been seen: at a coarser grain than is compared, most records differ.
    assert len(set(seen)) > 1000


def test_reuse_gives_the_same_answers_without_the_engine_reading_again(openjev: Command) -> None:
    states = b'{"n":1}\n{"n":2}\n'
    first = lines_of(openjev("ask", "--each", "-Q", REFUND, "-Q", TEAM, "--reuse", stdin=states).stdout)
    again = lines_of(openjev("ask", "--each", "-Q", TEAM, "-Q", REFUND, "--reuse", stdin=states).stdout)
    for before, after in zip(first, again, strict=True):
        assert after["answers"] == before["answers"]
        assert before["timing"]["reused_answers"] == 0
        assert (after["timing"]["reused_answers"], after["timing"]["inference_ms"]) == (2, 0.0)
    other = openjev("ask", "--text", "other", "-Q", REFUND, "--reuse", "-f", "json")
    assert json.loads(other.stdout)["timing"]["reused_answers"] == 0
    without = openjev("ask", "--text", "other", "-Q", REFUND, "-f", "json")
    assert "reused_answers" not in json.loads(without.stdout)["timing"]


def test_the_answer_cache_survives_kill_9(openjev: Command) -> None:
    with running(openjev, "ask", "--each", "-Q", REFUND, "--reuse") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(b'{"n":%d}\n' % n for n in range(60)))
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        process.kill()
        process.wait(30)
    again = openjev("ask", "--text", '{"n":0}', "--json", "-Q", REFUND, "--reuse", "-f", "json")
    assert json.loads(again.stdout)["timing"]["reused_answers"] == 1
    assert json.loads(again.stdout)["answers"] == first["answers"]


def test_a_bar_is_drawn_on_a_terminal_and_nothing_of_it_reaches_stdout(openjev: Command) -> None:
    import pty

    mine, theirs = pty.openpty()
    states = "".join(f'{{"n":{n}}}\n' for n in range(40))
    (openjev.cwd / "states.jsonl").write_text(states)
    result = subprocess.run(
        openjev.argv("ask", "--each", "states.jsonl", "-Q", REFUND),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=dict(openjev.environment),
        cwd=openjev.cwd,
        timeout=120,
        check=False,
    )
    os.close(theirs)
    drawn = b""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            drawn += os.read(mine, 65536)
        except OSError:  # EIO: the other end is closed and everything was read
            break
    os.close(mine)
    assert len(lines_of(result.stdout)) == 40
    assert b"/40 records, " in drawn
    assert drawn.endswith(b"\r\x1b[K")
