"""The commands, what `parity --help` says of each, and how help is laid out. A command is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: dict[str, dict[str, str]] = {
    "Compare": {
        "run": "Run both sides, and report the first module that diverges.",
        "explain": "Find the causes of a difference.",
        "report": "Write a run or a comparison as an HTML page.",
    },
    "Across machines and in CI": {
        "record": "Record one side to a golden: a model, a port, or your own script.",
        "diff": "Compare a golden with another golden or with a port.",
        "bisect": "Find the commit, or the settings, that make a comparison fail.",
    },
    "Set up": {
        "init": "Write a port template to fill in, or a script to be recorded.",
        "info": "Show versions and devices, models, settings, or what a golden holds.",
        "compile": "Compile for a TPU you do not have, and check that it fits.",
    },
}
"""Group -> command -> the first line of its help, in the order in which a person needs them."""

EXAMPLES = """\b
Examples:
  parity run                                  # the built-in tiny model: passes in a minute
  parity run -c attention.mask=none           # the same with a known bug: fails
  parity explain                              # why the last run failed
  parity run -m ./checkpoint -p my_port.py:build

Exit codes: 0 match, 1 differ, 2 usage or input error, 125 inconclusive.
"""


class Formatter(Protocol):
    """What writes a help text: a heading with what is under it, and rows of a name and a sentence."""

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class Panels(TyperCommand):
    """A command whose help lists its options by panel."""

    def format_options(self, ctx: typer.Context, formatter: Formatter) -> None:  # type: ignore[override]
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(row)
        for title in sorted(panels, key=lambda title: (title != "Arguments", title == "Options")):
            with formatter.section(title):
                formatter.write_dl(panels[title])


class Grouped(TyperGroup):
    """The commands of parity, by what they are for."""

    def format_commands(self, ctx: typer.Context, formatter: Formatter) -> None:  # type: ignore[override]
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))


class Lazy(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for.

    Args:
        ended: makes a command end in its exit code.
    """

    def __init__(self, ended: Callable[[Callable[..., int | None]], Callable[..., None]]) -> None:
        self._ended = ended

    def __getitem__(self, name: str) -> Any:
        if name not in tuple(self):
            raise KeyError(name)
        function = getattr(importlib.import_module(f"parity.commands.{name}"), name)
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name, cls=Panels)(self._ended(function))
        return typer.main.get_command(app)

    def __iter__(self) -> Iterator[str]:
        return (name for group in COMMANDS.values() for name in group)

    def __len__(self) -> int:
        return sum(map(len, COMMANDS.values()))
