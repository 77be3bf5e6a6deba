"""Options whose values are known: how their help names them, and what a shell completes.

A completion is a function from what is typed so far to what it may become, as Typer takes it. Nothing heavy is
imported: a shell asks at every press of a key.
"""

from __future__ import annotations

from collections.abc import Callable

import typer
from typer.models import OptionInfo

from parity.errors import UsageError
from parity.models.registry import tiny_names
from parity.settings import SETTINGS

ISOLATIONS = ("none", "steps")
STAGES = ("text", "transformer", "vae")
CHECKS = ("both", "logic", "precision")
SIDES = ("reference", "candidate")
SITES = ("blocks", "all")

Complete = Callable[[str], list[str]]


def completing(values: tuple[str, ...]) -> Complete:
    """Completes one of the values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def settings(incomplete: str) -> list[str]:
    """Names of settings with `=`, then `NAME=VALUE` where the values are listed."""
    name, equals, typed = incomplete.partition("=")
    if not equals:
        return [f"{setting.name}=" for setting in SETTINGS if setting.name.startswith(name)]
    found = (setting for setting in SETTINGS if setting.name == name)
    return [f"{name}={value}" for setting in found for value in setting.kind.values if value.startswith(typed)]


def comma_separated(values: tuple[str, ...]) -> Complete:
    """Completes the last of several values, each given once."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{value}" for value in values if value.startswith(last) and value not in given]

    return complete


def one_of(values: tuple[str, ...], help: str, panel: str | None = None) -> OptionInfo:
    """An option that takes one of the values, and refuses another; panel: of the help."""

    def checked(option: typer.CallbackParam, value: str) -> str:
        if value not in values:
            raise UsageError(f"{option.opts[0]} takes {', '.join(values)}, found '{value}'")
        return value

    return typer.Option(
        metavar="|".join(values),
        autocompletion=completing(values),
        callback=checked,
        help=help,
        rich_help_panel=panel,
    )


def some_of(values: tuple[str, ...], help: str, panel: str | None = None) -> OptionInfo:
    """An option that takes some of the values, separated by commas; panel: of the help."""
    return typer.Option(
        metavar=",".join(values), autocompletion=comma_separated(values), help=help, rich_help_panel=panel
    )


def model(help: str) -> OptionInfo:
    """An option for a model: a built-in one's name is completed, a folder or a hub name is typed."""
    return typer.Option("--model", "-m", metavar="NAME", autocompletion=completing(tiny_names()), help=help)


def sites(help: str) -> OptionInfo:
    """An option for sites: a preset, or a glob."""
    return typer.Option(metavar=f"{'|'.join(SITES)}|GLOB", autocompletion=completing(SITES), help=help)


def settings_of(side: str, short: str) -> OptionInfo:
    """An option for settings, repeatable."""
    help = f"Setting of the {side}, see parity info settings; repeatable."
    return typer.Option(f"--{side}", short, metavar="K=V", autocompletion=settings, help=help)
