"""The commands of docs/ports.md, and its table, which must name what a port can have."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from documents import DOCS, blocks

from parity.port import Case, Port
from tests.support.cli import cli as parity

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

TEXT = (DOCS / "ports.md").read_text()


def test_the_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(TEXT, "sh")
    ended = [parity(*line.split()[1:]) for line in block.splitlines()]
    assert [done.code for done in ended] == [0, 0]
    assert "verdict: pass" in ended[-1].out


def test_the_table_has_every_attribute() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == [f.name for f in dataclasses.fields(Port)]
    for field in dataclasses.fields(Case):
        assert f"`{field.name}`" in TEXT
