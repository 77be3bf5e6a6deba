"""What a run looked closer at is explained there, with the records of that look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity.causes.explain import looked_closer
from parity.causes.request import FOLDER, ExplainRequest
from parity.compare.diff import diff
from parity.golden import Golden
from parity.records import Key, StepRecords
from tests.support.made import CANDIDATE, REFERENCE, floor_of, moved, noise, tensor, write

X = noise(1)
STEP = 0


def side(far: float, *sites: str) -> StepRecords:
    """The same input at all sites, and outputs that are so many floors from the reference's."""
    records = [tensor(site, X if ":in" in site else moved(X, far)) for site in sites]
    return StepRecords(STEP, tuple(records), {r.key: floor_of(r) for r in records})


BLOCK = ("blocks.0:in.x", "blocks.0:out")
INSIDE = ("blocks.0:in.x", "blocks.0.norm:in.x", "blocks.0.norm:out", "blocks.0:out")


@pytest.fixture
def kept(tmp_path: Path) -> ExplainRequest:
    """A kept run that came to the norm within the block."""
    for folder, sites in ((tmp_path, BLOCK), (tmp_path / FOLDER, INSIDE)):
        write(folder / "reference", replace(REFERENCE, steps=1), [side(0.0, *sites)])
        write(folder / "candidate", replace(CANDIDATE, steps=1), [side(1e4, *sites)])
    ended = Key("transformer", STEP, "", "blocks.0.norm:out")
    return ExplainRequest(str(tmp_path / "reference"), str(tmp_path / "candidate"), kept=tmp_path, ended=ended)


def test_the_place_and_the_records_are_those_of_the_closer_look(kept: ExplainRequest) -> None:
    found = diff(kept.reference, kept.candidate)
    ours, theirs = (Golden.open(where).read_step(STEP) for where in (kept.reference, kept.candidate))
    assert found.origin is not None
    assert found.origin.key.site == "blocks.0:out"
    placed, near, far = looked_closer(kept, found, ours, theirs)
    assert placed.origin is not None
    assert (placed.origin.key.site, placed.origin.birth) == ("blocks.0.norm:out", "module")
    assert "blocks.0.norm output" in placed.reason
    assert [r.key.site for r in near.records] == [r.key.site for r in far.records] == [*BLOCK, *INSIDE[1:3]]
    assert len(near.floors) == 4
    assert kept.looked_at(placed.origin.key) == placed.origin.key


@pytest.mark.parametrize("lost", ["candidate", "place"])
def test_without_them_the_records_that_were_kept_first_stand(kept: ExplainRequest, lost: str) -> None:
    assert kept.kept is not None
    if lost == "candidate":
        (kept.kept / FOLDER / "candidate").rename(kept.kept / FOLDER / "gone")
    else:
        kept = replace(kept, ended=None)
    found = diff(kept.reference, kept.candidate)
    ours, theirs = (Golden.open(where).read_step(STEP) for where in (kept.reference, kept.candidate))
    assert looked_closer(kept, found, ours, theirs) == (found, ours, theirs)
