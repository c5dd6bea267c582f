"""A few requests at work, a few more in line, everybody else turned away: the door of a service.

Belongs to one event loop. What the work is, and what a refusal looks like, is the caller's business.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")
# How much the latest piece of work weighs in the average that `Full.retry_after_s` is told from.
_WEIGHT = 0.2
MAX_RETRY_AFTER_S = 30


class Full(Exception):
    """Nobody may wait any more. retry_after_s: whole seconds until a place is likely to be free."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("full")
        self.retry_after_s = retry_after_s


class Gate:
    """Runs blocking work in `workers` threads, first come, first served; at most `queue` more may wait.

    A caller that is cancelled while it waits leaves the line at once. Work that has begun keeps its place
    until it has really ended, whoever still waits for it.
    """

    def __init__(self, *, workers: int, queue: int) -> None:
        self.workers = workers
        self.queue = queue
        self.at_work = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decide")
        self._average_s = 0.0

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, once it is its turn. Raises Full, and whatever `work` raises."""
        await self._turn()
        loop = asyncio.get_running_loop()
        began_at_s = time.monotonic()

        def ended(_: Future[Result]) -> None:
            # At the very end of the process the loop may be gone before the last thread.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended, time.monotonic() - began_at_s)

        job = self._pool.submit(work)
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def close(self) -> None:
        """Take no more work, and do not wait for what is under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _turn(self) -> None:
        if self.at_work < self.workers:
            self.at_work += 1
            return
        if len(self._line) >= self.queue:
            raise Full(self._retry_after_s())
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line.remove(turn)
            else:
                self._hand_on()  # it was this caller's turn already
            raise

    def _ended(self, spent_s: float) -> None:
        weight = _WEIGHT if self._average_s else 1.0
        self._average_s += weight * (spent_s - self._average_s)
        self._hand_on()

    def _hand_on(self) -> None:
        """Give a place that became free to the first in line."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.at_work -= 1

    def _retry_after_s(self) -> int:
        wait_s = self._average_s * (len(self._line) + 1) / self.workers
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s)))
