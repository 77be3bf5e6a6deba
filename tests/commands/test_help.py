"""Help: every command in a group, a command by name, and the words."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.commands.help import GROUPS
from parity.report.words import WORDS


def told(*argv: str) -> str:
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_command_is_in_one_group() -> None:
    named = [name for _, names in GROUPS for name in names]
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}
    assert sorted(named) == sorted(known)
    text = told("--help")
    assert [text.index(f"{title}:") for title, _ in GROUPS] == sorted(text.index(f"{title}:") for title, _ in GROUPS)
    assert all(f"\n  {name} " in text for name in named)
    assert "parity explain run" in text


def test_help_is_the_option_s() -> None:
    assert told("help") == told("--help") == told("-h")
    assert told("help", "report").split("\n", 1)[1] == told("report", "--help").split("\n", 1)[1]
    assert "commits" in told("help", "bisect")


def test_words() -> None:
    lines = told("help", "words").splitlines()
    assert [line.split(": ")[0] for line in lines] == [word for word, _ in WORDS]


@pytest.mark.parametrize("topic", ["", "nothing"])
def test_an_unknown_topic(topic: str) -> None:
    done = CliRunner().invoke(app, ["help", topic])
    assert (done.exit_code, "parity help words" in done.stderr) == (2, True)


def test_what_a_command_does_is_read_whole_at_eighty_columns() -> None:
    for argv in (["--help"], ["bisect", "--help"]):
        text = CliRunner().invoke(app, argv, env={"COLUMNS": "80"}).stdout
        assert [line for line in text.splitlines() if line.endswith("...") and "Usage:" not in line] == []
