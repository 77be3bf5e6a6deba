"""Which command runs, with what it was given: a run like it takes as long the next time. And what of it was typed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar

COMMAND: ContextVar[str] = ContextVar("command", default="")
"""The command as one text; empty outside the command line."""


TYPED: ContextVar[frozenset[str]] = ContextVar("typed", default=frozenset())
"""The options that were typed, be it with their default's value; none outside the command line."""


@contextlib.contextmanager
def running(name: str, options: Mapping[str, object], typed: Iterable[str] = ()) -> Iterator[None]:
    """Set `COMMAND` and `TYPED` while the block runs."""
    given = {option: str(value) for option, value in options.items() if option not in _NOT_OF_A_RUN}
    command, chosen = COMMAND.set(json.dumps([name, given], sort_keys=True)), TYPED.set(frozenset(typed))
    try:
        yield
    finally:
        COMMAND.reset(command)
        TYPED.reset(chosen)


_NOT_OF_A_RUN = {"out", "html", "as_json", "format", "details", "overwrite", "junit", "markdown", "csv"}
"""Options that change where a result goes, and not how long it takes."""
