"""Steps judged as columns come out as they do one site at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.compare.judge import Judge
from parity.compare.many.judge import ManyJudge
from parity.compare.many.sites import Sites
from parity.compare.result import SiteDiff
from parity.golden import Golden
from parity.records import Floor, Key, Record, StepRecords
from tests.support.made import REFERENCE, floor_of, tensor_record, write

PORTS = (
    *("a:in.x", "a:in.z", "a:out", "a:out@read", "a.b:in.x", "a.b:out@image", "a.b:out@padding", "a.c:out"),
    *("loop:latents.before", "loop:noise_pred", "loop:latents.after"),
)
NAMES = {"a:in.x": "a:in.y", "a.b:in.x": "a.b:in.y", "a.c:out": "a.c:out.0"}
HOW = ("same", "near", "far", "nan", "both nan", "none", "missing", "shape", "value", "moments")


@st.composite
def walks(draw: st.DrawFn) -> list[tuple[StepRecords, StepRecords]]:
    """Random walks: each site of one of the above kinds, with or without a floor, of a port's names or not."""
    names = NAMES if draw(st.booleans()) else {}
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    plan = [(port, draw(st.sampled_from([(2, 3), (4, 40, 24), (5,), ()])), draw(st.booleans())) for port in PORTS]
    steps = []
    for step in range(draw(st.integers(1, 3))):
        ours, theirs, floors = [], [], {}
        for port, shape, has_floor in plan:
            how = draw(st.sampled_from(HOW))
            key = Key("transformer", step, "" if port.startswith("loop") else "cond", port)
            own = replace(key, site=names.get(port, port))
            x, by = rng.standard_normal((2, *shape)).astype(np.float32)
            y = x + np.float32({"near": 1e-6, "far": 1.0}.get(how, 0.0)) * by
            if how in ("nan", "both nan"):
                y = np.where(np.arange(y.size).reshape(shape) == 0, np.float32(np.nan), y)
                x = y if how == "both nan" else x
            record = tensor_record(key, x, value=how == "value")
            other = tensor_record(own, np.stack([y, y]) if how == "shape" else y, value=how == "value")
            if how == "moments":
                record, other = replace(record, sketch=None), replace(other, sketch=None)
            elif has_floor:
                floors[key] = floor_of(record) if how != "both nan" else Floor(1e-6)
            ours.append(record)
            if how != "missing":
                theirs.append(Record(own, "none") if how == "none" else other)
        steps.append((StepRecords(step, tuple(ours), floors), StepRecords(step, tuple(theirs))))
    return steps


def told(d: SiteDiff) -> tuple[object, ...]:
    return (d.key, d.shapes, d.dtypes, d.nonfinite, d.frame, d.rows, d.birth, d.verdict, d.note, d.called)


def numbers(d: SiteDiff) -> list[float]:
    of = d.distance
    return [of.rel_l2, of.floor, of.ratio, d.cosine, d.max_abs, d.linf_ratio, *d.bins]


@given(steps=walks(), strict=st.booleans())
@settings(max_examples=25)
def test_columns_are_judged_as_sites_are(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[StepRecords, StepRecords]], strict: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("goldens")
    sides = [Golden.open(write(folder / str(i), REFERENCE, [pair[i] for pair in steps])) for i in (0, 1)]
    slow, quick, sites = Judge(strict_sites=strict), ManyJudge(Judge(strict_sites=strict)), Sites()
    for step in sides[0].steps:
        expected = slow.step(*(side.read_step(step) for side in sides))
        found = quick.step(*(side.read_step(step) for side in sides))
        assert found is not None
        sites.add(found.columns)
        for a, b in zip(expected, list(sites)[-len(expected) :], strict=True):
            assert told(a) == told(b)
            assert numbers(a) == pytest.approx(numbers(b), rel=1e-9, abs=1e-9, nan_ok=True)
        assert [d.key for d in found.loop] == [d.key for d in expected if d.key.module == "loop"]
    assert slow.dirty == quick.judge.dirty
