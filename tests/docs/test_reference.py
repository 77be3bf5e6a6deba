"""docs/commands.md and docs/api.md: what the help and the docstrings say today, of every command and every name."""

from __future__ import annotations

import re

import typer.main
from documents import DOCS, ROOT, shell
from typer.core import TyperGroup

import parity
from benchmarks import reference
from parity.cli import app


def test_the_pages_are_made_of_today_s_help_and_docstrings() -> None:
    assert (DOCS / "commands.md").read_text("utf-8") == reference.commands(), "make reference"
    assert (DOCS / "api.md").read_text("utf-8") == reference.api(), "make reference"


def test_every_command_and_option_is_there() -> None:
    text = (DOCS / "commands.md").read_text("utf-8")
    sections = dict(re.findall(r"^### (parity .*?)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        for below, one in {"": command, **getattr(command, "commands", {})}.items():
            section = sections[f"parity {name} {below}".strip()]
            options = [p for p in one.params if p.param_type_name == "option" and not p.hidden]
            assert [p.opts[0] for p in options if f"`{p.opts[0]}" not in section] == []


def test_every_public_name_is_there() -> None:
    text = (DOCS / "api.md").read_text("utf-8")
    assert [name for name in {*parity._FACE, "compare"} if f"### parity.{name}\n" not in text] == []


def test_a_docstring_s_parts_become_lists() -> None:
    def add(a: int, *, b: str = "x") -> int:
        """Add two things.

            add(1, b="y")

        Args:
            a: the first,
                on two lines. b: the second.

        Raises:
            ValueError: never.
        """
        return a + len(b)

    assert reference._entry("add", add).split("\n") == [
        "### add", "", "```python", "add(a: int, *, b: str = 'x') -> int", "```", "", "Add two things.", "",
        "```python", '    add(1, b="y")', "```", "", "**Args**", "", "- `a`: the first, on two lines. `b`: the second.",
        "", "**Raises**", "", "- `ValueError`: never.", "",
    ]  # fmt: skip


def test_make_reference_makes_them() -> None:
    assert "benchmarks/reference.py" in shell("make --dry-run reference", ROOT).stdout
