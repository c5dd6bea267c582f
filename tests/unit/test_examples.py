"""The examples for CI are what they say: valid YAML, valid shell, and commands that this openjev has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from openjev_cli import answersets, gates, questions, reading
from openjev_cli.cli import completion

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
CI_FILES = ("github-actions.yml", "pre-commit-config.yaml", "pre-commit-message.sh")


@pytest.mark.parametrize("name", ["github-actions.yml", "pre-commit-config.yaml"])
def test_yaml_examples_can_be_read(name: str) -> None:
    assert isinstance(reading.parse_yaml((EXAMPLES / name).read_text(), name=name), dict)


def test_the_hook_is_valid_shell_and_can_be_run() -> None:
    hook = EXAMPLES / "pre-commit-message.sh"
    subprocess.run(["sh", "-n", hook], check=True)
    assert hook.stat().st_mode & 0o111


@pytest.mark.parametrize("name", CI_FILES)
def test_examples_use_commands_and_options_that_exist(name: str) -> None:
    text = (EXAMPLES / name).read_text().replace("\\\n", " ")
    known = {" ".join(one.path): one for one in completion.commands()}
    calls = re.findall(r"^(?!\s*#).*?\bopenjev (ask|check|record)\b(.*)$", text, flags=re.MULTILINE)
    assert calls
    for command, rest in calls:
        names = {name for option in known[command].options for name in option.names}
        plain = re.sub(r"'[^']*'|\"[^\"]*\"", "", rest)
        for flag in re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", plain):
            assert flag in names, f"openjev {command} {flag}"


@pytest.mark.parametrize("name", CI_FILES)
def test_gates_of_examples_fit_their_questions(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    asked = questions.load([questions.inline(one) for one in re.findall(r"'(\w+: [^']*\?)'", text)] or NONE)
    for gate in re.findall(r"--fail-if '([^']*)'", text):
        gates.parse(gate, asked)


NONE = [questions.inline("none: None?")]


def test_the_example_answer_set_can_be_read() -> None:
    assert [case.id for case in answersets.read_set(EXAMPLES / "answers.yaml").cases] == ["duplicate-charge"]
