"""Shards add up to the whole and disjoint steps are put together; anything else is refused and leaves nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Floor, Golden, GoldenWriter, Key, Record, StepRecords, geometry, merge, sketch
from parity.golden.disk.merge import Source, plan_merge
from parity.golden.values import moments_of
from tests.support.made import PROVENANCE, mixed_step, scalar, tensor, write

KEY = Key("transformer", 0, "cond", "a:out")
X = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)


def shard(x: np.ndarray, start: int, stop: int, axis: int = 0) -> Record:
    """What the process that has `start:stop` of an axis of `x` records."""
    block = x.take(range(start, stop), axis)
    first = tuple(start if a == axis else 0 for a in range(x.ndim))
    frame = (geometry(x.shape).rows, geometry(x.shape).channels)
    sketched = sketch(block, shape=x.shape, start=first)
    return Record(KEY, "tensor", x.shape, x.dtype.name, "", frame, moments_of(block), sketched)


# --- the plan --------------------------------------------------------------------------------------------------


def source(name: str, steps: tuple[int, ...], shard: tuple[int, int] = (0, 1), **changes: object) -> Source:
    provenance = replace(PROVENANCE, shard=shard, devices=(name,), **changes)  # type: ignore[arg-type]
    return Source(name, provenance, steps, True)


A, B = source("a", (0, 1), (0, 2)), source("b", (0, 1), (1, 2))


@pytest.mark.parametrize(
    ("sources", "word"),
    [
        ([], "nothing to merge"),
        ([A, replace(B, complete=False)], "b: was not finished"),
        ([A, B, replace(A, name="c")], "a and c .*both hold step 0 of shard 0"),
        ([A, replace(B, steps=(0,))], "step 1 lacks shard 1 of 2"),
        ([B], "step 0 lacks shard 0 of 2"),
        ([A, source("c", (2,))], "of 2 shards, the other of 1"),
        (
            [A, source("b", (0, 1), (1, 2), settings={**PROVENANCE.settings, "dtype": "bfloat16"})],
            r"a and b .*settings\[dtype\]",
        ),
    ],
)
def test_sources_that_do_not_belong_together_are_refused(sources: list[Source], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        plan_merge(sources)


# --- goldens ---------------------------------------------------------------------------------------------------


def halves(folder: Path, *steps: tuple[StepRecords, ...]) -> list[str]:
    """A golden for each of these lists of steps, all of one run."""
    return [write(folder / str(i), PROVENANCE, some) for i, some in enumerate(steps)]


def test_disjoint_steps_are_put_together(tmp_path: Path) -> None:
    steps = [mixed_step(step) for step in (-1, 0, 1, 2)]
    a, b = halves(tmp_path, tuple(steps[:2]), tuple(steps[2:]))
    whole = Path(write(tmp_path / "whole", PROVENANCE, steps))
    merge(tmp_path / "out", [b, a])
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }


def test_shards_of_three_processes_are_added(tmp_path: Path) -> None:
    """One tensor is sharded, one is replicated, one was seen by some only, and a scalar by all."""
    same, lone = tensor("loop:noise_pred", X[:4], branch="", held=True), tensor("loop:latents", X[:5], branch="")
    sigma = scalar("loop:sigma", math.nan, branch="")
    parts = []
    for index, (start, stop) in enumerate([(0, 13), (13, 40), (40, 40)]):
        floors = {KEY: Floor(3.0 + index, np.float32([3 + index, 0]), 1.0), same.key: Floor(2.0)}
        step = StepRecords(0, (sigma, shard(X, start, stop), same, *((lone,) if index else ())), floors)
        provenance = replace(PROVENANCE, shard=(index, 3), devices=(f"host {index}",))
        parts.append(write(tmp_path / str(index), provenance, [step]))
    merge(tmp_path / "out", parts[::-1])
    golden = Golden.open(tmp_path / "out")
    assert (golden.provenance.shard, golden.provenance.devices) == ((0, 1), ("host 2", "host 1", "host 0"))
    step = golden.read_step(0)
    assert [record.key.site for record in step.records] == ["loop:sigma", "a:out", "loop:noise_pred", "loop:latents"]
    np.testing.assert_allclose(step.records[1].sketch, sketch(X), atol=1e-5 * np.linalg.norm(X))
    ours, whole = step.records[1].moments, moments_of(X)
    assert ours is not None
    assert replace(ours, mean=0, l2=0) == replace(whole, mean=0, l2=0)
    assert (ours.mean, ours.l2) == pytest.approx((whole.mean, whole.l2), rel=1e-9)
    np.testing.assert_array_equal(step.records[2].value, X[:4])
    floor = step.floors[KEY]
    assert (floor.l2, floor.local_l2, step.floors[same.key].l2) == pytest.approx((math.sqrt(50), math.sqrt(3), 2.0))
    assert floor.bins is not None
    assert floor.bins.tolist() == pytest.approx([math.sqrt(50), 0.0])


LEFT, RIGHT, WHOLE = shard(X, 0, 20), shard(X, 20, 40), shard(X, 0, 40)


@pytest.mark.parametrize(
    ("a", "b", "floors", "word"),
    [
        (WHOLE, RIGHT, (None, None), "3200 elements overlap"),
        (LEFT, shard(X, 20, 39), (None, None), "3200 elements leave a gap"),
        (WHOLE, shard(X + 1, 0, 40), (None, None), "differs"),
        (LEFT, replace(RIGHT, dtype="float64"), (None, None), "dtype is 'float32' in one and 'float64'"),
        (WHOLE, WHOLE, (Floor(1.0), Floor(2.0)), "floors differ"),
        (LEFT, RIGHT, (Floor(1.0), Floor(1.0, np.ones(3, np.float32))), "different row bins"),
    ],
)
def test_records_in_conflict_are_refused_and_leave_nothing(
    tmp_path: Path, a: Record, b: Record, floors: tuple[Floor | None, Floor | None], word: str
) -> None:
    parts = []
    for i, (record, floor) in enumerate(zip((a, b), floors, strict=True)):
        steps = [StepRecords(-1, ()), StepRecords(0, (record,), {} if floor is None else {KEY: floor})]
        parts.append(write(tmp_path / str(i), replace(PROVENANCE, shard=(i, 2)), steps))
    with pytest.raises(UsageError, match=word) as caught:
        merge(tmp_path / "out", parts)
    assert all(text in str(caught.value) for text in ("a:out", *parts))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_own", [True, False])
def test_a_merge_resumes_its_own_beginning_only(tmp_path: Path, is_own: bool) -> None:
    parts = halves(tmp_path, (mixed_step(0),), (mixed_step(1),))
    GoldenWriter(tmp_path / "out", PROVENANCE).write_step(mixed_step(0, sites=3 if is_own else 1))
    if is_own:
        merge(tmp_path / "out", parts)
    else:
        with pytest.raises(UsageError, match="there is a golden here already"):
            merge(tmp_path / "out", parts)
    assert Golden.open(tmp_path / "out").complete is is_own
