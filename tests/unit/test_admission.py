"""The door of a service: order, limits, and that every place comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from openjev_cli.admission import Full, Gate


class Work:
    """Blocking work that ends when the test says so."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self._log.append(self._name)
        self.has_begun.set()
        assert self.may_end.wait(10.0)
        return self._name


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not is_so():
            await asyncio.sleep(0.001)


def test_work_runs_in_the_order_of_arrival_and_no_more_than_allowed_at_once() -> None:
    async def scene() -> None:
        gate = Gate(workers=2, queue=3)
        log: list[str] = []
        works = [Work(name, log) for name in "abcde"]
        tasks = []
        for work in works:
            tasks.append(asyncio.create_task(gate.run(work)))
            await asyncio.sleep(0)
        await until(lambda: len(log) == 2)
        assert (gate.at_work, gate.waiting) == (2, 3)
        for i, work in enumerate(works):
            work.may_end.set()
            await until(lambda i=i: len(log) == min(5, i + 3))  # type: ignore[misc]
        assert await asyncio.gather(*tasks) == list("abcde")
        assert log == list("abcde")
        await until(lambda: gate.at_work == 0)
        gate.close()

    asyncio.run(scene())


def test_whoever_finds_the_line_full_is_turned_away_at_once() -> None:
    async def scene() -> None:
        gate = Gate(workers=1, queue=1)
        works = [Work(name, []) for name in "ab"]
        tasks = [asyncio.create_task(gate.run(work)) for work in works]
        await until(lambda: gate.waiting == 1)
        with pytest.raises(Full) as raised:
            await gate.run(lambda: "never")
        assert raised.value.retry_after_s == 1
        for work in works:
            work.may_end.set()
        assert await asyncio.gather(*tasks) == ["a", "b"]
        assert await gate.run(lambda: "again") == "again"
        gate.close()

    asyncio.run(scene())


def test_a_caller_that_leaves_the_line_gives_its_place_to_the_next() -> None:
    async def scene() -> None:
        gate = Gate(workers=1, queue=1)
        log: list[str] = []
        first, second, third = (Work(name, log) for name in "abc")
        at_work = asyncio.create_task(gate.run(first))
        await until(first.has_begun.is_set)
        leaver = asyncio.create_task(gate.run(second))
        await until(lambda: gate.waiting == 1)
        leaver.cancel()
        await until(lambda: gate.waiting == 0)
        waits = asyncio.create_task(gate.run(third))
        first.may_end.set()
        third.may_end.set()
        assert await asyncio.gather(at_work, waits) == ["a", "c"]
        assert log == ["a", "c"]
        gate.close()

    asyncio.run(scene())


def test_work_whose_caller_has_gone_keeps_its_place_until_it_ends() -> None:
    async def scene() -> None:
        gate = Gate(workers=1, queue=1)
        work = Work("a", [])
        caller = asyncio.create_task(gate.run(work))
        await until(work.has_begun.is_set)
        caller.cancel()
        await until(caller.done)
        assert gate.at_work == 1
        work.may_end.set()
        await until(lambda: gate.at_work == 0)
        gate.close()

    asyncio.run(scene())


def test_a_turn_that_comes_in_the_moment_of_leaving_is_handed_on() -> None:
    async def scene() -> None:
        gate = Gate(workers=1, queue=2)
        first = Work("a", [])
        at_work = asyncio.create_task(gate.run(first))
        await until(first.has_begun.is_set)
        leaver = asyncio.create_task(gate.run(lambda: "never"))
        waits = asyncio.create_task(gate.run(lambda: "next"))
        await until(lambda: gate.waiting == 2)
        gate._hand_on()  # the leaver's turn has come, but it has not run yet
        leaver.cancel()
        gate.at_work += 1  # the first is still at work: the place above came from nowhere
        first.may_end.set()
        assert await asyncio.gather(at_work, waits) == ["a", "next"]
        await until(lambda: gate.at_work == 0)
        gate.close()

    asyncio.run(scene())


def test_work_that_fails_gives_its_place_back() -> None:
    def fail() -> None:
        raise LookupError("as it should")

    async def scene() -> None:
        gate = Gate(workers=1, queue=0)
        for _ in range(3):
            with pytest.raises(LookupError, match="as it should"):
                await gate.run(fail)
            await until(lambda: gate.at_work == 0)
        gate.close()

    asyncio.run(scene())
