"""Every command of docs/goldens.md, run in order in one working copy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from documents import DOCS, INSTALLS, blocks, extras, shell, working_copy

from parity.golden import Golden, verify

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

TEXT = (DOCS / "goldens.md").read_text()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which everything was run, and the commands."""
    folder = working_copy(tmp_path_factory.mktemp("goldens"))
    commands = [line for block in blocks(TEXT, "sh") for line in block.splitlines()]
    for command in commands:
        done = shell(command, folder)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    return folder, commands


def test_the_commands_are_all_there(ran: tuple[Path, list[str]]) -> None:
    _, commands = ran
    assert [" ".join(command.split()[:2]) for command in commands] == [
        "parity record",
        "parity inspect",
        "parity record",
        "parity record",
        "parity diff",
        "parity diff",
        "make goldens",
    ]


def test_what_they_leave_is_what_the_text_says(ran: tuple[Path, list[str]]) -> None:
    folder, _ = ran
    assert verify(folder / "reference") == verify(folder / "candidate") == []
    assert json.loads((folder / "diff.json").read_text())["verdict"] == "pass"
    assert Golden.open(folder / "reference").read_step(0).floors
    assert verify(folder / "golden" / "tiny-hunyuan-video-1.5") == []


def test_what_installs_names_an_extra_that_exists() -> None:
    commands = re.findall(r"`(pip install .*?)`", TEXT)
    assert len(commands) == 3
    for command in commands:
        found = INSTALLS.fullmatch(command)
        assert found is not None, command
        assert found[2] is None or found[2] in extras()


def test_documents_that_are_named_exist() -> None:
    for document in ("ci.md", "goldens.md"):
        for name in re.findall(r"\]\(([\w.-]+)\)", (DOCS / document).read_text()):
            assert (DOCS / name).is_file(), name
