"""Where the time of one request went: named stages that add up to the total.

Times are monotonic (`time.perf_counter`), kept in seconds and shown in milliseconds. What a stage means is
decided by whoever opens it; the wire names are `parse`, `prepare`, `queue`, `inference` and `start`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

STAGES = ("start", "parse", "prepare", "queue", "inference")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each stage of one request; `start_ms` only when the call waited for a server."""

    parse_ms: float
    prepare_ms: float
    queue_ms: float
    inference_ms: float
    start_ms: float | None = None

    @property
    def processing_ms(self) -> float:
        """Sum of the stages, in milliseconds."""
        return self.parse_ms + self.prepare_ms + self.queue_ms + self.inference_ms + (self.start_ms or 0.0)


@dataclass
class Stages:
    """A stopwatch that is always in exactly one stage, so that the stages sum to the elapsed time.

    >>> stages = Stages(began_at_s=time.perf_counter())
    >>> with stages.during("prepare"):
    ...     pass
    """

    began_at_s: float
    current: str = "parse"
    _entered_at_s: float = field(init=False)
    _spent_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._entered_at_s = self.began_at_s

    def enter(self, stage: str) -> None:
        """Charge the time since the last change to the stage so far, and go on in `stage`."""
        now_s = time.perf_counter()
        self._spent_s[self.current] = self._spent_s.get(self.current, 0.0) + now_s - self._entered_at_s
        self._entered_at_s = now_s
        self.current = stage

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Charge the time inside the block to `stage`, then return to the stage before."""
        before = self.current
        self.enter(stage)
        try:
            yield
        finally:
            self.enter(before)

    def merge(self, stage: str, *, into: str) -> None:
        """Charge everything spent in `stage` so far to `into`."""
        self._spent_s[into] = self._spent_s.get(into, 0.0) + self._spent_s.pop(stage, 0.0)

    def finish(self, *, queue_ms: float, inference_ms: float) -> Timing:
        """Close the stopwatch. `queue_ms` and `inference_ms` are the engine's own times; they lie inside what
        was spent in `prepare` (the round trip), so they are moved out of it and the sum stays the total."""
        self.enter("done")
        ms = {stage: seconds * 1000.0 for stage, seconds in self._spent_s.items()}
        waited_ms = ms.get("queue", 0.0)  # in a queue of our own, before the engine's
        prepare_ms = ms.get("prepare", 0.0) - queue_ms - inference_ms
        if prepare_ms < 0.0:
            # The engine rounds its times; never report a negative stage.
            inference_ms = max(0.0, inference_ms + prepare_ms)
            prepare_ms = 0.0
        return Timing(
            parse_ms=ms.get("parse", 0.0),
            prepare_ms=prepare_ms,
            queue_ms=waited_ms + queue_ms,
            inference_ms=inference_ms,
            start_ms=ms.get("start"),
        )
