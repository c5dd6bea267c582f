"""scripts/latency.py on the tiny hybrid, one trial: what was read is counted, and no time is judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

CASES = ("ticket_4q", "page_12q_spaced", "repeat", "rotation_4q", "page_edit", "each_64", "where")
TOLERANCE = 1e-5


def command(llama_server: Path, stock_server: Path, *options: str | Path) -> list[str]:
    script = ROOT / "scripts" / "latency.py"
    words = [sys.executable, script, "--shape", "tiny", "--trials", "1", "--no-images"]
    words += ["--patched", llama_server, "--stock", stock_server, *options]
    return [str(word) for word in words]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose cache folder holds the generated models."""
    return {**os.environ, "OPENJEV_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def receipt(
    llama_server: Path, stock_server: Path, cache: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("receipt") / "tiny.json"
    cases = [word for case in CASES for word in ("--case", case)]
    words = command(llama_server, stock_server, "--output", path, *cases)
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False, env=cache)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def rows(receipt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in receipt["rows"]}


def whole(row: dict[str, Any]) -> int:
    """All prompts of a row in full."""
    full: int = row["full"]
    return full


def test_the_state_is_read_once_for_four_questions(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["ticket_4q"]
    once = row["prefix"] + sum(row["suffixes"])
    priming = 4
    assert row["tokens_read"]["before"] == whole(row) == 4 * row["prefix"] + sum(row["suffixes"])
    assert row["tokens_read"]["after"] == once
    assert row["tokens_read"]["primed-stock"] == once + priming
    # Where texts meet the native prompt has a few tokens less: it is tokenized as one text.
    assert once - 2 * len(row["suffixes"]) <= row["tokens_read"]["native"] <= once
    assert row["ideal"] == pytest.approx(once / whole(row))


def test_a_repeated_state_costs_only_its_question(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["repeat_cold"]["tokens_read"]["after"] == whole(rows["repeat_cold"])
    for label in ("repeat_new", "repeat_again"):
        assert rows[label]["tokens_read"]["after"] <= sum(rows[label]["suffixes"])
        assert rows[label]["tokens_read"]["before"] == whole(rows[label])


def test_states_in_turn_are_read_once(rows: dict[str, dict[str, Any]]) -> None:
    later = rows["rotation_4q_later"]
    assert len(later["suffixes"]) == 16
    assert later["tokens_read"]["after"] == sum(later["suffixes"])
    assert rows["rotation_4q_first"]["tokens_read"]["after"] == rows["rotation_4q_first"]["least_read"]


def test_an_edited_page_resumes_from_a_grid_point(rows: dict[str, dict[str, Any]]) -> None:
    for label in ("page_edit_filled", "page_edit_no_history"):
        row = rows[label]
        assert row["least_read"] < whole(row) - 512
        assert row["tokens_read"]["after"] <= row["least_read"]


def test_the_page_is_as_long_as_it_should_be(rows: dict[str, dict[str, Any]]) -> None:
    assert 2000 <= rows["page_edit_cold"]["prefix"] <= 2600
    assert rows["page_12q_spaced"]["prefix"] > 1.2 * rows["page_edit_cold"]["prefix"]


def test_every_pair_of_answers_is_the_same(rows: dict[str, dict[str, Any]]) -> None:
    compared = 0
    for row in rows.values():
        for endpoint, pairs in row.get("pairs", {}).items():
            assert (row["label"], endpoint, pairs["flipped"]) == (row["label"], endpoint, 0)
            assert pairs["largest_difference"] <= TOLERANCE
            compared += pairs["questions"]
    # Of each endpoint of ours: ticket 4, repeat 3, rotation 2 x 16, page 3; the stream 64.
    assert compared == 2 * (4 + 3 + 32 + 3) + 64


def test_the_receipt_names_no_folder_of_the_machine(receipt: dict[str, Any]) -> None:
    text = json.dumps(receipt)
    assert str(Path.home()) not in text
    assert "/tmp/" not in text
    assert receipt["run"]["cases_sha256"]["page.json"]
    assert receipt["cases"]["where"]["requests"]["page again"]["tokens_read"] == sum(
        receipt["cases"]["page_12q_spaced"]["counts"]["page_12q_spaced"]["suffixes"]
    )


def test_a_finished_receipt_is_resumed_without_measuring_again(
    llama_server: Path, stock_server: Path, cache: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    options = ("--case", "ticket_4q", "--endpoint", "after", "--output", path)

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        words = command(llama_server, stock_server, *options, *more)
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=cache)

    assert run().returncode == 0
    first = json.loads(path.read_bytes())["cases"]
    assert run("--resume").returncode == 0
    assert json.loads(path.read_bytes())["cases"] == first
    refused = run("--resume", "--flush")
    assert refused.returncode == 2
    assert refused.stderr.strip() == f"--resume: {path} was made with other flush"


def test_its_servers_end_with_it(llama_server: Path, stock_server: Path, cache: dict[str, str]) -> None:
    words = command(llama_server, stock_server, "--case", "page_12q", "--endpoint", "after")
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=cache)
    try:
        assert run.stderr is not None
        while "page_12q" not in (line := run.stderr.readline()):
            assert line, "it ended before it began"
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert children
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 128 + signal.SIGTERM
        deadline_s = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        run.kill()
        run.communicate()
