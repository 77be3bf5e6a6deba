"""Values of options that more than one command takes, held to what can be done with them."""

from __future__ import annotations

import os
import re

from parity.errors import UsageError

MOST_SECONDS = 86_400.0
"""Of a time limit, at most: a day."""
MOST_STEPS = 100_000
"""Denoising steps, at most: schedules are made whole."""

_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def check_range(steps: int, seed: int) -> None:
    """Raise UsageError unless there is a step, and the seed is one that torch takes."""
    if not 1 <= steps <= MOST_STEPS:
        bound = "at least 1" if steps < 1 else f"at most {MOST_STEPS}"
        raise UsageError(f"--steps must be {bound}, found {str(steps)[:20]}")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed must be from 0 to 2^63 - 1, found {seed}")


def check_text(option: str, text: str | None) -> None:
    """Raise UsageError where a text holds bytes that are no UTF-8, which Python hands on as lone surrogates."""
    if text is not None and any(0xD800 <= ord(char) < 0xE000 for char in text):
        raise UsageError(f"{option}: '{ascii(text)[1:-1][:80]}' is not valid UTF-8; retype it")


def check_seconds(option: str, seconds: float) -> None:
    """Raise UsageError for no time, or none that a timer takes; NaN is neither."""
    if not 0.0 < seconds <= MOST_SECONDS:
        raise UsageError(f"{option} takes seconds above 0 and up to {MOST_SECONDS:.0f}, found {seconds}")


def choose(option: str, value: str, values: tuple[str, ...]) -> str:
    """The value, which must be one of the values.

    Raises:
        UsageError: it is another.
    """
    if value not in values:
        raise UsageError(f"{option} takes {', '.join(values)}, found '{value}'")
    return value


def at_revision(model: str | None, revision: str) -> str:
    """`OWNER/NAME@REVISION`.

    Raises:
        UsageError: the model is none of the hub's, or has a revision already.
    """
    if model is None or not _HUB.fullmatch(model) or os.path.exists(model):
        raise UsageError(f"--revision is of a model on the hub: --model OWNER/NAME; found '{model or ''}'")
    return f"{model}@{revision}"
