"""Shards add up to the whole; what does not belong together is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Golden, verify
from parity.records import Floor, Key, Provenance, Record, StepRecords
from parity.sketch import geometry, moments_of, sketch
from tests.support.made import PROVENANCE, assert_same, mixed_step, scalar, tensor, write

KEY = Key("transformer", 0, "cond", "a:out")
X = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)


def shard(x: np.ndarray, start: int, stop: int, axis: int = 0) -> Record:
    """What the process that has `start:stop` of an axis of `x` records."""
    block = x.take(range(start, stop), axis)
    first = tuple(start if a == axis else 0 for a in range(x.ndim))
    frame = (geometry(x.shape).rows, geometry(x.shape).channels)
    sketched = sketch(block, shape=x.shape, start=first)
    return Record(KEY, "tensor", x.shape, x.dtype.name, "", frame, moments_of(block), sketched)


def shards(folder: Path, *shares: tuple[Provenance, list[StepRecords]]) -> Path:
    """A golden of shards."""
    for index, (provenance, steps) in enumerate(shares):
        write(folder / f"shard-{index}", provenance, steps)
    return folder


def of(index: int, count: int, settings: Mapping[str, str] = PROVENANCE.settings) -> Provenance:
    return replace(PROVENANCE, shard=(index, count), devices=(f"host {index}",), settings=settings)


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (of(0, 2), "shard-1: it is shard 0 of 2"),
        (of(1, 3), "shard-1: it is shard 1 of 3"),
        (of(1, 2, settings={**PROVENANCE.settings, "dtype": "bfloat16"}), r"shard-0 and .*shard-1 .*settings\[dtype\]"),
        (None, "shard-1: there is no golden here"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path, second: Provenance | None, word: str) -> None:
    rest = [] if second is None else [(second, [mixed_step(0)])]
    folder = shards(tmp_path / "out", (of(0, 2), [mixed_step(0)]), *rest)
    with pytest.raises(UsageError, match=word):
        Golden.open(folder)
    assert verify(folder)


def test_a_killed_process_leaves_the_steps_that_all_shards_hold(tmp_path: Path) -> None:
    whole = (of(0, 2), [mixed_step(0), mixed_step(1)])
    golden = Golden.open(shards(tmp_path / "out", whole, (of(1, 2), [mixed_step(0)])))
    assert (golden.steps, golden.complete) == ((0,), False)
    assert_same(mixed_step(0), golden.read_step(0))


def test_shards_of_three_processes_are_added(tmp_path: Path) -> None:
    """One tensor is sharded, one is replicated, one was seen by some only, and a scalar by all."""
    same, lone = tensor("loop:noise_pred", X[:4], branch="", held=True), tensor("loop:latents", X[:5], branch="")
    sigma = scalar("loop:sigma", math.nan, branch="")
    shares = []
    for index, (start, stop) in enumerate([(0, 13), (13, 40), (40, 40)]):
        floors = {KEY: Floor(3.0 + index, np.float32([3 + index, 0])), same.key: Floor(2.0)}
        step = StepRecords(0, (sigma, shard(X, start, stop), same, *((lone,) if index else ())), floors)
        shares.append((of(index, 3), [step]))
    golden = Golden.open(shards(tmp_path / "out", *shares))
    assert (golden.provenance.shard, golden.provenance.devices) == ((0, 1), ("host 0", "host 1", "host 2"))
    assert not verify(tmp_path / "out")
    step = golden.read_step(0)
    assert [record.key.site for record in step.records] == ["loop:sigma", "a:out", "loop:noise_pred", "loop:latents"]
    np.testing.assert_allclose(step.records[1].sketch, sketch(X), atol=1e-5 * np.linalg.norm(X))
    ours, whole = step.records[1].moments, moments_of(X)
    assert ours is not None
    assert replace(ours, mean=0, l2=0) == replace(whole, mean=0, l2=0)
    assert (ours.mean, ours.l2) == pytest.approx((whole.mean, whole.l2), rel=1e-9)
    np.testing.assert_array_equal(step.records[2].value, X[:4])
    floor = step.floors[KEY]
    assert (floor.l2, step.floors[same.key].l2) == pytest.approx((math.sqrt(50), 2.0))
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
def test_records_in_conflict_are_refused(
    tmp_path: Path, a: Record, b: Record, floors: tuple[Floor | None, Floor | None], word: str
) -> None:
    shares = []
    for i, (record, floor) in enumerate(zip((a, b), floors, strict=True)):
        steps = [StepRecords(-1, ()), StepRecords(0, (record,), {} if floor is None else {KEY: floor})]
        shares.append((of(i, 2), steps))
    golden = Golden.open(shards(tmp_path / "out", *shares))
    with pytest.raises(UsageError, match=word) as caught:
        golden.read_step(0)
    assert all(text in str(caught.value) for text in ("a:out", "shard-0", "shard-1"))
