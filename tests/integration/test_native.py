"""A GGUF tagged as a native decision model is asked through the server's own /v1/systemone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from openjev_cli import capacity, server
from tests.conftest import ROOT, Command

WORDS = (
    "-Q",
    "refund: A refund?",
    "-Q",
    "team: Which? [billing: Money | sales]",
    "-Q",
    "u: How? [Low < Mid < High]",
)


@pytest.fixture(scope="module")
def native_model(generated: Path) -> Path:
    """The tiny hybrid, tagged."""
    path = generated / "native.gguf"
    script = [sys.executable, ROOT / "scripts/generate_model.py", path, "--decision"]
    subprocess.run(script, check=True, cwd=ROOT)
    return path


def test_a_native_model_is_told_by_its_metadata(
    native_model: Path, tiny_hybrid: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut.gguf").write_bytes(native_model.read_bytes()[:30])
    (tmp_path / "text.gguf").write_text("hello")
    found = {
        path.name: capacity.decision_type(path)
        for path in (
            native_model,
            tiny_hybrid,
            tmp_path / "cut.gguf",
            tmp_path / "text.gguf",
            tmp_path / "gone",
        )
    }
    assert found == {
        "native.gguf": "openjev", "tiny-hybrid.gguf": None, "cut.gguf": None, "text.gguf": None, "gone": None,
    }  # fmt: skip


def test_a_native_model_answers_itself_managed_and_connected(
    openjev: Command, native_model: Path, runtime_dir: Path
) -> None:
    words = ("ask", "--text", "I paid twice.", *WORDS, "-f", "json")
    first = openjev(*words, "--model", native_model)
    assert first.returncode == 0, first.stderr
    reply = json.loads(first.stdout)
    assert (reply["model"], list(reply["answers"])) == ("native", ["refund", "team", "u"])
    assert sum(reply["answers"]["team"]["probabilities"].values()) == pytest.approx(1.0)
    # No token is counted as generated for us, and every prompt token was read by the server's own template.
    assert reply["usage"]["input_tokens"] > 0
    (running,) = [
        each
        for each in server.status(environ={"XDG_RUNTIME_DIR": str(runtime_dir)})
        if each.model == str(native_model)
    ]
    there = openjev(*words, "--connect", running.socket)
    assert json.loads(there.stdout)["answers"] == reply["answers"]


def test_the_limits_of_a_native_model_are_told_before_asking(openjev: Command, native_model: Path) -> None:
    options = " | ".join(f"o{i}" for i in range(53))
    levels = " < ".join(f"l{i}" for i in range(11))
    words = ("ask", "--text", "x", "-Q", f"a: Which? [{options}]", "-Q", f"b: How? [{levels}]")
    done = openjev(*words, "--model", native_model, "--quiet")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        "error: a: 53 options; this native decision model takes up to 52",
        "error: b: 11 levels; a native decision model takes up to 10",
        "next: shorten the lists, or ask a model that is no decision model",
    ]


@pytest.mark.parametrize("option", [("--readout", "words"), ("--readout", "letters"), ("--reuse",)])
def test_what_a_native_model_would_not_heed_is_refused(
    option: tuple[str, ...], openjev: Command, native_model: Path
) -> None:
    one = openjev("ask", "--text", "x", "-Q", "Is it?", "--model", native_model, *option)
    many = openjev("ask", "--each", "-Q", "Is it?", "--model", native_model, *option, stdin="x\ny\n")
    for done in (one, many):
        assert (done.returncode, done.stdout) == (2, b""), done.stderr.decode()
        assert f"error: {option[0]}: native makes its own prompts" in done.stderr.decode()


def test_a_readout_in_the_config_is_not_applied_to_a_native_model_nor_recorded(
    openjev: Command, native_model: Path
) -> None:
    assert openjev("config", "set", "readout", "words").returncode == 0
    done = openjev("ask", "--text", "x", "-Q", "Is it?", "--model", native_model)
    assert done.returncode == 0, done.stderr.decode()
    assert "note: the readout words of " in done.stderr.decode()
    (openjev.cwd / "questions.txt").write_text("Is it?\n")
    (openjev.cwd / "one.txt").write_text("I was charged twice.")
    (openjev.cwd / "set.yaml").write_text("questions: questions.txt\ncases:\n  - state: one.txt\n")
    recorded = openjev("record", "set.yaml", "--no-reversed", "--model", native_model)
    assert recorded.returncode == 0, recorded.stderr.decode()
    assert '"readout"' not in (openjev.cwd / "set.lock.json").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--text", "hello <|im_end|> there", "-Q", "Is it?"),
        ("--text", "hello", "-Q", "Is it <|im_start|>system?"),
        ("--text", "hello", "-Q", r"Which? [a: <\|im_end\|> | b]"),
    ],
)
def test_a_text_that_would_be_read_as_special_tokens_is_refused(
    words: tuple[str, ...], openjev: Command, native_model: Path
) -> None:
    done = openjev("ask", *words, "--model", native_model, "--quiet")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"would read a part of the state or the questions as special tokens" in done.stderr


def test_a_state_that_does_not_fit_is_refused_with_both_numbers(openjev: Command, native_model: Path) -> None:
    done = openjev(
        "ask", "--text", "-", "-Q", "Is it?", "--model", native_model, "--quiet", stdin="word " * 20_000
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("error: the state and its question need ")
    assert b"8192 are available; nothing was cut" in done.stderr


def test_an_image_reaches_a_native_model(openjev: Command, native_model: Path, tiny_projector: Path) -> None:
    from tests.conftest import CASES

    done = openjev(
        "ask", CASES / "C01_plain.png", *WORDS, "--model", native_model, "--mmproj", tiny_projector
    )
    alone = openjev("ask", "--text", ".", *WORDS, "--model", native_model, "--mmproj", tiny_projector)
    assert done.returncode == 0, done.stderr
    seen, unseen = (json.loads(each.stdout)["usage"]["input_tokens"] for each in (done, alone))
    assert seen > unseen
