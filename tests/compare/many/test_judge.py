"""Steps judged as columns come out as they do one site at a time."""

from __future__ import annotations

import math
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
from parity.golden import Floor, Golden, GoldenWriter, Key, Record, StepRecords
from parity.golden.disk.table import Parts, Table
from parity.golden.records import LOOP
from parity.golden.sketch import bin_norms, geometry
from tests.support.made import REFERENCE, tensor_record

SHAPES = ((2, 3), (4, 40, 24), (5,), ())
PORTS = (
    *("a:in.x", "a:in.z", "a:out", "a:out@read", "a.b:in.x", "a.b:out@image", "a.b:out@padding", "a.c:out"),
    *(f"{LOOP}:latents.before", f"{LOOP}:noise_pred", f"{LOOP}:latents.after"),
)
HOW = ("same", "near", "far", "nan", "both nan", "none", "missing", "shape", "value", "one value", "moments")


def record_of(key: Key, x: np.ndarray, how: str) -> Record:
    made = tensor_record(key, x, value=how == "value")
    return replace(made, sketch=None) if how == "moments" else made


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[StepRecords, StepRecords]]:
    other_names = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    plan = [(port, draw(st.sampled_from(SHAPES)), draw(st.booleans())) for port in PORTS]
    steps = []
    for step in range(draw(st.integers(1, 3))):
        ours, theirs, floors = [], [], {}
        for port, shape, floored in plan:
            how = draw(st.sampled_from(HOW))
            key = Key("transformer", step, "" if port.startswith(LOOP) else "cond", port)
            named = {"a:in.x": "a:in.y", "a.b:in.x": "a.b:in.y", "a.c:out": "a.c:out.0"} if other_names else {}
            own = replace(key, site=named.get(port, port))
            x = rng.standard_normal(shape).astype(np.float32)
            y = x + np.float32({"near": 1e-6, "far": 1.0}.get(how, 0.0)) * rng.standard_normal(shape).astype(np.float32)
            if how in ("nan", "both nan") and x.size:
                y.reshape(-1)[0] = math.nan
                x = y if how == "both nan" else x
            ours.append(record_of(key, x, how))
            if how == "shape":
                y = rng.standard_normal((7, *shape)).astype(np.float32)
            if how != "missing":
                other = Record(own, "none") if how == "none" else record_of(own, y, "" if how == "one value" else how)
                theirs.append(other)
            if floored:
                g = geometry(x.shape)
                held = ours[-1].sketch
                bins = None if held is None else np.abs(bin_norms(held, g) * 1e-5).astype(np.float32)
                bins = None if bins is None or not np.isfinite(bins).all() else bins
                floors[key] = Floor(1e-5 * max(1.0, float(np.nan_to_num(np.linalg.norm(x)))), bins)
        steps.append((StepRecords(step, tuple(ours), floors), StepRecords(step, tuple(theirs))))
    return steps


def alike(a: SiteDiff, b: SiteDiff) -> None:
    assert (a.key, a.shapes, a.dtypes, a.nonfinite, a.frame, a.rows) == (
        b.key, b.shapes, b.dtypes, b.nonfinite, b.frame, b.rows)  # fmt: skip
    assert (a.birth, a.verdict, a.note, a.called) == (b.birth, b.verdict, b.note, b.called), a.key
    for name in ("rel_l2", "floor", "ratio"):
        x, y = getattr(a.distance, name), getattr(b.distance, name)
        assert x == pytest.approx(y, rel=1e-9, nan_ok=True), (name, a.key)
    assert a.cosine == pytest.approx(b.cosine, rel=1e-9, abs=1e-9, nan_ok=True)
    assert a.bins == pytest.approx(b.bins, rel=1e-9, nan_ok=True)
    assert (a.max_abs, a.linf_ratio) == pytest.approx((b.max_abs, b.linf_ratio), nan_ok=True)


def on_disk(folder: Path, steps: list[StepRecords]) -> Golden:
    with GoldenWriter(folder, REFERENCE, overwrite=True) as writer:
        for step in steps:
            writer.write_step(step)
    return Golden.open(folder)


@settings(deadline=None, max_examples=40)
@given(made=runs(), strict=st.booleans())
def test_columns_judge_as_sites_do(tmp_path_factory: pytest.TempPathFactory, made: list[tuple], strict: bool) -> None:
    folder = tmp_path_factory.mktemp("goldens")
    sides = [on_disk(folder / str(i), [pair[i] for pair in made]) for i in (0, 1)]
    parts = (Parts(), Parts())
    slow, quick, sites = Judge(strict_sites=strict), ManyJudge(Judge(strict_sites=strict)), Sites()
    for step in sides[0].steps:
        strict_read = [side.read_step(step) for side in sides]
        tables = [side.read_step(step, of) for side, of in zip(sides, parts, strict=True)]
        for a, b in zip(strict_read, tables, strict=True):
            assert isinstance(b.records, Table)
            assert repr(a.records) == repr(tuple(b.records))
            assert repr(dict(a.floors)) == repr(dict(b.floors))
        expected, found = slow.step(*strict_read), quick.step(*tables)
        assert found is not None
        sites.add(found.columns)
        for a, b in zip(expected, list(sites)[-len(expected) :], strict=True):
            alike(a, b)
        assert [d.key for d in found.loop] == [d.key for d in expected if d.key.module == LOOP]
        assert slow.dirty == quick.judge.dirty
