"""Receipts drawn into pages: what stands there is what the receipt says, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import latency_cases
import render_performance as render

ROW: dict[str, Any] = {
    "label": "ticket_4q",
    "goal": "ideal",
    "median_ms": {"before": 1000.0, "primed-stock": 700.5, "after": 401.25, "native": 450.0},
    "tokens_read": {"before": 1000, "after": 400},
    "ratio": 0.40125,
    "ideal": 0.38,
    "limit": 0.418,
    "is_met": True,
    "to_native": 0.89,
    "native_is_met": True,
    "pairs": {"after": {"questions": 28, "flipped": 0, "largest_difference": 2.5e-7, "other_prompt": 0}},
}
OTHER: dict[str, Any] = {
    "label": "prepare_2048x1536",
    "goal": "prepare",
    "median_ms": {"after": 20.0, "decode + full resize": 30.0},
    "ratio": 0.667,
    "ideal": None,
    "limit": 0.5,
    "is_met": False,
}
RECEIPT: dict[str, Any] = {
    "began": "2026-01-02T03:04:05+00:00",
    "minutes": 12.5,
    "machine": {"cpu": "Some CPU", "cores": 2, "features": ["amx_int8"]},
    "run": {"trials": 7, "model": {"name": "0.8B-Q8_0-plain-0123.gguf"}},
    "cases": {
        "where": {
            "kind": "where",
            "round_trip_ms": 0.25,
            "llama_bench": [{"tokens": 256, "tokens_per_s": 200.0}, {"tokens": 2560, "tokens_per_s": 250.0}],
            "requests": {
                "ticket cold": {
                    "tokens_read": 400, "python": 0.5, "tokenize": 1.0, "queue": 0.1, "encode": 0.0,
                    "prefix": 1000.0, "suffixes": 900.0, "round_trip": 1903.0,
                }
            },
        }
    },
    "rows": [ROW, OTHER],
}  # fmt: skip
PAGE = f"# Top\n\n{render.BEGIN}\nwhat was here\n{render.END}\n\nbottom\n"


def test_a_page_holds_the_rows_of_its_receipts_between_its_marks() -> None:
    text = render.page(PAGE, {"some": RECEIPT}, render.WORDS["en"], charts=["some"])
    assert text.startswith(f"# Top\n\n{render.BEGIN}\n### [some](performance/some.json)\n")
    assert text.endswith(f"{render.END}\n\nbottom\n")
    assert "what was here" not in text
    assert "![some](performance/some.svg)" in text
    assert (
        "| ticket, 4 questions | 1000.0 | 700.5 | 401.2 | 450.0 | 400 | 0.401 | 0.380 | ratio <= 0.418 | yes |"
        in text.splitlines()
    )
    assert (
        "| preparing a 2048x1536 JPEG | 30.0 | - | 20.0 | - | - | 0.667 | - | ratio <= 0.50 | **no** |"
        in text.splitlines()
    )
    assert "- `after` 28, 0 decisions differ, 2.5e-07" in text
    assert "- preparing a 2048x1536 JPEG: the goal" in text.splitlines()
    # 1903 ms less what the engine says; 400 tokens at the rate of the nearest length
    assert "| ticket cold | 400 | 0.50 | 1.00 | 0.10 | 0.00 | 1000.00 | 900.00 | 1.90 | 2000.0 |" in text


def test_both_languages_say_the_same_figures() -> None:
    pages = [render.page(PAGE, {"some": RECEIPT}, words, charts=[]) for words in render.WORDS.values()]
    tables = [[line for line in text.splitlines() if line.startswith("|")] for text in pages]
    figures = [
        [
            cell.strip()
            for line in lines
            for cell in line.split("|")
            if cell.strip().replace(".", "").isdigit()
        ]
        for lines in tables
    ]
    assert len(figures[0]) == 19
    assert figures[0] == figures[1]
    assert "工单，4 个问题" in pages[1]


def test_rendering_twice_changes_nothing() -> None:
    once = render.page(PAGE, {"some": RECEIPT}, render.WORDS["en"], charts=[])
    assert render.page(once, {"some": RECEIPT}, render.WORDS["en"], charts=[]) == once


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks its marks"):
        render.page("# Top\n", {}, render.WORDS["en"], charts=[])


def test_the_chart_has_a_bar_for_each_endpoint_and_a_line_for_the_ideal() -> None:
    drawn = ElementTree.fromstring(render.chart(RECEIPT))
    space = "{http://www.w3.org/2000/svg}"
    legend, bars = 4, 4
    assert len(drawn.findall(f"{space}rect")) == legend + bars
    assert len(drawn.findall(f"{space}path")) == 1
    values = [text.text for text in drawn.findall(f"{space}text") if text.get("class") == "v"]
    assert values == ["time, before = 1; dashed: ideal", "1.00", "0.70", "0.40", "0.45"]


def test_every_row_that_can_be_measured_has_a_name() -> None:
    labels = {label for case in latency_cases.CASES for label in case.goals}
    assert labels <= set(render.ROWS)


def test_the_pages_are_what_the_receipts_say() -> None:
    done = subprocess.run(
        [sys.executable, render.__file__, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
