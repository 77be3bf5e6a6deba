"""Some of the frozen commands, run: those that take a second each. `make snapshots` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.snapshots import goldens
from tests.snapshots.__main__ import fresh
from tests.snapshots.catalogue import COMMANDS, chosen
from tests.snapshots.compare import differences
from tests.snapshots.machine import tolerance
from tests.snapshots.scene import ROOT, prepare
from tests.snapshots.snapshot import DATA, Snapshot

SAMPLE = ("models", "invalid-value", "missing-golden", "diff-changed", "diff-renamed", "inspect-merged")
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("snapshots")
    prepare(where)
    return where


@pytest.mark.parametrize("name", SAMPLE)
def test_output_is_as_it_was(name: str, folder: Path) -> None:
    snapshots = [fresh(command, folder, ROOT) for command in chosen([name])]
    assert differences(Snapshot.load(name), snapshots[-1], tolerance()) == []


def test_every_command_has_a_snapshot_and_together_they_are_small() -> None:
    assert {file.stem for file in DATA.iterdir()} == {command.name for command in COMMANDS}
    assert sum(file.stat().st_size for file in DATA.parent.rglob("*.json")) < MOST_BYTES


def test_the_committed_golden_is_written_as_it_was_read() -> None:
    assert goldens.differences() == []
