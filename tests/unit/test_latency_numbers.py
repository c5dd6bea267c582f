"""The arithmetic of the speed measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import latency_machine as machine
import latency_numbers as numbers


@pytest.mark.parametrize(
    ("prefix", "suffixes", "expected"),
    [
        (200, [50], 1.0),
        (200, [50, 50, 50, 50], 400 / 1000),
        (2400, [60] * 12, (2400 + 720) / (12 * 2460)),
        (0, [10, 20], 1.0),
    ],
)
def test_ideal_is_the_state_once_over_the_state_every_time(
    prefix: int, suffixes: list[int], expected: float
) -> None:
    assert numbers.ideal_ratio(prefix, suffixes) == pytest.approx(expected, abs=1e-12)


def test_ideal_counts_a_picture_as_its_measured_time() -> None:
    # 300 ms for the picture and 100 tokens at 2 ms are 500 ms a reading; a question adds 100 ms.
    ratio = numbers.ideal_ratio(100, [50, 50], image_ms=300.0, token_ms=2.0)
    assert ratio == pytest.approx((500 + 200) / (1000 + 200))


def test_aa_difference_has_no_sign() -> None:
    assert numbers.aa_difference([100, 102, 98], [104, 104, 104]) == pytest.approx(1 - 100 / 104)
    assert numbers.aa_difference([104], [100]) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("common", "expected"),
    [(1300, 60), (1299, 1300 - 1024 + 60), (1024, 1300 - 1024 + 60), (1023, 1300 - 512 + 60), (3, 1360)],
)
def test_least_read_resumes_at_the_end_or_at_a_grid_point(common: int, expected: int) -> None:
    assert numbers.least_read(1300, [20, 40], common) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([5], [6], 0), ([1, 2], [1, 2], 2)],
)
def test_common_prefix(first: list[int], second: list[int], expected: int) -> None:
    assert numbers.common_prefix(first, second) == expected


def test_pairs_count_flips_and_the_largest_difference_and_leave_other_prompts_out() -> None:
    pairs = numbers.Pairs()
    pairs.add(
        {"tokens": 10, "answers": [[0.6, 0.4], [0.2, 0.3, 0.5]]},
        {"tokens": 10, "answers": [[0.4, 0.6], [0.2, 0.25, 0.55]]},
    )
    pairs.add({"tokens": 10, "answers": [[1.0, 0.0]]}, {"tokens": 11, "answers": [[0.0, 1.0]]})
    assert pairs.to_json() == {
        "questions": 2,
        "flipped": 1,
        "largest_difference": pytest.approx(0.2),
        "other_prompt": 1,
    }


def sample(wall_ms: float, tokens_read: int) -> dict[str, Any]:
    return {"wall_ms": wall_ms, "engine_ms": wall_ms - 1, "tokens_read": tokens_read, "tokens": tokens_read}


COUNTS = {"prefix": 200, "suffixes": [50, 50, 50, 50], "requests": 1, "full": 1000, "least_read": 400}


def steps(goal: str, **endpoints: tuple[list[float], int]) -> dict[str, Any]:
    return {
        "kind": "steps",
        "goals": {"row": goal},
        "counts": {"row": dict(COUNTS)},
        "samples": {
            name.replace("_", "-"): {"row": [sample(ms, read) for ms in walls]}
            for name, (walls, read) in endpoints.items()
        },
        "pairs": {},
    }


AA = {"kind": "aa", "wall_ms": [[100.0], [98.0]], "tokens": 250, "aa_difference": 0.02}


def test_rows_hold_ratio_ideal_and_verdict() -> None:
    case = steps("ideal", before=([1000.0, 990.0, 5000.0], 1000), after=([420.0, 431.0, 100.0], 400))
    (row,) = numbers.rows({"cases": {"aa_case": AA, "case": case}})
    assert row == {
        "case": "case",
        "label": "row",
        "goal": "ideal",
        "median_ms": {"before": 1000.0, "after": 420.0},
        "tokens_read": {"before": 1000, "after": 400},
        **COUNTS,
        "ideal": pytest.approx(0.4),
        "pairs": {},
        "ratio": 0.42,
        "to_native": None,
        "aa_difference": 0.02,
        "limit": pytest.approx(0.44),
        "is_met": True,
        "native_is_met": None,
    }


def test_the_ideal_of_a_picture_needs_its_single_question() -> None:
    four = {**steps("ideal", before=([4000.0], 1000)), "encode_ms": 500.0, "picture": "photo"}
    one = {
        **steps("one", before=([1000.0], 250)),
        "goals": {"photo_1q": "one"},
        "counts": {"photo_1q": {**COUNTS, "suffixes": [50], "full": 250, "least_read": 250}},
        "encode_ms": 500.0,
        "picture": "photo",
    }
    one["samples"] = {"before": {"photo_1q": [sample(1000.0, 250)]}}
    found = numbers.rows({"cases": {"photo_1q": one, "photo_4q": four}})
    # 2 ms a token: 500 + 400 + 400 of 4 x 1000
    assert [row["ideal"] for row in found] == [pytest.approx(1.0), pytest.approx(1300 / 4000)]
    assert numbers.rows({"cases": {"photo_4q": four}})[0]["ideal"] is None


@pytest.mark.parametrize(("after_ms", "is_met"), [(1039.0, True), (1041.0, False)])
def test_one_question_may_differ_by_twice_the_aa_difference(after_ms: float, is_met: bool) -> None:
    case = steps("one", before=([1000.0], 1000), after=([after_ms], 1000))
    (row,) = numbers.rows({"cases": {"aa_case": AA, "case": case}})
    assert (row["limit"], row["is_met"]) == (pytest.approx(1.04), is_met)


def test_one_question_has_no_verdict_without_aa() -> None:
    case = steps("one", before=([1000.0], 1000), after=([1000.0], 1000))
    (row,) = numbers.rows({"cases": {"case": case}})
    assert (row["limit"], row["is_met"]) == (None, None)


@pytest.mark.parametrize(("after_ms", "is_met"), [(134.0, True), (136.0, False)])
def test_a_repeated_state_is_held_against_its_own_cold_time(after_ms: float, is_met: bool) -> None:
    count = {"prefix": 900, "suffixes": [100], "requests": 1, "full": 1000, "least_read": 100}
    case = {
        "kind": "steps",
        "goals": {"repeat_new": "repeat"},
        "counts": {"repeat_new": count},
        "samples": {"after": {"repeat_cold": [sample(1000.0, 1000)], "repeat_new": [sample(after_ms, 100)]}},
        "pairs": {},
    }
    (row,) = numbers.rows({"cases": {"repeat": case}})
    # 1.2 x 100 / 1000 of 1000 ms, plus 15 ms
    assert (row["limit"], row["is_met"]) == (pytest.approx(135.0), is_met)


@pytest.mark.parametrize(("read", "is_met"), [(400, True), (401, False)])
def test_a_counted_row_is_held_against_tokens(read: int, is_met: bool) -> None:
    (row,) = numbers.rows({"cases": {"case": steps("counted", after=([1.0], read))}})
    assert (row["limit"], row["is_met"]) == (400, is_met)


def test_failures_name_missed_goals_slower_than_native_and_other_answers() -> None:
    pairs = {"questions": 4, "flipped": 1, "largest_difference": 0.1, "other_prompt": 0}
    row = {
        "label": "row",
        "goal": "ideal",
        "is_met": False,
        "native_is_met": False,
        "to_native": 1.25,
        "pairs": {"primed-stock": pairs},
    }
    fine = {**row, "is_met": True, "native_is_met": None, "pairs": {}}
    assert [str(one) for one in numbers.failures([row, fine])] == [
        "row: goal missed: <= 1.10 x ideal",
        "row: slower than native (1.250)",
        "row: 1 of 4 decisions of primed-stock differ",
        "row: probabilities of primed-stock differ by 1.0e-01",
    ]


def test_foreign_load_is_what_others_used() -> None:
    before = machine.Ticks(at_s=0.0, every=1000, own=100)
    assert machine.foreign_cores(before, machine.Ticks(2.0, 1400, 500)) == 0.0
    assert machine.foreign_cores(before, machine.Ticks(2.0, 1450, 450)) == pytest.approx(0.5)
