"""Which command runs, with what it was given: a run like it takes as long the next time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

COMMAND: ContextVar[str] = ContextVar("command", default="")
"""The command as one text; empty outside the command line."""


@contextlib.contextmanager
def running(name: str, options: Mapping[str, object]) -> Iterator[None]:
    """Set `COMMAND` while the block runs."""
    given = {option: str(value) for option, value in options.items() if option not in _NOT_OF_A_RUN}
    token = COMMAND.set(json.dumps([name, given], sort_keys=True))
    try:
        yield
    finally:
        COMMAND.reset(token)


_NOT_OF_A_RUN = {"out", "html", "as_json", "format", "details", "overwrite", "junit", "markdown", "csv"}
"""Options that change where a result goes, and not how long it takes."""
