"""`parity help`: the help of a command, and the words of the reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Protocol

import typer
from typer.core import TyperGroup

from parity.errors import UsageError
from parity.report.document import Facts, Listing
from parity.report.formats import render
from parity.report.output import show
from parity.report.words import WORDS

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Compare", ("run", "explain", "report")),
    ("Two machines and CI", ("record", "diff", "gate", "merge")),
    ("Search and measure", ("bisect", "compile")),
    ("Begin", ("init", "info", "help")),
)
"""Commands in the order in which a person needs them."""

EXAMPLES = """\b
Examples:
  parity run --steps 1 --candidate attention.mask=none --out run    same or not, and where
  parity explain run                                                why
  parity report run                                                 the page
  parity help words                                                 what the words mean
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


def help_(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[COMMAND|words]", help="A command, or: words.")] = None,
) -> None:
    """Show the help of a command, or the words of reports."""
    if topic == "words":
        document = {"format": 1, "words": [{"word": word, "meaning": meaning} for word, meaning in WORDS]}
        show(render(Listing(document, (Facts(WORDS),)), "text"))
        return
    root = context.find_root()
    if topic is None:
        show(root.get_help())
        return
    group = root.command
    found = group.get_command(root, topic) if isinstance(group, Grouped) else None
    if found is None:
        raise UsageError(f"there is no command '{topic}': parity help lists them; parity help words has the words")
    show(found.get_help(typer.Context(found, info_name=topic, parent=root)))
