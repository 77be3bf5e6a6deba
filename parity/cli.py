"""The command line: the commands, what `parity --help` says of each and how help is laid out, and how one ends.

0 same, 1 diverged, 2 wrong usage or bad input, 125 inconclusive or an internal error, 130 interrupted, 143
terminated, 129 hung up. A command is imported when it runs, and nothing heavy before, so `parity --help` answers at
once.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import traceback
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from parity.errors import ParityError, Terminated, UsageError
from parity.redact import without_secrets
from parity.report.output import show, tell
from parity.signals import signalled
from parity.versions import installed

INTERNAL_ERROR = 125
_WrongWords = typer.BadParameter.__bases__[0]
"""Typer's errors of usage; it names only this one of them."""
_LONGEST_NAME = 200
"""Characters of a file's name in a message."""

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


class Panels(TyperCommand):
    """A command that ends in the exit code that it returns or that its error has; its help lists options by panel."""

    def invoke(self, ctx: typer.Context) -> int | None:  # type: ignore[override]
        try:
            code: int | None = super().invoke(ctx)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:  # typer has exit codes of its own for some
            return _code(error)
        return code

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
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
    """The commands of parity, by what they are for; each is imported when it is asked for."""

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        if cmd_name not in self.commands:
            return None
        function = getattr(importlib.import_module(f"parity.commands.{cmd_name}"), cmd_name)
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(cmd_name, cls=Panels)(function)
        return typer.main.get_command(app)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(group.items()))


def main() -> int:
    """Run the command line and return its exit code; `parity.__main__` makes the process ready, and has words for
    signals."""
    try:
        code: int | None = root(standalone_mode=False)
    except Exception as error:  # before a command began, or after it
        return _code(error)
    except SystemExit as ended:
        if not isinstance(ended.__context__, OSError):
            raise
        return 0  # nobody reads the help any more: typer says 1, which is a divergence
    return code or 0


def _code(error: BaseException) -> int:
    """Print an error in one line; returns its exit code.

    Raises:
        Terminated: a signal is behind it.
    """
    if isinstance(error, ParityError):
        tell(f"parity: {error}")
        return error.exit_code
    if isinstance(error, _WrongWords):
        wrong = cast(typer.BadParameter, error)
        command = wrong.ctx.command_path if wrong.ctx else "parity"
        message = wrong.format_message().replace(": Value error, ", ": ")  # pydantic's own words
        tell(f"parity: {message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help")
        return UsageError.exit_code
    if (number := signalled(error)) is not None:
        raise Terminated(number) from error
    if isinstance(error, OSError) and isinstance(error.filename, str):
        # Even to ask whether a path is a folder raises where its name is too long or a folder above it is closed.
        name = error.filename if len(error.filename) <= _LONGEST_NAME else f"{error.filename[:_LONGEST_NAME]}..."
        tell(f"parity: '{name}': {error.strerror}; check the path and its permissions")
        return UsageError.exit_code
    if isinstance(error, FileNotFoundError) and error.filename is None:
        tell("parity: the current folder is no longer there; change to another")
        return UsageError.exit_code
    name = f"{type(error).__name__}: {error}".removesuffix(": ")
    tell(f"parity: internal error: {name}. Please report it with the traceback in {_traceback(error)}")
    return INTERNAL_ERROR


def _traceback(error: BaseException) -> str:
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="parity-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            trace = "".join(traceback.format_exception(error))
            file.write(without_secrets(f"parity {installed('tpu-parity') or 'not installed'}: {sys.argv}\n{trace}"))
            return file.name
    except OSError as unwritable:
        return f"no file ({unwritable.strerror})"


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"parity {installed('tpu-parity') or 'not installed'}")
        raise typer.Exit()


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(UsageError.exit_code)


app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    callback=_root,
    cls=Grouped,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find where, and why, a TPU port of a diffusion video model computes something different from the original.",
)

root = typer.main.get_command(app)
vars(root)["commands"] = {name: None for group in COMMANDS.values() for name in group}
