"""`openjev calibrate` and `--calibration` on the real engine."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from openjev_cli import calibration
from tests.conftest import CASES, ROOT, Command
from tests.integration.test_serve import BODY, serving

REFUND = {"type": "noul", "instructions": "Does the customer ask for a refund?"}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": None, "sales": None, "other": None},
}
ASK = ("ask", "--text", "Please refund me, order 3.", "-Q", f"refund: {REFUND['instructions']}")  # fmt: skip
N = 36


def state(i: int) -> str:
    return f"{'Please refund me' if i % 3 else 'Where are you'}, order {i}."


def states_file(openjev: Command) -> Path:
    path = openjev.cwd / "states.jsonl"
    path.write_text("".join(json.dumps({"s": state(i)}) + "\n" for i in range(N)))
    return path


# What does not change from test to test, asked once: labelled rows, and the calibration of the noul ones.
_KEPT: dict[str, bytes] = {}


def labelled(openjev: Command, *, questions: tuple[str, ...] = ("refund",)) -> Path:
    """Rows whose label is what the model itself says: it is right, and far too unsure of it."""
    asked = {"refund": REFUND, "team": TEAM}
    if "answers" not in _KEPT:
        (openjev.cwd / "asked.json").write_text(json.dumps(asked))
        result = openjev("ask", "--each", states_file(openjev), "--field", "s", "-q", "asked.json")
        assert result.returncode == 0, result.stderr.decode()
        _KEPT["answers"] = result.stdout
    rows = []
    for i, line in enumerate(_KEPT["answers"].splitlines()):
        answers = json.loads(line)["answers"]
        for question in questions:
            one = answers[question]
            label = one["noul"] >= 0.5 if question == "refund" else one["choice"]
            rows.append(
                {"id": f"{question}-{i}", "state": state(i), "question": asked[question], "label": label}
            )
    path = openjev.cwd / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_stored(openjev: Command) -> str:
    """Put the calibration of the labelled rows where it is stored; returns its name."""
    if "stored" not in _KEPT:
        calibrate(openjev, labelled(openjev))
        _KEPT["stored"] = stored(openjev).read_bytes()
        _KEPT["name"] = stored(openjev).name.encode()
    path = folder(openjev) / _KEPT["name"].decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_KEPT["stored"])
    return calibration.read(path).name


def folder(openjev: Command) -> Path:
    return openjev.cwd / "config" / "openjev" / "calibration"


def stored(openjev: Command) -> Path:
    """Return the one calibration that is stored."""
    (path,) = folder(openjev).glob("tiny-hybrid-*.json")
    return path


def calibrate(openjev: Command, *arguments: str | Path) -> dict[str, Any]:
    result = openjev("calibrate", *arguments, "-f", "json")
    assert result.returncode == 0, result.stderr.decode()
    wire: dict[str, Any] = json.loads(result.stdout)
    return wire


def not_applied(openjev: Command, what: str) -> str:
    return (
        f"note: the calibration {stored(openjev)} is not applied: it was made for another {what};"
        " make one with openjev calibrate"
    )


def ask(openjev: Command, *arguments: str | Path) -> tuple[dict[str, Any], list[str]]:
    result = openjev(*ASK, *arguments, "-f", "json")
    assert result.returncode == 0, result.stderr.decode()
    notices = [line for line in result.stderr.decode().splitlines() if "calibration" in line]
    return json.loads(result.stdout), notices


def test_what_is_fitted_is_stored_applied_named_and_can_be_left_out(openjev: Command) -> None:
    before, _ = ask(openjev)
    report = calibrate(openjev, labelled(openjev), "--plot", "plot.svg")
    held_out = report["types"]["noul"]["held_out"]
    assert report["types"]["noul"]["tried"][0]["kept"]
    assert report["types"]["noul"]["temperature"] < 0.5
    assert held_out["after"]["nll"] < held_out["before"]["nll"]
    assert held_out["after"]["ece"] < held_out["before"]["ece"]
    assert held_out["after"]["accuracy"] == held_out["before"]["accuracy"] == 1.0
    assert report["rows"] == {
        "fitted": sum(not calibration.is_held_out(f"refund-{i}") for i in range(N)),
        "held_out": sum(calibration.is_held_out(f"refund-{i}") for i in range(N)),
    }
    assert report["file"] == str(stored(openjev))
    assert ElementTree.parse(openjev.cwd / "plot.svg").getroot().tag.endswith("svg")

    after, notices = ask(openjev)
    assert "calibration" not in before
    assert list(after)[:2] == ["model", "calibration"]
    assert after["calibration"] == report["calibration"]
    assert notices == []
    p, q = before["answers"]["refund"]["noul"], after["answers"]["refund"]["noul"]
    assert (p >= 0.5) == (q >= 0.5)
    assert abs(q - 0.5) > abs(p - 0.5)
    assert ask(openjev, "--calibration", "off")[0]["answers"] == before["answers"]
    assert ask(openjev, "--calibration", stored(openjev))[0]["answers"] == after["answers"]


def test_a_type_that_was_not_calibrated_is_not_said_to_be(openjev: Command) -> None:
    with_stored(openjev)
    team = openjev("ask", "--text", "x", "-Q", "team: Which team? [a | b]", "-f", "json")
    assert "calibration" not in json.loads(team.stdout)


def test_explain_the_table_and_a_stream_say_which_one_was_used(openjev: Command) -> None:
    name = with_stored(openjev)
    shown = openjev(*ASK, "--explain", "-f", "table")
    assert f"calibration {name}" in shown.stderr.decode().splitlines()
    assert f"calibration {name}" in shown.stdout.decode().splitlines()[-1]
    each = openjev("ask", "--each", *ASK[3:], stdin="a\nb\n")
    assert [json.loads(line)["calibration"] for line in each.stdout.splitlines()] == [name, name]


def test_the_lock_of_an_answer_set_says_which_one_was_used(openjev: Command) -> None:
    (openjev.cwd / "questions.txt").write_text(f"refund: {REFUND['instructions']}\n")
    (openjev.cwd / "one.txt").write_text(state(1))
    (openjev.cwd / "set.yaml").write_text("questions: questions.txt\ncases:\n  - state: one.txt\n")
    name = with_stored(openjev)
    assert openjev("record", "set.yaml").returncode == 0
    (producer,) = json.loads((openjev.cwd / "set.lock.json").read_text())["producers"].values()
    assert producer["settings"]["calibration"] == name
    same = openjev("check", "set.yaml", "-f", "json")
    assert (same.returncode, json.loads(same.stdout)["changes"]) == (0, [])
    off = openjev("check", "set.yaml", "--calibration", "off", "-f", "json")
    assert json.loads(off.stdout)["changes"] == [f"setting calibration: {name} -> None"]


def test_a_reversed_question_of_an_answer_set_is_calibrated_as_the_question_that_it_is(
    openjev: Command,
) -> None:
    """A prior that is stronger than the model decides in both orders, so that nothing turns."""
    text = REFUND["instructions"]
    (openjev.cwd / "questions.txt").write_text(f"refund: {text}\n")
    (openjev.cwd / "one.txt").write_text(state(1))
    (openjev.cwd / "set.yaml").write_text("questions: questions.txt\ncases:\n  - state: one.txt\n")
    turned = (
        openjev("ask", "one.txt", "-Q", f"refund: {text} [no | yes]", "-f", "value").stdout.decode().strip()
    )
    with_stored(openjev)
    raw = json.loads(stored(openjev).read_text())
    prior = [40.0, -40.0] if turned == "yes" else [-40.0, 40.0]
    raw["types"]["noul"] = {"temperature": 1.0, "prior": prior}
    stored(openjev).write_text(json.dumps(raw))
    assert openjev("record", "set.yaml").returncode == 0
    (case,) = json.loads((openjev.cwd / "set.lock.json").read_text())["cases"].values()
    answer = case["answers"]["refund"]
    assert (answer["answer"] != turned, answer["flips"]) == (True, False)


def test_one_made_for_another_model_is_not_applied_and_a_notice_says_so(
    openjev: Command, generated: Path
) -> None:
    with_stored(openjev)
    other = generated / "other-seed.gguf"
    if not other.exists():
        script = ROOT / "scripts/generate_model.py"
        subprocess.run([sys.executable, script, other, "--seed", "7"], check=True, cwd=ROOT)
    plain, _ = ask(openjev, "--model", other)
    given, notices = ask(openjev, "--model", other, "--calibration", stored(openjev))
    assert given["answers"] == plain["answers"]
    assert "calibration" not in given
    assert notices == [not_applied(openjev, "model")]


@pytest.mark.parametrize("key", ["model_sha256", "adapter_sha256", "readout", "wording"])
def test_a_stored_one_made_for_something_else_is_not_applied(openjev: Command, key: str) -> None:
    with_stored(openjev)
    raw = json.loads(stored(openjev).read_text())
    assert raw["made_for"]["readout"] == "letters"
    assert len(raw["made_for"]["model_sha256"]) == 64
    raw["made_for"][key] = "another"
    stored(openjev).write_text(json.dumps(raw))
    wire, notices = ask(openjev)
    assert "calibration" not in wire
    assert notices == [not_applied(openjev, key.removesuffix("_sha256"))]


def test_the_config_can_turn_it_off_or_name_another(openjev: Command) -> None:
    name = with_stored(openjev)
    (openjev.cwd / "mine.json").write_bytes(stored(openjev).read_bytes())
    assert openjev("config", "set", "calibration", "off").returncode == 0
    assert "calibration" not in ask(openjev)[0]
    assert openjev("config", "set", "calibration", str(openjev.cwd / "mine.json")).returncode == 0
    assert ask(openjev)[0]["calibration"].startswith("mine@")
    assert ask(openjev, "--calibration", stored(openjev))[0]["calibration"] == name


def test_a_second_run_keeps_the_first_as_bak_and_changes_nothing_else(openjev: Command) -> None:
    first = with_stored(openjev)
    again = calibrate(openjev, labelled(openjev))
    # Measured without the calibration that was already there.
    assert again["calibration"] == first
    name = stored(openjev).name
    assert sorted(path.name for path in folder(openjev).iterdir()) == [name, f"{name}.bak"]


def test_a_service_goes_on_with_the_one_it_began_with(openjev: Command, tiny_hybrid: Path) -> None:
    name = with_stored(openjev)
    (openjev.cwd / "serve").mkdir()
    with serving(openjev.environment, openjev.cwd / "serve", "--port", "0") as service:
        before = service.ask(BODY).json()
        assert before["x_calibration"] == name
        stored(openjev).write_text("{")
        for running in json.loads(openjev("server", "status", "-f", "json").stdout):
            if running["model"] == str(tiny_hybrid):
                assert openjev("server", "stop", running["key"]).returncode == 0
        after = service.ask(BODY)
        assert (after.status_code, after.json()["x_calibration"]) == (200, name), after.text
        assert after.json()["answers"]["q"]["noul"] == pytest.approx(before["answers"]["q"]["noul"], abs=1e-5)
        assert service.end() == 0


def test_biases_are_fitted_for_the_types_they_belong_to(openjev: Command) -> None:
    rows = labelled(openjev, questions=("refund", "team"))
    report = calibrate(openjev, rows, "--label-prior", "--position-bias")
    tried = {kind: [one["what"] for one in held["tried"]] for kind, held in report["types"].items()}
    assert tried == {"noul": ["temperature", "label prior"], "choice": ["temperature", "position bias"]}


def test_labels_that_do_not_fit_the_model_store_nothing(openjev: Command) -> None:
    """Noise: what the fitted rows teach must not hold for the held-out ones, which say the opposite."""
    rows = []
    for line in labelled(openjev).read_text().splitlines():
        row = json.loads(line)
        row["label"] = row["label"] != calibration.is_held_out(row["id"])
        rows.append(row)
    path = openjev.cwd / "noise.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = calibrate(openjev, path)
    assert (report["calibration"], report["file"]) == (None, None)
    assert not report["types"]["noul"]["tried"][0]["kept"]
    assert not folder(openjev).exists()
    assert "calibration" not in ask(openjev)[0]


def test_the_file_can_be_another_one(openjev: Command) -> None:
    report = calibrate(openjev, labelled(openjev), "--output", "mine.json")
    assert report["file"] == "mine.json"
    assert not folder(openjev).exists()
    assert "calibration" not in ask(openjev)[0]
    assert ask(openjev, "--calibration", "mine.json")[0]["calibration"] == report["calibration"]


def test_a_calibration_of_letters_is_not_applied_to_words(openjev: Command) -> None:
    with_stored(openjev)
    wire, notices = ask(openjev, "--readout", "words")
    assert "calibration" not in wire
    assert notices == [not_applied(openjev, "readout and wording")]


def test_words_can_be_calibrated_and_read_in_orders(openjev: Command) -> None:
    words = ("--readout", "words")
    of_letters = with_stored(openjev)
    report = calibrate(openjev, labelled(openjev), *words)
    assert ask(openjev)[0]["calibration"] == of_letters
    assert report["types"]["noul"]["tried"]
    if report["calibration"] is not None:
        wire, notices = ask(openjev, *words, "--orders", "2")
        assert (wire["calibration"], notices) == (report["calibration"], [])
        assert wire["answers"]["refund"]["orders"]["n"] == 2


def test_packed_rows_and_the_table(openjev: Command) -> None:
    rows = labelled(openjev)
    (openjev.cwd / "packed.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes()))
    result = openjev("calibrate", "packed.jsonl.gz", "-f", "table")
    text = result.stdout.decode()
    assert result.returncode == 0, result.stderr.decode()
    for words in ("accuracy", "ECE, 15 bins", "NLL", "Brier", "automate at 5% error", "temperature: NLL"):
        assert words in text
    assert text.splitlines()[-1].startswith("stored as tiny-hybrid-")


def test_a_row_that_cannot_be_asked_is_counted_and_the_others_are_used(openjev: Command) -> None:
    path = labelled(openjev)
    url = "data:image/png;base64," + base64.b64encode((CASES / "C01_plain.png").read_bytes()).decode()
    seen = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    for id, bad in (("long", "word " * 60_000), ("seen", seen)):
        row = {"id": id, "state": bad, "question": REFUND, "label": True}
        path.write_text(path.read_text() + json.dumps(row) + "\n")
    result = openjev("calibrate", path, "-f", "json")
    assert result.returncode == 6, result.stderr.decode()
    told = result.stderr.decode().splitlines()[-1]
    assert told == f"note: 2 of {N + 2} rows could not be asked: lines {N + 1}, {N + 2}"
    assert json.loads(result.stdout)["calibration"] is not None


def test_malformed_rows_are_all_named_before_anything_is_started(offline: Command) -> None:
    good = {"id": "a", "state": "x", "question": REFUND, "label": True}
    rows = [good, {**good, "label": 1}, "{", {**good, "question": TEAM}]
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows)
    (offline.cwd / "rows.jsonl").write_text(text)
    result = offline("calibrate", "rows.jsonl")
    assert (result.stdout, result.returncode) == (b"", 2)
    lines = result.stderr.decode().splitlines()
    assert [line.split(": ")[1] for line in lines[:-1]] == ["rows.jsonl:2", "rows.jsonl:3:1", "rows.jsonl:4"]
    assert lines[-1].startswith("next: ")


def test_a_calibration_that_is_not_there_is_refused_before_a_server_is_started(offline: Command) -> None:
    (offline.cwd / "m.gguf").write_bytes(b"GGUF")
    result = offline(*ASK, "--calibration", "gone.json", env={"OPENJEV_LLAMA_SERVER": "/bin/true"})
    assert (result.stdout, result.returncode) == (b"", 2)
    assert result.stderr.decode().startswith(f"error: {offline.cwd / 'gone.json'}: no such file\n")


def test_a_project_file_cannot_name_a_calibration(offline: Command) -> None:
    (offline.cwd / ".openjev.toml").write_text('calibration = "evil.json"\n')
    result = offline(*ASK)
    assert result.returncode == 2
    assert "calibration may not be set in a project file" in result.stderr.decode()


def test_a_server_of_somebody_else_cannot_be_calibrated(offline: Command) -> None:
    (offline.cwd / "rows.jsonl").write_text(
        json.dumps({"id": "a", "state": "x", "question": REFUND, "label": True}) + "\n"
    )
    result = offline("calibrate", "rows.jsonl", "--connect", "http://127.0.0.1:9")
    assert result.returncode == 2
    assert "--connect does not say which one answers" in result.stderr.decode()


def test_the_example_rows_can_be_used(openjev: Command) -> None:
    report = calibrate(openjev, ROOT / "examples" / "labelled.jsonl", "--label-prior", "--position-bias")
    assert set(report["types"]) == {"noul", "choice", "score"}
    assert [held["not_tried"] for held in report["types"].values()] == [None, None, None]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_started(offline: Command) -> None:
    good = {"id": "a", "state": "x", "question": REFUND, "label": True}
    (offline.cwd / "rows.jsonl").write_text(json.dumps(good) + "\n")
    for option in ("--output", "--plot"):
        result = offline("calibrate", "rows.jsonl", option, "rows.jsonl/x")
        assert (result.stdout, result.returncode) == (b"", 2)
        assert f"{option} rows.jsonl/x: no file can be written there" in result.stderr.decode()


def test_a_model_file_whose_name_is_no_utf_8_can_be_calibrated(openjev: Command, generated: Path) -> None:
    rows = labelled(openjev)
    model = openjev.cwd / os.fsdecode(b"mod\xffel.gguf")
    model.symlink_to(generated / "tiny-hybrid.gguf")
    report = calibrate(openjev, rows, "--model", model)
    found = calibration.read(Path(report["file"]))
    assert found.made_for.model == report["model"]
    assert ask(openjev, "--model", model)[0]["calibration"] == report["calibration"]
