"""What `parity --help` lists, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import typer
from typer.core import TyperGroup

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Compare", ("run", "explain", "report")),
    ("Across machines and in CI", ("record", "diff", "bisect")),
    ("Set up", ("init", "info", "compile")),
)
"""Commands in the order in which a person needs them."""

EXAMPLES = """\b
Examples:
  parity run                                            # the built-in tiny model: passes in a minute
  parity run --candidate attention.mask=none --out run  # with a known bug: fails
  parity explain run                                    # why it failed
  parity run --model ./checkpoint --port my_port.py:build

Exit codes: 0 match, 1 differ, 2 usage or input error, 125 inconclusive.
"""


class Formatter(Protocol):
    """What writes a help text: a heading with what is under it, and rows of a name and a sentence."""

    width: int

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class Grouped(TyperGroup):
    """The commands of parity, by what they are for."""

    def format_commands(self, ctx: typer.Context, formatter: Formatter) -> None:  # type: ignore[override]
        for title, names in GROUPS:
            limit = formatter.width - 6 - max(map(len, self.commands))
            found = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, one.get_short_help_str(limit)) for name, one in found if one is not None]
            with formatter.section(title):
                formatter.write_dl(rows)
