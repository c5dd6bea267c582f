from __future__ import annotations

import time

import pytest

from openjev_cli.timing import Stages


def test_stages_add_up_to_the_elapsed_time() -> None:
    began_at_s = time.perf_counter()
    stages = Stages(began_at_s)
    stages.enter("prepare")
    with stages.during("start"):
        time.perf_counter()
    timing = stages.finish(queue_ms=0.0, inference_ms=0.0)
    assert 0.0 < timing.processing_ms <= (time.perf_counter() - began_at_s) * 1000.0
    parts = (timing.parse_ms, timing.prepare_ms, timing.queue_ms, timing.inference_ms, timing.start_ms or 0.0)
    assert timing.processing_ms == pytest.approx(sum(parts), abs=1e-9)


def test_the_engines_own_times_are_taken_out_of_prepare() -> None:
    stages = Stages(time.perf_counter() - 1.0)  # a second in parse
    stages.enter("prepare")
    stages._entered_at_s -= 0.5  # half a second in prepare
    timing = stages.finish(queue_ms=100.0, inference_ms=300.0)
    assert timing.parse_ms == pytest.approx(1000.0, abs=50.0)
    assert timing.prepare_ms == pytest.approx(100.0, abs=50.0)
    assert (timing.queue_ms, timing.inference_ms) == (100.0, 300.0)


def test_a_wait_in_our_own_queue_is_added_to_the_engines() -> None:
    stages = Stages(time.perf_counter(), current="prepare")
    stages.enter("queue")
    stages._entered_at_s -= 0.2  # a fifth of a second in the queue
    stages.enter("prepare")
    stages._entered_at_s -= 0.5
    timing = stages.finish(queue_ms=100.0, inference_ms=300.0)
    assert timing.queue_ms == pytest.approx(300.0, abs=10.0)
    assert timing.processing_ms == pytest.approx(700.0, abs=10.0)


def test_no_stage_is_negative_when_the_engine_rounds_up() -> None:
    stages = Stages(time.perf_counter(), current="prepare")
    timing = stages.finish(queue_ms=0.0, inference_ms=50.0)
    assert timing.prepare_ms == 0.0
    assert 0.0 <= timing.inference_ms < 50.0


def test_a_start_that_was_no_wait_is_merged_and_not_shown() -> None:
    stages = Stages(time.perf_counter())
    stages.enter("start")
    stages.enter("prepare")
    stages.merge("start", into="prepare")
    assert stages.finish(queue_ms=0.0, inference_ms=0.0).start_ms is None
