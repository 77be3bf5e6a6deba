"""Which rows a sweep has, from names alone: a grid, one setting at a time, or every value of every setting.

A value that a side cannot take is a row too, refused when its turn comes; a value that nobody knows is a mistake.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from parity.errors import UsageError
from parity.paths.plan import LOOP_STAGE
from parity.settings import BY_NAME, SETTINGS, parse

Row = tuple[str, ...]
"""`NAME=VALUE` of the candidate."""


def parse_sets(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`NAME=V1,V2` texts as values by setting; values that hold commas themselves are told apart by their form.

    Raises:
        UsageError: no such setting, no such value, or a setting given twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if equals and name not in BY_NAME:
            parse("torch", [text])  # which names the nearest setting
        if not equals:
            raise UsageError(f"--set takes SETTING=VALUE,VALUE, found '{text}' (`parity models` lists all settings)")
        if name in found:
            raise UsageError(f"--set gives '{name}' twice: list its values behind one, with commas")
        found[name] = tuple(dict.fromkeys(BY_NAME[name].kind.split(values)))
        for value in found[name]:
            BY_NAME[name].read(value)
    return found


def grid(sets: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
    """Every combination."""
    return tuple(itertools.product(*[[f"{name}={value}" for value in values] for name, values in sets.items()]))


def one_at_a_time(sets: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
    """Each value alone, the other settings at their defaults."""
    return tuple((f"{name}={value}",) for name, values in sets.items() for value in values)


def every(blocks: int) -> tuple[Row, ...]:
    """The defaults, and each value of each setting of the loop that is not the candidate's default.

    Args:
        blocks: of the transformer, of which a cache skips all but the first and the last.
    """
    of_loop = [s for s in SETTINGS if s.applies_in(LOOP_STAGE) and not s.found]
    return ((), *((*s.needs, f"{s.name}={value}") for s in of_loop for value in s.tries("torchax", blocks)))


def merged(base: Sequence[str], row: Row) -> tuple[str, ...]:
    """The settings of a row over those of every row."""
    names = {text.partition("=")[0] for text in row}
    return (*(text for text in base if text.partition("=")[0] not in names), *row)
