"""The command line: registers the commands, and maps how one ends to an exit code.

0 same, 1 diverged, 2 wrong usage or bad input, 125 inconclusive or an internal error, 130 interrupted, 143
terminated, 129 hung up. Nothing heavy is imported until a command runs, so `parity --help` answers at once.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Annotated, cast

import typer

from parity.commands.help import EXAMPLES, Grouped, Lazy
from parity.errors import ParityError, Terminated, UsageError
from parity.redact import without_secrets
from parity.report.output import show, tell
from parity.signals import signalled, terminable
from parity.versions import installed

INTERNAL_ERROR, INTERRUPTED = 125, 130
_WrongWords = typer.BadParameter.__bases__[0]
"""Typer's errors of usage; it names only this one of them."""
_LONGEST_NAME = 200
"""Characters of a file's name in a message."""


def main() -> None:
    """Entry point, once `parity.__main__` has made the process ready."""
    try:
        with terminable():
            code = root(standalone_mode=False)
    except (Exception, KeyboardInterrupt, Terminated) as error:  # before a command began, or after it
        code = _code(error)
    except SystemExit as ended:
        if not isinstance(ended.__context__, OSError):
            raise
        code = 0  # nobody reads the help any more: typer says 1, which is a divergence
    sys.exit(code)


def _exits(function: Callable[..., int | None]) -> Callable[..., None]:
    """The command, ending in the exit code that it returns or that its error has."""

    @functools.wraps(function)
    def ended(**options: object) -> None:
        try:
            code = function(**options)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt, Terminated) as error:
            code = _code(error)
        raise typer.Exit(code or 0)

    return ended


def _code(error: BaseException) -> int:
    """Print an error in one line; returns its exit code."""
    if isinstance(error, ParityError):
        tell(f"parity: {error}")
        return error.exit_code
    if isinstance(error, _WrongWords):
        wrong = cast(typer.BadParameter, error)
        command = wrong.ctx.command_path if wrong.ctx else "parity"
        message = wrong.format_message()
        tell(f"parity: {message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help")
        return UsageError.exit_code
    error = signalled(error) or error
    if isinstance(error, KeyboardInterrupt):
        tell("parity: interrupted")
        return INTERRUPTED
    if isinstance(error, Terminated):
        tell("parity: terminated")
        return 128 + error.number
    if isinstance(error, OSError) and isinstance(error.filename, str):
        # Even to ask whether a path is a folder raises where its name is too long or a folder above it is closed.
        name = error.filename if len(error.filename) <= _LONGEST_NAME else f"{error.filename[:_LONGEST_NAME]}..."
        tell(f"parity: '{name}': {error.strerror}; check the path and its permissions")
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
vars(root)["commands"] = Lazy(_exits)

if __name__ == "__main__":
    main()
