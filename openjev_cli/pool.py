"""Many items through a few threads: results in the order of the items, a bounded number under way.

It knows nothing about what the work is. A source that is slow, or never ends, is fine: an item is worked on
as soon as it is there, and no more than a few items a thread are held at any time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Raised:
    """An exception, on its way to the thread that asked."""

    exception: BaseException


@dataclass(frozen=True)
class _Total:
    """The source has ended after this many items."""

    count: int


class Pool(Generic[Item, Result]):
    """Runs `work` over `items` in `workers` threads. Iterate it once; leaving the loop stops the threads
    after what they are doing. is_ordered: results come in the order of the items, else as they are ready.

    An exception of `work` or of the source is raised where its result would have come.
    """

    def __init__(
        self,
        items: Iterable[Item],
        work: Callable[[Item], Result],
        *,
        workers: int,
        is_ordered: bool = True,
    ) -> None:
        self._items = items
        self._work = work
        self._workers = workers
        self._is_ordered = is_ordered
        # Items read ahead of the slowest one: enough to keep every worker busy behind a long one.
        self._permits = threading.Semaphore(4 * workers)
        self._todo: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Any] | _Total] = queue.SimpleQueue()
        self._is_stopped = threading.Event()

    def __iter__(self) -> Iterator[Result]:
        # Daemons: a thread that waits in a read or in the engine must not hold up the end of the process.
        threads = [threading.Thread(target=self._feed, daemon=True)]
        threads += [threading.Thread(target=self._serve, daemon=True) for _ in range(self._workers)]
        for thread in threads:
            thread.start()
        try:
            yield from self._collect()
        finally:
            self._is_stopped.set()
            self._permits.release()
            for _ in range(self._workers):
                self._todo.put(None)

    def _collect(self) -> Iterator[Result]:
        waiting: dict[int, Any] = {}
        following = 0
        total: int | None = None
        while total is None or following < total:
            entry = self._done.get()
            if isinstance(entry, _Total):
                total = entry.count
                continue
            index, result = entry
            waiting[index if self._is_ordered else following] = result
            while following in waiting:
                result = waiting.pop(following)
                following += 1
                if isinstance(result, _Raised):
                    raise result.exception
                yield result
                self._permits.release()

    def _feed(self) -> None:
        index = 0
        try:
            source = iter(self._items)
            while True:
                self._permits.acquire()
                if self._is_stopped.is_set():
                    return
                item = next(source)
                self._todo.put((index, item))
                index += 1
        except StopIteration:
            pass
        except BaseException as exc:  # whatever it is, the asking thread has to hear of it
            self._done.put((index, _Raised(exc)))
            index += 1
        self._done.put(_Total(index))
        for _ in range(self._workers):
            self._todo.put(None)

    def _serve(self) -> None:
        while True:
            entry = self._todo.get()
            if entry is None or self._is_stopped.is_set():
                return
            index, item = entry
            try:
                result: Any = self._work(item)
            except BaseException as exc:  # likewise
                result = _Raised(exc)
            self._done.put((index, result))
