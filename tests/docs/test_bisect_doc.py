"""The example of docs/bisect.md, run as it stands; what it is said to print is what it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from documents import DOCS, blocks, shell

from parity import cli

pytestmark = pytest.mark.slow

TEXT = (DOCS / "bisect.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which git knows who commits."""
    (tmp_path / "gitconfig").write_text("[user]\nname = n\nemail = n@example.org\n[init]\ndefaultBranch = main\n")
    return tmp_path


def test_the_example_finds_the_commit(folder: Path) -> None:
    (example,) = blocks(TEXT, "sh")
    variables = {"GIT_CONFIG_GLOBAL": f"{folder}/gitconfig", "PARITY_CACHE": f"{folder}/cache"}
    done = shell(example, folder, **variables)
    assert done.returncode == 0, done.stderr
    (said,) = re.findall(r"^    first bad commit: .*$", TEXT, re.MULTILINE)
    without_name = re.compile(r"[0-9a-f]{12}")
    assert without_name.sub("", done.stdout.splitlines()[-1]) == without_name.sub("", said).strip()


def test_the_options_that_are_named_exist() -> None:
    commands = re.findall(r"^    (parity bisect .*)$", TEXT.replace("\\\n", ""), re.MULTILINE)
    bisect = typer.main.get_command(cli.app).commands["bisect"]  # type: ignore[attr-defined]
    assert len(commands) == 2
    for command in commands:
        _, _, name, *words = shlex.split(command)
        with bisect.commands[name].make_context(name, words) as parsed:
            assert not parsed.args
