"""Which options of the running command were typed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

TYPED: ContextVar[frozenset[str]] = ContextVar("typed", default=frozenset())
"""The options that were typed, be it with their default's value; none outside the command line."""


@contextlib.contextmanager
def running(typed: Iterable[str]) -> Iterator[None]:
    """Set `TYPED` while the block runs."""
    chosen = TYPED.set(frozenset(typed))
    try:
        yield
    finally:
        TYPED.reset(chosen)
