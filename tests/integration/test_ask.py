"""`openjev ask`, `is` and `pick` on the real llama-server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CASES, ROOT, Command

TICKET = ROOT / "examples" / "ticket.json"
QUESTIONS = ROOT / "examples" / "questions.txt"


def answers_of(run: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr.decode()
    wire = json.loads(run.stdout)
    answers = wire["answers"]
    assert isinstance(answers, dict)
    return answers


def test_the_example_gives_four_answers_in_the_wire_shape(openjev: Command) -> None:
    run = openjev("ask", TICKET, "-q", QUESTIONS)
    answers = answers_of(run)
    assert [answer["type"] for answer in answers.values()] == ["noul", "choice", "score", "noul"]
    wire = json.loads(run.stdout)
    assert list(wire) == ["model", "answers", "usage", "timing"]
    assert wire["usage"]["output_tokens"] == 4
    for answer in answers.values():
        if answer["type"] != "noul":
            assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-9)
        else:
            assert 0.0 < answer["noul"] < 1.0


def test_stages_add_up_to_processing_ms(openjev: Command) -> None:
    for _ in range(2):
        timing = json.loads(openjev("ask", TICKET, "-q", QUESTIONS).stdout)["timing"]
        stages = sum(value for name, value in timing.items() if name != "processing_ms")
        assert stages == pytest.approx(timing["processing_ms"], abs=0.1)
    assert set(timing) == {"processing_ms", "parse_ms", "prepare_ms", "queue_ms", "inference_ms"}


def test_repeats_and_asking_order_do_not_change_an_answer(openjev: Command, tmp_path: Path) -> None:
    """Case E02, on one state: warm as cold, reordered as in order, one by one as together."""
    lines = [line for line in QUESTIONS.read_text().splitlines() if line and not line.startswith("#")]
    listed = tmp_path / "q.txt"
    listed.write_text("\n".join(lines))
    first = answers_of(openjev("ask", TICKET, "-q", listed, "--no-cache"))
    listed.write_text("\n".join(reversed(lines)))
    backwards = answers_of(openjev("ask", TICKET, "-q", listed))
    again = answers_of(openjev("ask", TICKET, "-q", listed))
    alone = {}
    for line in lines:
        alone.update(answers_of(openjev("ask", TICKET, "-Q", line)))
    for other in (backwards, again, alone):
        assert set(other) == set(first)
        for name, answer in first.items():
            assert _numbers(other[name]) == pytest.approx(_numbers(answer), abs=1e-5)


def _numbers(answer: dict[str, Any]) -> list[float]:
    return [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())


def test_different_states_are_answered_on_their_own(openjev: Command) -> None:
    one = answers_of(openjev("ask", "--text", "I want my money back", "-Q", "a: Refund?"))
    two = answers_of(openjev("ask", "--text", "The weather is fine", "-Q", "a: Refund?"))
    assert one["a"]["noul"] != pytest.approx(two["a"]["noul"], abs=1e-4)


# --- what is read


def test_a_byte_order_mark_changes_nothing(openjev: Command) -> None:
    """Case A01."""
    plain = answers_of(openjev("ask", CASES / "A01_plain.json", "-q", CASES / "A01_questions_bom.txt"))
    marked = answers_of(openjev("ask", CASES / "A01_bom.json", "-q", CASES / "A01_questions_bom.txt"))
    piped = answers_of(
        openjev(
            "ask", "-", "-q", CASES / "A01_questions_bom.txt", stdin=(CASES / "A01_bom.json").read_bytes()
        )
    )
    assert len(plain) == 2
    for other in (marked, piped):
        assert {k: _numbers(v) for k, v in other.items()} == {
            k: pytest.approx(_numbers(v), abs=1e-6) for k, v in plain.items()
        }


def test_yaml_words_stay_the_words_that_were_written(openjev: Command) -> None:
    """Case B01."""
    answers = answers_of(openjev("ask", "--text", "to Norway", "-q", CASES / "B01_questions.yaml"))
    assert list(answers) == ["country", "refund", "yes", "valve"]
    assert list(answers["country"]["probabilities"]) == ["no", "se", "dk", "on", "off", "y", "n"]
    assert list(answers["valve"]["probabilities"]) == ["on", "off"]


def test_option_names_do_not_matter_for_the_readout(openjev: Command) -> None:
    """Case F01: names that share their first token, and names that are labels themselves."""
    questions = CASES / "F01_questions.json"
    hostile = {"LLAMA_ARG_TEMP": "2", "LLAMA_ARG_N_PREDICT": "0"}
    one = answers_of(openjev("ask", "--text", "The driver stopped at a pump.", "-q", questions))
    two = answers_of(openjev("ask", "--text", "The driver stopped at a pump.", "-q", questions, env=hostile))
    assert list(one["q"]["probabilities"]) == ["refund", "refused", "refuelling", "A", " A", "a"]
    assert _numbers(one["q"]) == pytest.approx(_numbers(two["q"]), abs=1e-6)


def test_renaming_ids_and_adding_questions_does_not_move_answers(openjev: Command) -> None:
    """Case G06."""
    first, second = (json.loads((CASES / name).read_text()) for name in ("G06_a.json", "G06_b.json"))
    state = first["state"] if isinstance(first["state"], str) else json.dumps(first["state"])
    one = answers_of(openjev("ask", "--text", state, "-q", CASES / "G06_a.json"))
    two = answers_of(openjev("ask", "--text", state, "-q", CASES / "G06_b.json"))
    assert list(one) == list(first["questions"])
    assert list(two) == list(second["questions"])
    same = [
        (a, b)
        for a, asked in first["questions"].items()
        for b, other in second["questions"].items()
        if asked == other
    ]
    assert same
    for a, b in same:
        assert _numbers(one[a]) == pytest.approx(_numbers(two[b]), abs=1e-5)


def test_one_sided_criteria_and_objects_are_answered(openjev: Command) -> None:
    """Case G04."""
    answers = answers_of(openjev("ask", "--text", "I paid twice.", "-q", CASES / "G04_body.json"))
    assert len(answers) == 7
    assert answers["object_levels"]["legend"] == {
        "0": {"label": "calm"},
        "1": {"label": "cross"},
        "2": "furious",
    }


@pytest.mark.parametrize("name", ["F06_state_spaces.txt", "F06_state_thinktag.txt"])
def test_spaces_and_think_tags_of_a_state_are_answered_the_same_each_time(
    openjev: Command, name: str
) -> None:
    """Case F06."""
    one = answers_of(openjev("ask", CASES / name, "-Q", "a: Is it urgent?"))
    two = answers_of(openjev("ask", CASES / name, "-Q", "a: Is it urgent?", "--no-cache"))
    assert _numbers(one["a"]) == pytest.approx(_numbers(two["a"]), abs=1e-5)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_blank_state_is_refused(offline: Command, text: str) -> None:
    """Case F06: what an upstream command that failed pipes in is no verdict."""
    run = offline("ask", "-", "-Q", "a: Is it urgent?", stdin=text)
    assert run.returncode == 2
    assert run.stderr.decode().splitlines()[0] == "error: the state is empty"


def test_a_chat_with_an_assistant_is_rendered_by_the_models_template(openjev: Command) -> None:
    chat = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "I paid twice."},
        {"role": "assistant", "content": "Sorry!"},
        {"role": "user", "content": "Money back, please."},
    ]
    answers = answers_of(openjev("ask", "-", "-Q", "a: Refund?", stdin=json.dumps(chat)))
    assert list(answers) == ["a"]


def test_a_state_that_does_not_fit_is_refused_with_both_numbers(openjev: Command) -> None:
    """Case D10: the deciding sentence is at the end, and nothing is ever cut."""
    long = "The parcel was late and nobody answered. " * 6000 + "Refund me."
    run = openjev("ask", "--text", "-", "-Q", "a: Refund?", stdin=long)
    assert run.returncode == 2
    assert run.stdout == b""
    error, next_step = run.stderr.decode().splitlines()[-2:]
    assert error.startswith("error: the state and its question need ")
    assert error.endswith(" tokens, but 8191 are available; nothing was cut")
    assert next_step.startswith("next: ")


# --- what is printed


@pytest.mark.parametrize(
    "environment",
    [
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"TERM": "dumb", "COLUMNS": "20"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
    ],
)
def test_json_is_the_same_bytes_in_every_environment(openjev: Command, environment: dict[str, str]) -> None:
    """Case A08. Without `timing` nothing in the output depends on the moment."""
    call = ("ask", CASES / "A07_markup.json", "-q", CASES / "A08_questions.json")
    still = {"OPENJEV_RESPONSE_TIMING": "false"}
    openjev(*call, env=still)
    plain = openjev(*call, env=still)
    other = openjev(*call, env={**still, **environment})
    assert (other.returncode, other.stdout) == (0, plain.stdout)
    assert plain.stdout.endswith(b"}\n")
    assert b"\x1b" not in plain.stdout


def test_a_piped_table_shows_both_long_names_whole(openjev: Command) -> None:
    """Case A08."""
    run = openjev("ask", "--text", "x", "-q", CASES / "A08_questions.json", "-f", "table")
    names = json.loads((CASES / "A08_questions.json").read_text())["route"]["criteria"]
    for name in names:
        assert name in run.stdout.decode()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_markup_is_printed_as_it_is(openjev: Command, encoding: str) -> None:
    """Case A07."""
    call = ("ask", CASES / "A07_markup.json", "-q", CASES / "A07_questions.json", "-f", "table")
    run = openjev(*call, env={"PYTHONIOENCODING": encoding})
    assert run.returncode == 0, run.stderr.decode()
    assert "[bold]q1" in run.stdout.decode(encoding)
    values = openjev(*call[:-1], "tsv").stdout.decode()
    names = list(json.loads((CASES / "A07_questions.json").read_text())["[bold]q1"]["criteria"])
    assert values.split("\t")[0] == "[bold]q1"
    assert values.split("\t")[2].replace("\\\\", "\\") in names


def test_all_formats_hold_the_same_answer(openjev: Command) -> None:
    call = ("ask", TICKET, "-Q", "team: Which team? [billing | technical]")
    answer = answers_of(openjev(*call))["team"]
    assert openjev(*call, "-f", "value").stdout.decode() == answer["choice"] + "\n"
    assert json.loads(openjev(*call, "-f", "jsonl").stdout)["answers"]["team"]["choice"] == answer["choice"]
    fields = openjev(*call, "-f", "tsv").stdout.decode().rstrip("\n").split("\t")
    assert fields[:3] == ["team", "choice", answer["choice"]]
    assert float(fields[3]) == pytest.approx(max(answer["probabilities"].values()), abs=1e-5)
    assert answer["choice"] in openjev(*call, "-f", "table").stdout.decode()


@pytest.mark.parametrize("format_", ["json", "table", "value", "tsv"])
def test_a_closed_pipe_ends_quietly(openjev: Command, format_: str) -> None:
    openjev("ask", TICKET, "-q", QUESTIONS)
    process = subprocess.Popen(
        openjev.argv("ask", TICKET, "-q", QUESTIONS, "-f", format_, "--quiet"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(openjev.environment),
        cwd=openjev.cwd,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == -signal.SIGPIPE


def test_a_full_disk_behind_stdout_is_one_line_and_no_verdict(openjev: Command) -> None:
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            openjev.argv("ask", TICKET, "-q", QUESTIONS),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=dict(openjev.environment),
            cwd=openjev.cwd,
            check=False,
        )
    assert run.returncode == 2
    assert "No space left on device" in run.stderr.decode()
    assert "Traceback" not in run.stderr.decode()


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("ask", "--help")])
def test_a_full_disk_behind_help_is_no_bug(offline: Command, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            offline.argv(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=dict(offline.environment),
            cwd=offline.cwd,
            check=False,
        )
    assert run.returncode == 2
    assert run.stderr.decode().splitlines()[0] == (
        "error: cannot write to standard output: No space left on device"
    )


# --- stdin


def test_a_state_on_the_command_line_leaves_a_silent_stdin_alone(openjev: Command) -> None:
    """Case A10: a pipe that nobody writes to or closes."""
    openjev("ask", TICKET, "-q", QUESTIONS)
    reader, writer = os.pipe()
    try:
        for arguments in (
            ("ask", TICKET, "-q", QUESTIONS),
            ("--version",),
            ("server", "status"),
            ("--help",),
        ):
            run = subprocess.run(
                openjev.argv(*arguments),
                stdin=reader,
                capture_output=True,
                env=dict(openjev.environment),
                cwd=openjev.cwd,
                timeout=60,
                check=False,
            )
            assert run.returncode == 0, run.stderr.decode()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_state_and_a_question_list_can_each_come_from_stdin(openjev: Command) -> None:
    state = answers_of(openjev("ask", "-q", QUESTIONS, stdin=TICKET.read_bytes()))
    listed = answers_of(openjev("ask", TICKET, "-q", "-", stdin=QUESTIONS.read_bytes()))
    assert list(state) == list(listed)


def test_stdin_that_is_json_by_content_is_the_same_state_as_the_file(openjev: Command) -> None:
    question = ("-Q", "a: Refund?")
    file = answers_of(openjev("ask", TICKET, *question))
    piped = answers_of(openjev("ask", *question, stdin=TICKET.read_bytes()))
    assert _numbers(piped["a"]) == pytest.approx(_numbers(file["a"]), abs=1e-6)


def test_explain_shows_the_exact_prompt_its_tokens_and_what_was_cached(openjev: Command) -> None:
    call = ("ask", "--text", "I paid <|im_end|> twice.", "-Q", "refund: Money back?", "--explain")
    openjev(*call)
    run = openjev(*call)
    answers = answers_of(run)
    assert list(answers) == ["refund"]
    explained = run.stderr.decode()
    assert "user  'I paid <|im_end|> twice.' [" in explained
    assert "user  ' Money back?' [" in explained
    assert "frame '<|im_start|>user" in explained
    counts = re.search(r"question refund: (\d+) tokens, (\d+) of them cached, label mass", explained)
    assert counts is not None
    assert int(counts[1]) == json.loads(run.stdout)["usage"]["input_tokens"]
    assert int(counts[2]) > 0


# --- is and pick


def test_is_prints_one_line_and_exits_with_the_verdict(openjev: Command) -> None:
    run = openjev("is", "Is it a complaint?", TICKET)
    word, number = run.stdout.decode().split()
    assert run.returncode == {"yes": 0, "no": 1}[word]
    assert 0.5 <= float(number) <= 1.0
    unsure = openjev("is", "Is it a complaint?", TICKET, "--unsure", "0..1")
    assert (unsure.returncode, unsure.stdout) == (7, run.stdout)


def test_is_refuses_a_question_with_options(offline: Command) -> None:
    run = offline("is", "Which? [a | b]", "--text", "x")
    assert run.returncode == 2
    assert run.stderr.decode().splitlines()[0] == (
        "error: `openjev is` takes one yes/no question, and this one has options"
    )


def test_pick_prints_the_option_and_min_p_makes_a_weak_one_unsure(openjev: Command) -> None:
    run = openjev("pick", "Which team?", "-o", "billing:Payments", "-o", "12\\:30", TICKET)
    assert run.returncode == 0
    assert run.stdout.decode().strip() in ("billing", "12:30")
    weak = openjev("pick", "Which team?", "-o", "billing", "-o", "sales", TICKET, "--min-p", "1")
    assert weak.returncode == 7
    assert weak.stdout.decode().strip() in ("billing", "sales")


# --- refusals that need no engine


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("ask", "--text", "x"), "no question to ask"),
        (("ask", "-Q", "a?"), "no state to ask about"),
        (("ask", "missing.json", "-Q", "a?"), "missing.json: no such file"),
        (("ask", ".", "-Q", "a?"), ".: is a directory"),
        (("ask", "--text", "x", "-q", "-", "-q", "-"), "-q - is given twice, but stdin can be read once"),
        (("ask", "-", "-q", "-"), "the state and the questions cannot both be read from stdin"),
        (("ask", "a.json", "--text", "x", "-Q", "a?"), "two states: a.json and --text"),
        (("ask", "--nope"), "No such option: --nope"),
        (("frob",), "No such command 'frob'."),
        (
            ("pick", "Which?", "-o", "a", "--text", "x"),
            "1 given with -o: 2 to 255 options are allowed",
        ),
        (
            ("ask", "--text", "x", "-Q", "a?", "-f", "xml"),
            "--format: 'xml' is not one of table, json, jsonl, tsv, value",
        ),
        (("is", "a?", "--text", "x", "--unsure", "0.6"), None),
        (("pick", "q?", "-o", "a", "-o", "b", "--text", "x", "--min-p", "2"), "--min-p 2: not a probability"),
    ],
)
def test_a_bad_call_is_refused_in_two_lines_before_anything_is_asked(
    offline: Command, arguments: tuple[str, ...], error: str | None
) -> None:
    run = offline(*arguments)
    assert run.returncode == 2
    assert run.stdout == b""
    lines = run.stderr.decode().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("next: ")
    if error is not None:
        assert lines[0].removeprefix("error: ").startswith(error)


def test_a_file_named_in_markup_is_named_literally_in_the_error(offline: Command) -> None:
    """Case A07."""
    run = offline("ask", "[red]x.json", "-Q", "a?")
    assert run.stderr.decode().splitlines()[0] == "error: [red]x.json: no such file"


def test_all_problems_of_all_question_sources_are_shown_at_once(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("a: fine?\na: twice?\nb: p? [x<y]\n")
    run = offline("ask", "--text", "x", "-q", "q.txt", "-Q", "c: [only]")
    lines = run.stderr.decode().splitlines()
    assert run.returncode == 2
    assert len([line for line in lines if line.startswith("error: ")]) >= 3
    assert any(line.startswith("error: q.txt:2:") for line in lines)
    assert any(line.startswith("error: q.txt:3:") for line in lines)
    assert any(line.startswith("error: -Q:1:") for line in lines)


def test_bytes_that_are_neither_text_nor_an_image_are_refused(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x00\xff\xfe\x80")
    run = offline("ask", "x.bin", "-Q", "a?")
    assert run.returncode == 2
    assert run.stderr.decode().splitlines()[0].startswith("error: x.bin: is neither UTF-8 text nor an image")


def test_no_engine_at_all_is_exit_4_and_says_how_to_get_one(openjev: Command, tmp_path: Path) -> None:
    run = openjev(
        "ask", TICKET, "-Q", "a?", env={"OPENJEV_LLAMA_SERVER": "", "PATH": str(tmp_path / "empty")}
    )
    assert run.returncode == 4
    assert b"scripts/build-llama.sh" in run.stderr


def test_a_missing_model_is_exit_3(openjev: Command) -> None:
    run = openjev("ask", TICKET, "-Q", "a?", "--model", "gone.gguf")
    assert run.returncode == 3
    assert "gone.gguf" in run.stderr.decode()


@pytest.mark.parametrize("command", ["ask", "is", "pick", "server", "models", "config"])
def test_every_command_has_help(offline: Command, command: str) -> None:
    run = offline(command, "--help")
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"Usage: openjev " + command.encode() in run.stdout


def test_the_list_of_commands_says_what_each_command_says_of_itself(offline: Command) -> None:
    from openjev_cli.cli import COMMANDS

    listed = " ".join(offline("--help").stdout.decode().split())
    for name, (_, _, summary) in COMMANDS.items():
        assert summary in listed
        own = " ".join(offline(name, "--help").stdout.decode().split())
        assert summary.rstrip(".").split(":")[0] in own


def test_a_bug_is_exit_70_with_its_traceback(tmp_path: Path) -> None:
    script = "import sys; sys.modules['typer'] = None; from openjev_cli.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert run.returncode == 70
    assert b"Traceback" in run.stderr
    assert b"this is a bug in openjev" in run.stderr


def test_ctrl_c_is_exit_130(openjev: Command) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        openjev.argv("ask", "-", "-Q", "a?"),
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**openjev.environment, "PYTHONUNBUFFERED": "1"},
        cwd=openjev.cwd,
    )
    # It reads its stdin once it is past its imports: what is in the pipe disappears.
    os.write(writer, b"half a state")
    import fcntl
    import termios

    while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4), "little") > 0:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    os.close(reader)
    os.close(writer)
    assert (process.returncode, stdout) == (130, b"")
    assert b"Traceback" not in stderr
