"""Shards add up to the whole, disjoint steps stand side by side, everything else is refused and leaves nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import UsageError
from parity.golden import (
    Floor,
    Golden,
    GoldenWriter,
    Key,
    Moments,
    Provenance,
    Record,
    StepRecords,
    geometry,
    merge,
    sketch,
    verify,
)
from parity.golden.disk.merge import Source, add_moments, add_sketches, merge_step, merged_order, plan_merge

Make = Callable[..., StepRecords]
KEY = Key("transformer", 0, "cond", "a:out")


def shard_record(
    make_moments: Callable[[np.ndarray], Moments], x: np.ndarray, start: int, stop: int, axis: int = 0, key: Key = KEY
) -> Record:
    """What the process that holds `start:stop` of an axis of `x` records."""
    block = x.take(range(start, stop), axis)
    first = tuple(start if a == axis else 0 for a in range(x.ndim))
    view = geometry(x.shape)
    return Record(
        key,
        "tensor",
        x.shape,
        x.dtype.name,
        "",
        (view.rows, view.channels),
        make_moments(block),
        sketch(block, shape=x.shape, start=first),
    )


@given(
    shape=st.sampled_from([(6, 50, 30), (40, 80), (7, 3, 5), (4, 0, 3), (5,), (3000,)]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_sketches_and_moments_of_shards_are_those_of_the_whole(
    make_moments: Callable[[np.ndarray], Moments], shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[axis]), max_size=3)))
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(10.0 ** (seed % 9 - 4))
    bounds = [0, *cuts, shape[axis]]
    shards = [StepRecords(0, (shard_record(make_moments, x, a, b, axis),)) for a, b in itertools.pairwise(bounds)]
    merged = merge_step(shards, [str(i) for i in range(len(shards))]).records[0]
    whole = shard_record(make_moments, x, 0, shape[axis], axis)
    assert merged.sketch is not None
    assert whole.sketch is not None
    assert np.linalg.norm(merged.sketch - whole.sketch) <= 1e-5 * np.linalg.norm(whole.sketch)
    ours, theirs = merged.moments, whole.moments
    assert ours is not None
    assert theirs is not None
    assert (ours.count, ours.nan, ours.inf, ours.min, ours.max) == (
        theirs.count,
        theirs.nan,
        theirs.inf,
        theirs.min,
        theirs.max,
    )
    assert math.isclose(ours.mean, theirs.mean, rel_tol=1e-9, abs_tol=1e-9 * theirs.l2)
    assert math.isclose(ours.l2, theirs.l2, rel_tol=1e-9)


def test_moments_of_shards_without_finite_elements_do_not_count() -> None:
    nothing = Moments(4, 3, 1, 0.0, 0.0, 0.0, 0.0)
    some = Moments(3, 1, 0, 2.0, 4.0, 3.0, 5.0)
    assert add_moments([nothing, some]) == Moments(7, 4, 1, 2.0, 4.0, 3.0, 5.0)
    assert add_moments([nothing, nothing]) == Moments(8, 6, 2, 0.0, 0.0, 0.0, 0.0)


def test_nan_and_inf_in_a_sketch_propagate() -> None:
    a, b = np.float32([1, np.nan, np.inf, np.inf]), np.float32([1, 1, 1, -np.inf])
    np.testing.assert_array_equal(add_sketches([a, b]), np.float32([2, np.nan, np.inf, np.nan]))


def test_order_of_execution_is_kept() -> None:
    a, b, c, d, e = (Key("t", 0, "", name) for name in "abcde")
    assert merged_order([[a, c, d], [a, b, c, e]]) == [a, b, c, d, e]
    assert merged_order([[d, a], [a, b, c], [d, e, c]]).index(c) == 4
    assert merged_order([[], [a, b]]) == [a, b]
    assert merged_order([[a, b, c], [c, a]]) == [a, b, c]


@given(st.lists(st.permutations("abcdef").map(lambda p: sorted(p[:4])), min_size=1, max_size=4))
def test_lists_in_one_order_merge_into_that_order(lists: Sequence[list[str]]) -> None:
    keys = [[Key("t", 0, "", name) for name in names] for names in lists]
    order = merged_order(keys)
    assert sorted(order) == sorted({key for part in keys for key in part})
    for part in keys:
        assert [key for key in order if key in part] == part


def source(provenance: Provenance, name: str, steps: tuple[int, ...], shard: tuple[int, int] = (0, 1)) -> Source:
    return Source(name, replace(provenance, shard=shard, devices=(name,)), steps, True)


def test_the_plan(provenance: Provenance) -> None:
    plan = plan_merge(
        [
            source(provenance, "b1", (2, 3), (1, 2)),
            source(provenance, "a0", (0, 1), (0, 2)),
            source(provenance, "b0", (2, 3), (0, 2)),
            source(provenance, "a1", (0, 1), (1, 2)),
        ]
    )
    assert dict(plan.steps) == {0: (1, 3), 1: (1, 3), 2: (2, 0), 3: (2, 0)}
    assert list(plan.steps) == [0, 1, 2, 3]
    assert plan.provenance == replace(provenance, devices=("b1", "a0", "b0", "a1"))


def test_what_the_plan_refuses(provenance: Provenance) -> None:
    def refused(said: str, *sources: Source) -> None:
        with pytest.raises(UsageError, match=said):
            plan_merge(sources)

    a, b = source(provenance, "a", (0, 1), (0, 2)), source(provenance, "b", (0, 1), (1, 2))
    plan_merge([a, b])
    refused("nothing to merge")
    refused("b: was not finished", a, replace(b, complete=False))
    refused("a and c cannot be merged: both hold step 0 of shard 0", a, b, replace(a, name="c"))
    refused("step 1 lacks shard 1 of 2", a, replace(b, steps=(0,)))
    refused("step 0 lacks shard 0 of 2", b)
    refused("one is of 2 shards, the other of 1", a, source(provenance, "c", (2,)))
    refused("both hold step 4$", source(provenance, "c", (3, 4)), source(provenance, "d", (4,)))
    for change, said in (
        ({"settings": {**provenance.settings, "dtype": "bfloat16"}}, r"settings\[dtype\]: 'float32' and 'bfloat16'"),
        ({"weights": {}}, r"weights\[proj.weight\]"),
        ({"seed": 8}, "seed: 7 and 8"),
        ({"side": "candidate"}, "side"),
    ):
        other = replace(b, provenance=replace(b.provenance, **change))  # type: ignore[arg-type]
        refused(f"a and b cannot be merged: they are of different runs, with {said}", a, other)


def write(folder: Path, provenance: Provenance, *steps: StepRecords) -> Path:
    with GoldenWriter(folder, provenance) as writer:
        for step in steps:
            writer.write_step(step)
    return folder


def test_disjoint_steps_stand_side_by_side(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    a = write(tmp_path / "a", provenance, make_step(-1), make_step(0))
    b = write(tmp_path / "b", provenance, make_step(1), make_step(2))
    whole = write(tmp_path / "whole", provenance, *(make_step(step) for step in (-1, 0, 1, 2)))
    merge(tmp_path / "out", [b, a])
    assert verify(tmp_path / "out") == []
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }


def test_shards_of_two_processes(
    tmp_path: Path,
    provenance: Provenance,
    make_moments: Callable[[np.ndarray], Moments],
    make_record: Callable[..., Record],
) -> None:
    """One tensor is sharded, one is replicated, one was seen by one process only, and a scalar by both."""
    x = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)
    same = make_record(Key("transformer", 0, "", "loop:noise_pred"), x[:4], value=True)
    own = make_record(Key("transformer", 0, "", "loop:latents"), x[:5])
    scalar = Record(Key("transformer", 0, "", "loop:sigma"), "scalar", dtype="float", value=math.nan)
    parts = []
    for index, (start, stop) in enumerate([(0, 13), (13, 40)]):
        floor = Floor(3.0 + index, np.float32([3 + index, 0]), 1.0)
        records = (scalar, shard_record(make_moments, x, start, stop), same, *((own,) if index else ()))
        floors = {KEY: floor, same.key: Floor(2.0)}
        shard = replace(provenance, shard=(index, 2), devices=(f"host {index}",))
        parts.append(write(tmp_path / str(index), shard, StepRecords(0, records, floors)))
    merge(tmp_path / "out", parts[::-1])
    golden = Golden.open(tmp_path / "out")
    assert verify(tmp_path / "out") == []
    assert golden.provenance.shard == (0, 1)
    assert golden.provenance.devices == ("host 1", "host 0")
    step = golden.read_step(0)
    assert [record.key.site for record in step.records] == ["loop:sigma", "a:out", "loop:noise_pred", "loop:latents"]
    sketched = step.records[1].sketch
    assert sketched is not None
    np.testing.assert_allclose(sketched, sketch(x), atol=1e-5 * np.linalg.norm(x))
    assert step.records[1].moments is not None
    assert step.records[1].moments.count == x.size
    np.testing.assert_array_equal(step.records[2].value, x[:4])
    assert step.floors[KEY].l2 == 5.0
    bins = step.floors[KEY].bins
    assert bins is not None
    np.testing.assert_array_equal(bins, [5, 0])
    assert step.floors[KEY].local_l2 == math.sqrt(2)
    assert step.floors[same.key].l2 == 2.0


def test_conflicts_of_records_are_refused_with_both_names_and_leave_nothing(
    tmp_path: Path, provenance: Provenance, make_moments: Callable[[np.ndarray], Moments]
) -> None:
    x = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32)
    left, right = shard_record(make_moments, x, 0, 20), shard_record(make_moments, x, 20, 40)
    whole = shard_record(make_moments, x, 0, 40)
    floor, other_floor = {KEY: Floor(1.0)}, {KEY: Floor(2.0)}

    def refused(said: str, a: Record, b: Record, floors: Sequence[dict[Key, Floor]] = ({}, {})) -> None:
        parts = [
            write(
                tmp_path / f"{said} {i}",
                replace(provenance, shard=(i, 2)),
                StepRecords(-1, ()),
                StepRecords(0, (record,), floors[i]),
            )
            for i, record in enumerate((a, b))
        ]
        with pytest.raises(UsageError, match=said) as caught:
            merge(tmp_path / "out", parts)
        assert "a:out" in str(caught.value)
        assert all(str(part) in str(caught.value) for part in parts)
        assert not (tmp_path / "out").exists()

    refused("3200 elements overlap", whole, right)
    refused("3200 elements leave a gap", left, shard_record(make_moments, x, 20, 39))
    refused("what they hold differs", whole, shard_record(make_moments, x + 1, 0, 40))
    refused("dtype is 'float32' in one and 'float64'", left, replace(right, dtype="float64"))
    refused("the shape is", left, replace(right, shape=(80, 40), frame=(80, 40)))
    refused("values of shards do not add up", left, replace(right, value=x))
    refused("no moments", left, replace(right, moments=None))
    refused("some have none", left, replace(right, sketch=None))
    refused("kind is 'tensor' in one and 'none'", left, Record(KEY, "none"))
    refused("hold differs", Record(KEY, "scalar", value=1.0), Record(KEY, "scalar", value=True))
    refused("floors differ", whole, whole, (floor, other_floor))
    refused("different row bins", left, right, (floor, {KEY: Floor(1.0, np.ones(3, np.float32))}))


def test_a_damaged_part_is_not_merged(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    a = write(tmp_path / "a", provenance, make_step(0))
    b = write(tmp_path / "b", provenance, make_step(1))
    content = (b / "step-0001.safetensors").read_bytes()
    (b / "step-0001.safetensors").write_bytes(content[:-1] + b"\0")
    with pytest.raises(UsageError, match=r"b/step-0001.safetensors.*checksum"):
        merge(tmp_path / "out", [a, b])
    assert not (tmp_path / "out").exists()


def test_a_golden_is_not_merged_over(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    a = write(tmp_path / "a", provenance, make_step(0))
    b = write(tmp_path / "b", provenance, make_step(1))
    with pytest.raises(UsageError, match="there is a golden here already"):
        merge(a, [a, b])
    assert Golden.open(a).steps == (0,)


def test_a_merge_goes_on_with_its_own_beginning_and_with_nothing_else(
    tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    steps = [make_step(0), make_step(1)]
    parts = [write(tmp_path / str(i), provenance, step) for i, step in enumerate(steps)]
    for begun, message in ((steps[0], ""), (make_step(0, sites=1), "there is a golden here already")):
        out = tmp_path / f"out-{len(begun.records)}"
        GoldenWriter(out, provenance).write_step(begun)
        if message:
            with pytest.raises(UsageError, match=message):
                merge(out, parts)
        else:
            merge(out, parts)
        assert Golden.open(out).complete == (not message)
