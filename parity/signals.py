"""SIGTERM and SIGHUP as exceptions, so that what is open is closed and a word is said."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from parity.errors import Terminated

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it, the first of these signals raises `Terminated`; a second one does not wait. Ignored ones stay so."""
    before = {n: signal.signal(n, _terminate) for n in _ENDING if signal.getsignal(n) != signal.SIG_IGN}  # nohup
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)
