"""`openjev record` and `openjev check` on the real engine: identical reruns, causes, selections, reports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openjev_cli import profiles
from tests.conftest import ROOT, Command

SET = """\
# The golden set; comments and order are ours to keep.
questions: questions.txt
cases:
  - id: first
    state: one.txt
  - id: second
    state: two.txt
    expect:
      refund: {between: [0, 1]}
"""


@pytest.fixture
def folder(openjev: Command) -> Path:
    (openjev.cwd / "questions.txt").write_text("refund: Refund?\nteam: Team? [billing | sales | other]\n")
    (openjev.cwd / "one.txt").write_text("I was charged twice, give me my money back.")
    (openjev.cwd / "two.txt").write_text("Do you sell in Norway?")
    (openjev.cwd / "set.yaml").write_text(SET)
    return openjev.cwd


def record(openjev: Command, *arguments: str) -> str:
    result = openjev("record", "set.yaml", *arguments)
    assert (result.returncode, result.stdout) == (0, b"set.lock.json: 2 of 2 cases recorded\n")
    return (openjev.cwd / "set.lock.json").read_text()


def causes(openjev: Command, *arguments: str | Path, env: dict[str, str] | None = None) -> list[str]:
    """The causes that a check names, without what was before and after."""
    result = openjev("check", "set.yaml", "-f", "json", "--no-reversed", *arguments, env=env)
    assert result.returncode in (0, 1), result.stderr.decode()
    return [change.split(":")[0] for change in json.loads(result.stdout)["changes"]]


def test_an_identical_rerun_agrees_at_tolerance_0_and_records_the_same_lock(
    openjev: Command, folder: Path
) -> None:
    lock = record(openjev)
    result = openjev("check", "set.yaml", "--tolerance", "0")
    assert result.stdout.decode().splitlines()[-2:] == [
        "tolerance 0 (as set, inclusive)",
        "set.yaml: 2 cases agree",
    ]
    assert result.returncode == 0
    assert record(openjev) == lock
    assert (folder / "set.yaml").read_text() == SET
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".part") == []


# Plain ChatML: without the block for thoughts that the generated model's own template ends with.
OTHER_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def started_with(llama_server: Path, folder: Path, *options: str | Path) -> str:
    """A llama-server that is the given one, build.json and all, and always gets some more options."""
    folder.mkdir()
    program = folder / "llama-server"
    words = " ".join(f"'{option}'" for option in options)
    program.write_text(f"#!/bin/sh\nexec '{llama_server}' \"$@\" {words}\n")
    program.chmod(0o755)
    described = llama_server.parent / "build.json"
    if described.exists():
        shutil.copy2(described, folder / "build.json")
    else:  # a build that nothing is known of is told by its path
        (folder / "build.json").write_text(json.dumps({"kind": "stock", "key": "a" * 16}))
    return str(program)


def test_the_report_names_each_cause(
    openjev: Command, folder: Path, generated: Path, llama_server: Path, stock_server: Path
) -> None:
    """Everything is changed for real, nothing in the lock: the weights of another seed; the stock build, which
    lacks all patches but one; the same build and weights with another chat template, given to llama-server by a
    script in its place (openjev itself has no option for it); a setting; the text of a question."""
    same = {"OPENJEV_LLAMA_SERVER": started_with(llama_server, folder / "same")}
    recorded = openjev("record", "set.yaml", "--no-reversed", env=same)
    assert recorded.returncode == 0, recorded.stderr.decode()
    assert causes(openjev, env=same) == []

    other = generated / "other-seed.gguf"
    if not other.exists():
        script = ROOT / "scripts/generate_model.py"
        subprocess.run([sys.executable, script, other, "--seed", "7"], check=True, cwd=ROOT)
    assert causes(openjev, "--model", other, env=same) == ["model"]

    if stock_server != llama_server:
        assert causes(openjev, env={"OPENJEV_LLAMA_SERVER": str(stock_server)}) == ["patches"]

    (folder / "other.jinja").write_text(OTHER_TEMPLATE)
    option = ("--chat-template-file", folder / "other.jinja")
    templated = {"OPENJEV_LLAMA_SERVER": started_with(llama_server, folder / "templated", *option)}
    assert causes(openjev, env=templated) == ["template"]

    assert causes(openjev, env={**same, "OPENJEV_COMPACT_JSON": "false"}) == ["setting compact_json"]

    questions = folder / "questions.txt"
    questions.write_text(questions.read_text().replace("Refund?", "A refund?"))
    assert causes(openjev, env=same) == ["question refund"]


def test_updating_a_selection_changes_its_row_only(openjev: Command, folder: Path) -> None:
    record(openjev)
    before = (folder / "set.lock.json").read_text().splitlines()
    (folder / "one.txt").write_text("Something else entirely.")
    (folder / "two.txt").write_text("And this too.")
    check = openjev("check", "set.yaml", "--filter", "first", "--update")
    assert check.returncode in (0, 1)
    after = (folder / "set.lock.json").read_text().splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    assert changed[0].startswith('"first": ')
    assert "changed: state of first" in check.stdout.decode().splitlines()


def test_a_failure_is_in_the_exit_code_the_xml_and_the_annotations(openjev: Command, folder: Path) -> None:
    (folder / "set.yaml").write_text(SET.replace("{between: [0, 1]}", "{min: 1}"))
    result = openjev("check", "set.yaml", "--junit", "out.xml", env={"GITHUB_ACTIONS": "true"})
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 1
    assert lines[-1].startswith("::error file=set.yaml,line=6,title=second refund::P(yes) ")
    suite = ElementTree.parse(folder / "out.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "2", "0")


def test_the_profile_of_the_set_and_then_of_the_lock_is_asked_and_stands_in_the_lock(
    openjev: Command, folder: Path, tiny_model: Path
) -> None:
    """The user's own file names a model, which answers where nothing else is asked for."""
    weights = openjev.cwd / "cache" / "models" / "tiny" / tiny_model.name
    weights.parent.mkdir(parents=True)
    weights.symlink_to(tiny_model)

    def recorded(*arguments: str) -> tuple[str | None, list[str]]:
        result = openjev("record", "set.yaml", "--no-reversed", *arguments)
        assert result.returncode == 0, result.stderr.decode()
        lock = json.loads((folder / "set.lock.json").read_text())
        return lock["profile"], [producer["model_sha256"] for producer in lock["producers"].values()]

    sha256 = profiles.PROFILES["tiny"].weights.sha256
    profile, digests = recorded()
    assert profile is None
    assert digests != [sha256]
    assert recorded("-p", "tiny") == ("tiny", [sha256])
    assert causes(openjev) == []
    assert recorded("--filter", "first") == ("tiny", [sha256])
    (folder / "set.lock.json").unlink()
    (folder / "set.yaml").write_text(f"profile: tiny\n{SET}")
    assert recorded() == ("tiny", [sha256])
    assert causes(openjev) == []


def test_a_set_is_never_asked_of_a_better_profile_that_is_installed(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("refund: Refund?\n")
    (tmp_path / "one.txt").write_text("x")
    (tmp_path / "set.yaml").write_text(
        "questions: questions.txt\nprofile: balanced\ncases:\n  - state: one.txt\n"
    )
    wanted = profiles.PROFILES["fast"].weights
    fast = tmp_path / "home" / ".cache" / "openjev" / "models" / "fast" / wanted.name
    fast.parent.mkdir(parents=True)
    with fast.open("wb") as file:
        file.truncate(wanted.size_bytes)
    for command in ("record", "check"):
        result = offline(command, "set.yaml", env={"OPENJEV_LLAMA_SERVER": "/bin/true"})
        assert (result.returncode, result.stdout) == (3, b"")
        assert b"error: the model file of profile balanced is not there: " in result.stderr


@pytest.mark.parametrize("command", ["check", "calibrate"])
def test_a_format_that_a_report_lacks_is_refused_before_anything_is_read(
    command: str, offline: Command
) -> None:
    for name in ("tsv", "value"):
        result = offline(command, "gone", "-f", name)
        assert (result.stdout, result.returncode) == (b"", 2)
        assert result.stderr.decode().splitlines() == [
            f"error: --format {name}: a report is printed as table, json or jsonl",
            "next: leave --format out, or give one of these",
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("questions: questions.txt\ncases: []\n", "an empty set checks nothing"),
        ("questions: questions.txt\ncases:\n  - state: gone.txt\n", "gone.txt: no such file"),
        (SET.replace("{between: [0, 1]}", "{least: 0}"), "unknown expectation"),
        (SET.replace("id: second", "id: first"), "the case first is there twice"),
    ],
)
def test_a_set_that_cannot_be_checked_never_passes(
    text: str, message: str, openjev: Command, folder: Path
) -> None:
    (folder / "set.yaml").write_text(text)
    for command in ("check", "record"):
        result = openjev(command, "set.yaml")
        assert (result.stdout, result.returncode) == (b"", 2)
        assert message in result.stderr.decode()
    assert not (folder / "set.lock.json").exists()
