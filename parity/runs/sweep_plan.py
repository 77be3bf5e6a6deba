"""Which rows a sweep has, from names alone: a grid, one setting at a time, or every value of every setting.

A value that a side cannot take is a row too, refused when its turn comes; a value that nobody knows is a mistake.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from parity.choices import BY_NAME, CHOICES, Choice
from parity.errors import UsageError
from parity.settings import render

Row = tuple[str, ...]
"""`NAME=VALUE` of the candidate."""

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "attention.block_q": ("64",),
    "attention.block_kv": ("128", "256"),
    "scheduler.warmup_steps": ("1",),
    "mesh": ("dp=2,sp=1,tp=1", "dp=1,sp=2,tp=1", "dp=1,sp=1,tp=2"),
}
"""Values that stand for all where no list holds them."""

_SPLASH = "attention.kernel=splash"
NEEDS: Mapping[str, str] = {
    "attention.block_q": _SPLASH,
    "attention.block_kv": _SPLASH,
    "attention.block_padding": _SPLASH,
    "sharding": "mesh=dp=1,sp=1,tp=2",
}
"""What a setting needs beside it to mean anything."""


def parse_sets(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`NAME=V1,V2` texts as values by setting; values that hold commas themselves are told apart by their form.

    Raises:
        UsageError: no such setting, no such value, or a setting given twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or name not in BY_NAME:
            raise UsageError(f"--set takes SETTING=VALUE,VALUE, found '{text}' (`parity models` lists all settings)")
        if name in found:
            raise UsageError(f"--set gives '{name}' twice: list its values behind one, with commas")
        choice = BY_NAME[name]
        found[name] = tuple(dict.fromkeys(_split(choice, values)))
        for value in found[name]:
            if not choice.knows(value):
                choice.parse(value, "torchax")  # says what it has
    return found


def _split(choice: Choice, text: str) -> list[str]:
    if choice.pattern is None:
        return text.split(",")
    values, at = [], 0
    while at <= len(text):
        match = choice.pattern.match(text, at)
        end = match.end() if match is not None else len(text)
        if end < len(text) and text[end] != ",":
            end = len(text)
        values.append(text[at:end])
        at = end + 1
    return values


def grid(sets: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
    """Every combination."""
    return tuple(itertools.product(*[[f"{name}={value}" for value in values] for name, values in sets.items()]))


def one_at_a_time(sets: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
    """Each value alone, the other settings at their defaults."""
    return tuple((f"{name}={value}",) for name, values in sets.items() for value in values)


def every(blocks: int) -> tuple[Row, ...]:
    """The defaults, and each value of each setting that is not the candidate's default.

    Args:
        blocks: of the transformer, of which a cache skips all but the first and the last.
    """
    rows: list[Row] = [()]
    for choice in CHOICES:
        default = render(choice.default_for("torchax"))
        examples = (f"deepcache:1,{blocks - 1},2",) if choice.name == "cache" else EXAMPLES.get(choice.name, ())
        for value in (*choice.values, *examples):
            if value != default:
                needed = (NEEDS[choice.name],) if choice.name in NEEDS else ()
                rows.append((*needed, f"{choice.name}={value}"))
    return tuple(rows)


def merged(base: Sequence[str], row: Row) -> tuple[str, ...]:
    """The settings of a row over those of every row."""
    names = {text.partition("=")[0] for text in row}
    return (*(text for text in base if text.partition("=")[0] not in names), *row)
