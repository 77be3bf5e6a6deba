"""docs/trackers.md: its commands, and that each tracker and extra is one that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, blocks, extras, shell, working_copy

from parity.report.trackers import NAMES

TEXT = (DOCS / "trackers.md").read_text(encoding="utf-8")


def test_its_trackers_and_extras_are_those_there_are() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == sorted(NAMES)
    assert set(re.findall(r"tpu-parity\[(\w+)\]", TEXT)) == set(NAMES) <= extras()


def test_its_commands(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    pytest.importorskip("torchax")
    (commands,) = blocks(TEXT, "sh")
    done = shell(commands, working_copy(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("tensorboard --logdir tensorboard/parity\n")
    assert list((tmp_path / "tensorboard/parity/run").glob("events*"))
