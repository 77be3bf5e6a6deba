"""Option groups: the command line has their fields, the command has them built."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from parity.commands.parts.unfold import command


@dataclass(frozen=True, kw_only=True)
class Range:
    """A group that checks its values."""

    first: Annotated[int, typer.Option(help="First step.")] = 0
    last: Annotated[int, typer.Option(help="Last step.")] = 1
    names: Annotated[list[str], typer.Option("--name", help="Names.")] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError("first > last")


@dataclass(frozen=True, kw_only=True)
class Required:
    """A group with an option that has no default."""

    where: Annotated[str, typer.Option(help="Where.")]


@command
def show(what: Annotated[str, typer.Argument()], steps: Range, place: Required, loud: bool = False) -> int:
    """Show steps."""
    print(what, steps.first, steps.last, ",".join(steps.names), place.where, loud)
    return steps.last


def invoke(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(show)
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout


def test_the_command_line_has_the_fields_of_the_groups() -> None:
    assert list(inspect.signature(show).parameters) == ["what", "first", "last", "names", "where", "loud"]
    given = ["a", "--last", "3", "--name", "x", "--name", "y", "--where", "here"]
    assert invoke(*given) == (0, "a 0 3 x,y here False\n")
    code, _ = invoke("a", "--last", "3")
    assert code == 2, "--where has no default"


def test_a_function_is_called_with_options_by_name_and_defaults_where_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show(what="a", where="b", last=5) == 5
    assert capsys.readouterr().out == "a 0 5  b False\n"
    with pytest.raises(ValueError, match="first > last"):
        show(what="a", where="b", first=2)
    with pytest.raises(TypeError, match="unknown"):
        show(what="a", where="b", unknown=1)


def test_two_groups_with_one_option_are_refused() -> None:
    with pytest.raises(ValueError, match="duplicate parameter name"):

        @command
        def both(a: Range, b: Range) -> None: ...
