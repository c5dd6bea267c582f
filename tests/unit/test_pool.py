"""The pool: order, concurrency, bounds, and exceptions at their place."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from openjev_cli.pool import Pool


def test_results_come_in_the_order_of_the_items() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(10)
        if item == 1:
            second_is_done.set()
        return item * item

    assert list(Pool(range(100), work, workers=4)) == [n * n for n in range(100)]


def test_unordered_results_come_as_they_are_ready() -> None:
    release = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert release.wait(10)
        return item

    results = iter(Pool(range(3), work, workers=2, is_ordered=False))
    first, second = next(results), next(results)
    release.set()
    assert (first, second, next(results)) == (1, 2, 0)


def test_all_workers_work_at_once() -> None:
    together = threading.Barrier(5, timeout=10)

    def work(item: int) -> int:
        together.wait()
        return item

    assert list(Pool(range(20), work, workers=5)) == list(range(20))


def test_a_result_comes_before_the_next_item_is_there() -> None:
    may_go_on = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert may_go_on.wait(10)
        yield 1

    results = iter(Pool(items(), lambda item: item, workers=3))
    assert next(results) == 0
    may_go_on.set()
    assert list(results) == [1]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_endless_source_is_read_a_bounded_way_ahead(is_ordered: bool) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            yield taken
            taken += 1

    results = iter(Pool(items(), lambda item: item, workers=2, is_ordered=is_ordered))
    for _ in range(100):
        next(results)
    assert taken <= 100 + 4 * 2
    results.close()  # type: ignore[attr-defined]


def test_an_exception_of_the_work_comes_at_its_place() -> None:
    def work(item: int) -> int:
        if item == 5:
            raise KeyError(item)
        return item

    results = iter(Pool(range(50), work, workers=4))
    assert list(itertools.islice(results, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(results)


def test_an_exception_of_the_source_comes_after_its_items() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    results = iter(Pool(items(), lambda item: item, workers=2))
    assert list(itertools.islice(results, 3)) == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_leaving_the_loop_ends_the_threads() -> None:
    before = threading.active_count()
    for result in Pool(itertools.count(), lambda item: item, workers=3):
        if result == 10:
            break
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(10)
    assert threading.active_count() <= before
