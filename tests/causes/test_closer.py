"""What a run found stands when it is explained, and its closer look's records are beside those it kept first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.causes.explain import explain
from parity.causes.request import FOLDER, ExplainRequest
from parity.compare.diff import diff
from parity.compare.result import Origin, read_result, result_text
from parity.golden import GoldenWriter
from parity.paths.worker.process import Workers
from parity.records import Key, StepRecords
from tests.support.lab import quiet
from tests.support.made import CANDIDATE, REFERENCE, floor_of, noise, tensor, write

X = noise(1)
STEP = 0


def side(gain: float, *sites: str) -> StepRecords:
    """The same input at all sites, and outputs that are larger than the reference's."""
    records = [tensor(site, X if ":in" in site else X * np.float32(gain)) for site in sites]
    return StepRecords(STEP, tuple(records), {r.key: floor_of(r) for r in records})


BLOCK = ("blocks.0:in.x", "blocks.0:out")
INSIDE = ("blocks.0:in.x", "blocks.0.norm:in.x", "blocks.0.norm:out", "blocks.0:out")


@pytest.fixture
def kept(tmp_path: Path) -> ExplainRequest:
    """A kept run that came to the norm within the block."""
    for folder, sites in ((tmp_path, BLOCK), (tmp_path / FOLDER, INSIDE)):
        write(folder / "reference", replace(REFERENCE, steps=1), [side(1.0, *sites)])
        write(folder / "candidate", replace(CANDIDATE, steps=1), [side(1.5, *sites)])
    ours, theirs = str(tmp_path / "reference"), str(tmp_path / "candidate")
    found = replace(diff(ours, theirs), origin=Origin(Key("transformer", STEP, "cond", "blocks.0.norm:out"), "module"))
    return ExplainRequest(ours, theirs, found=found)


def causes(request: ExplainRequest) -> list[str]:
    with Workers() as openers:
        return [cause.cause for cause in explain(request, openers, quiet).causes]


def test_the_place_is_the_run_s_and_its_closer_records_show_the_cause(kept: ExplainRequest) -> None:
    with Workers() as openers:
        result = explain(kept, openers, quiet)
    assert kept.found is not None
    assert (result.origin, result.reason, result.sites) == (kept.found.origin, kept.found.reason, kept.found.sites)
    assert causes(kept) == ["blocks.0.norm:out is the reference's times 1.5: a scale, gate or count is off"]


@pytest.mark.parametrize("lost", ["folder", "step"])
def test_of_a_place_whose_records_were_not_kept_nothing_is_claimed(kept: ExplainRequest, lost: str) -> None:
    closer = Path(kept.reference).parent / FOLDER
    closer.rename(closer.with_name("gone"))
    if lost == "step":
        for role, provenance in (("reference", REFERENCE), ("candidate", CANDIDATE)):
            with GoldenWriter(closer / role, provenance) as writer:
                writer.write_step(StepRecords(3, (tensor("blocks.0.norm:out", X, step=3),)))
    assert causes(kept) == []


def test_a_result_is_read_as_it_was_written(kept: ExplainRequest) -> None:
    assert kept.found is not None
    found = replace(kept.found, sites=tuple(replace(d, bins=np.ones(2)) for d in kept.found.sites))
    read = read_result(result_text(found))
    assert result_text(read) == result_text(found)
    assert (read.reason, read.origin, len(read.sites)) == (found.reason, found.origin, len(found.sites))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdict": "fail"}', "[" * 10**5])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_result(text)
