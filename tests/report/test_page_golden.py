"""The page of a golden: what was recorded is on it, and nothing that a golden holds runs."""

from __future__ import annotations

import dataclasses
import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.golden.records import Key, Moments, Provenance, Record, StepRecords
from parity.report.page.golden import MOST_CELLS, GoldenShown, build_golden, chosen, rms
from tests.report.test_page import Read
from tests.support.made import REFERENCE, walk

pytest.importorskip("jinja2")


def shown(
    steps: list[StepRecords], provenance: Provenance = REFERENCE, name: str = "gpu", complete: bool = True
) -> GoldenShown:
    counts = {step.step: len(step.records) for step in steps}
    return GoldenShown(name=name, complete=complete, bytes=4_700_000, counts=counts, provenance=provenance, steps=steps)


def page(golden: GoldenShown) -> Read:
    read = Read()
    read.feed(build_golden(golden))
    assert read.open == []
    return read


def data(read: Read) -> dict[str, Any]:
    return dict(json.loads(next(text for kind, text in read.scripts if kind == "application/json"))["golden"])


STEPS = [walk(step).steps()[0] for step in range(3)]


def tensor(site: str, low: float, high: float, nan: int = 0, step: int = 0) -> Record:
    moments = Moments(count=4, nan=nan, inf=0, min=low, max=high, mean=0.0, l2=2.0)
    return Record(Key("transformer", step, "cond", site), "tensor", (2, 2), "float32", moments=moments)


def test_what_was_recorded_is_on_the_page() -> None:
    provenance = dataclasses.replace(
        REFERENCE, versions={"torch": "2.13.0"}, devices=("cpu: 2 cores",), command="parity record gpu", commit="abc123"
    )
    read = page(shown(STEPS, provenance))
    for said in (
        "Golden of tiny, reference (torch)", "gpu", "complete", "3 steps (0 to 2)", "4.7 MB", "seed 7", "torch",
        "2.13.0", "cpu: 2 cores", "parity record gpu", "abc123", "attention.mask", "exact", "3 tensors fingerprinted",
        "cond.encoder_hidden_states", "noise_pred rms", "none",
    ):  # fmt: skip
        assert said in read.shown, said
    assert data(read)["steps"] == [0, 1, 2]
    assert [line[2] for line in data(read)["lines"]][:2] == ["loop:latents.before", "blocks.0:in.hidden_states"]
    assert [row["step"] for row in data(read)["loop"]] == [0, 1, 2]


def test_nan_and_an_unfinished_recording_are_said_on_top() -> None:
    step = StepRecords(0, (tensor("a:out", -1, 1), tensor("b:out", -1, 1, nan=2)))
    read = page(shown([step], complete=False))
    assert "incomplete: its recording was not finished" in read.shown
    assert "in 1 records" in read.shown
    assert "transformer step 0 cond b:out: 2 NaN, 0 Inf" in read.shown


def test_the_largest_magnitudes_are_listed_in_their_order() -> None:
    records = tuple(tensor(f"m{i}:out", -float(i), 1.0) for i in range(40))
    read = page(shown([StepRecords(0, records)]))
    assert read.shown.index("m39:out") < read.shown.index("m38:out") < read.shown.index("m28:out")
    assert "m27:out" not in read.shown


def test_scalars_and_none_are_texts() -> None:
    key = Key("transformer", 0, "", "a:in.flag")
    records = (Record(key, "scalar", dtype="bool", value=True), Record(dataclasses.replace(key, call=1), "none"))
    assert data(page(shown([StepRecords(0, records)])))["texts"] == {"0": "True", "1": "None"}


def test_root_mean_square_is_over_the_finite_elements() -> None:
    assert rms(tensor("a:out", 0, 0)) == 1.0
    assert rms(tensor("a:out", 0, 0, nan=3)) == 2.0
    assert np.isnan(rms(tensor("a:out", 0, 0, nan=4)))


def test_a_golden_too_large_for_a_page_shows_its_ends_and_steps_between() -> None:
    assert chosen({0: 10, 1: 10}) == [0, 1]
    counts = dict.fromkeys(range(50), 5_000)
    kept = chosen(counts)
    assert kept[0] == 0
    assert kept[-1] == 49
    assert len(set(kept)) == len(kept)
    assert MOST_CELLS * 0.8 < 5_000 * len(kept) <= MOST_CELLS


def test_a_full_page_is_small() -> None:
    records = [tuple(tensor(f"blocks.{i}.attn:out", -1, 1, step=step) for i in range(2_400)) for step in range(50)]
    text = build_golden(shown([StepRecords(step, found) for step, found in enumerate(records)]))
    assert len(text) < 3_000_000


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><b>"])
def test_nothing_of_a_golden_runs(hostile: str) -> None:
    provenance = dataclasses.replace(
        REFERENCE,
        model=hostile,
        settings={hostile: hostile},
        versions={hostile: hostile},
        inputs={hostile: hostile},
        devices=(hostile,),
        command=hostile,
        commit=hostile,
    )
    records = (dataclasses.replace(tensor(hostile, -1, 1, nan=1), dtype=hostile),)
    read = page(shown([StepRecords(0, records)], provenance, name=hostile))
    assert len(read.scripts) == 2
    assert [line[2] for line in data(read)["lines"]] == [hostile]
    assert hostile in html.unescape(read.shown)


def test_the_committed_golden_has_a_page(tmp_path: Path) -> None:
    from parity.commands.report import report

    golden = Path(__file__).parents[2] / "golden" / "tiny-hunyuan-video-1.5"
    report(run=golden, html=tmp_path / "page.html")
    read = Read()
    read.feed((tmp_path / "page.html").read_text())
    assert "Golden of tiny-hunyuan-video-1.5" in read.shown
