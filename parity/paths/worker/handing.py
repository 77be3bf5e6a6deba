"""A function that hands items over, turned into an iterator: its items are taken one at a time, as they are made."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from parity.records import StepRecords


def one_at_a_time(produce: Callable[[Callable[[StepRecords], None]], None]) -> Iterator[StepRecords]:
    """What a function hands over, one item at a time: it waits in a thread of its own while an item is looked at, so
    that no more than two calls' tensors are alive."""
    handed: queue.Queue[StepRecords | BaseException | None] = queue.Queue(maxsize=1)
    done = threading.Event()

    class _NobodyListensError(BaseException):
        pass

    def put(item: StepRecords) -> None:
        while not done.is_set():
            try:
                return handed.put(item, timeout=0.1)
            except queue.Full:
                continue
        raise _NobodyListensError

    def work() -> None:
        try:
            produce(put)
        except _NobodyListensError:
            return
        except BaseException as error:  # carried over to whoever asked
            handed.put(error)
        else:
            handed.put(None)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        while (item := handed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        done.set()
        worker.join()
