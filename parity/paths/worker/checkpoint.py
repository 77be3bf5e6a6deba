"""The message where libraries fail on a checkpoint: whose it is, and where, in one line.

A config of somebody's own can make diffusers, transformers or numpy raise anything at any depth. That is the input's
fault, exit code 2; with a model of parity's own it is an internal error, and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from parity.errors import ParityError, UsageError, summary
from parity.models.registry import tiny_names
from parity.paths.plan import Source


@contextlib.contextmanager
def checkpoint(source: Source) -> Iterator[None]:
    """Within it, what libraries raise names the checkpoint.

    Raises:
        UsageError: something failed, and the model is not one of parity's own.
    """
    try:
        yield
    except ParityError:
        raise
    except Exception as error:
        if source.alone or source.model in tiny_names():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"'{source.model}' cannot be run: {summary(error)} ({Path(last.filename).name}:{last.lineno}); is the "
            "checkpoint whole, and one of the pinned diffusers'?"
        ) from error
