"""Floors: the largest difference that any variant shows, never nothing, and enough for an innocent backend."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity.compare.judge import Judge
from parity.floors import HALF_ULP, least
from parity.hooks.reduce import on_jax as reduce_jax, on_torch as reduce_torch
from parity.hooks.sites import plan_sites
from parity.paths import floors
from parity.paths.floors import Variant, make_variants, with_floors
from parity.paths.loop import denoise, prepare
from parity.records import Floor, Key, Moments, Record, StepRecords
from parity.sketch import Geometry, bin_norms, distance, geometry, sketch, value_record
from tests.paths.sides import shared

SITE = Key("transformer", 0, "cond", "block:out")


def record(x: np.ndarray, key: Key = SITE, dtype: str = "float32") -> Record:
    g = geometry(x.shape)
    moments = Moments(x.size, 0, 0, float(x.min()), float(x.max()), float(x.mean()), float(np.linalg.norm(x)))
    return Record(key, "tensor", x.shape, dtype, "", (g.rows, g.channels), moments, sketch(x))


def reduced(x: np.ndarray, found: Any) -> Record:
    g = geometry(x.shape)
    return Record(SITE, "tensor", x.shape, "float32", "", (g.rows, g.channels), *found)


def noise(seed: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal((1, 300, 40))


def floors_of(
    monkeypatch: pytest.MonkeyPatch, ours: list[Record], *others: list[Record], step: int = 0
) -> dict[Key, Floor]:
    """The floors of one made step beside made variants."""
    monkeypatch.setattr(floors, "denoise", lambda loop, *ignored, **options: iter([StepRecords(step, tuple(loop))]))
    variant: Any = Variant("other", None, lambda step: contextlib.nullcontext())  # type: ignore[arg-type]
    walks: Any = [(variant, other) for other in others]
    steps = with_floors(iter([StepRecords(step, tuple(ours))]), walks, None)
    return dict(next(iter(steps)).floors)


@pytest.mark.parametrize(("times", "top"), [([1000.0], 1000), ([20.0] * 4, 1000), ([0.02] * 8, 1), ([1.09], 1)])
@pytest.mark.parametrize("site", ["loop:timestep", ":in.timestep", ":in.t"])
def test_a_timestep_is_rounded_as_the_largest_of_its_schedule(times: list[float], top: int, site: str) -> None:
    held = np.array(times) if site != "loop:timestep" else np.array(times[0])
    floor, other = (least(record(held, Key("transformer", 0, "", name))) for name in (site, ":in.scale"))
    assert other.l2 == pytest.approx(4 * HALF_ULP * np.linalg.norm(held), rel=0.05)  # of any other tensor
    rounded = 2 * HALF_ULP * top * np.sqrt(held.size)
    assert floor.l2 == pytest.approx(rounded if site == "loop:timestep" else max(rounded, other.l2))


def test_the_floor_is_the_largest_of_the_variants_as_a_whole_and_in_each_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(0)
    a, b = x.copy(), x.copy()
    a[:, :150] += noise(1, 1e-3)[:, :150]
    b[:, 150:] += noise(2, 1e-4)[:, 150:]
    floor = floors_of(monkeypatch, [record(x)], [record(a)], [record(b)])[SITE]
    g = geometry(x.shape)
    apart = [distance(sketch(x), sketch(y), g) for y in (a, b)]
    assert floor.l2 == pytest.approx(max(apart))
    assert floor.l2 > 5 * min(apart)
    assert floor.bins is not None
    each = [bin_norms(sketch(y).astype(np.float64) - sketch(x).astype(np.float64), g) for y in (a, b)]
    # No bin is taken to be more exact than the tensor is: at least an equal share of its floor, or its values' share.
    held = bin_norms(sketch(x), g)
    share = floor.l2 * np.maximum(held / np.linalg.norm(held), 1 / np.sqrt(held.size))
    expected = np.maximum(np.maximum(*each), share)
    assert np.allclose(floor.bins, expected, rtol=1e-5, atol=2 * HALF_ULP * float(np.linalg.norm(x)))
    assert (np.maximum(*each)[:20] > share[:20]).any()  # a variant's own
    assert (np.maximum(*each)[-20:] < share[-20:]).all()  # the share


def test_where_values_are_held_the_largest_element_has_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, z = noise(0), noise(0), noise(0)
    y[0, 7, 3] += 1e-3
    z[0, 8, 4] -= 3e-3
    held = [dataclasses.replace(record(v), value=v) for v in (x, y, z)]
    assert floors_of(monkeypatch, held[:1], held[1:2], held[2:])[SITE].linf == pytest.approx(3e-3)
    z[0, 0, 0] = np.nan  # says nothing of the others
    broken = dataclasses.replace(held[2], value=z)
    assert floors_of(monkeypatch, held[:1], held[1:2], [broken])[SITE].linf == pytest.approx(3e-3)
    least = floors_of(monkeypatch, held[:1], held[:1])[SITE].linf
    assert least == pytest.approx(2 * HALF_ULP * np.abs(x).max())  # noise times a number of the schedule
    assert np.isnan(floors_of(monkeypatch, [record(x)], [record(y)])[SITE].linf)


@pytest.mark.parametrize(("dtype", "rounded"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_the_least_floor_of_16_bits_holds_what_storing_rounds(dtype: str, rounded: torch.dtype) -> None:
    """Noise that one side draws in 16 bits is that of the other, rounded: nothing computes it."""
    x = torch.randn(1, 96, 40, generator=torch.Generator().manual_seed(0))
    narrow, wide = (value_record(Key("t", 0, "", "a:out"), y.float().numpy(), dtype) for y in (x.to(rounded), x))
    reference = StepRecords(0, (narrow,), {narrow.key: least(narrow)})
    (found,) = Judge().step(reference, StepRecords(0, (wide,)))
    assert found.verdict == "pass", (found.distance, max(found.bins))
    (other,) = Judge().step(reference, StepRecords(0, (value_record(wide.key, 1.02 * x.numpy(), dtype),)))
    assert other.verdict == "fail"


def test_the_least_floor_is_above_half_an_ulp_and_far_below_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(0)
    floor = floors_of(monkeypatch, [record(x)], [record(x)])[SITE]
    assert HALF_ULP < floor.l2 / np.linalg.norm(x) < 1e-6
    assert floor.bins is not None
    assert (floor.bins > 0).all()


@pytest.mark.slow
def test_variants_leave_the_reference_as_it_was() -> None:
    side = shared("torch")
    before = next(iter(denoise(prepare(side), None)))
    for variant in make_variants(side)[:2]:
        with variant.around(0):
            list(denoise(prepare(variant.side), None))
    after = next(iter(denoise(prepare(side), None)))
    for ours, theirs in zip(before.records, after.records, strict=True):
        assert np.array_equal(ours.value, theirs.value)


@pytest.mark.slow
def test_every_site_of_an_innocent_candidate_is_within_three_floors() -> None:
    side = shared("torch")
    plan = plan_sites(["", *side.modules], "all")
    walks = [(variant, prepare(variant.side)) for variant in make_variants(side)]
    step = next(iter(with_floors(denoise(prepare(side), plan), walks, plan)))
    candidate = {r.key: r for r in next(iter(denoise(prepare(shared("torchax")), plan))).records}
    ratios: dict[Key, float] = {}
    for ours in step.records:
        theirs = candidate.get(ours.key)
        if ours.sketch is None or theirs is None or theirs.sketch is None:
            continue
        apart = distance(ours.sketch, theirs.sketch, Geometry(*ours.frame))
        if apart:
            floor = step.floors[ours.key].l2
            ratios[ours.key] = apart / floor if floor else np.inf
    assert len(ratios) > 500
    worst = max(ratios, key=lambda key: ratios[key])
    assert ratios[worst] < 3, f"{worst}: {ratios[worst]:.2f} times its floor"


@pytest.mark.parametrize("shape", [(1, 184, 128), (1, 4000, 64), (1, 20000, 256)])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_bit_equal_tensors_are_within_the_least_floor(shape: tuple[int, ...], offset: float) -> None:
    """The two add up in another order, in float32; a floor of half an ulp of the value leaves no room for that."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + np.float32(offset)
    ours = reduced(x, reduce_torch.to_host_many([reduce_torch.reduce(torch.from_numpy(x))])[0])
    theirs = reduced(x, reduce_jax.to_host(jax.device_get(jax.jit(reduce_jax.reduce)(jnp.asarray(x)))))
    reference = StepRecords(0, (ours,), {ours.key: least(ours)})
    (found,) = Judge().step(reference, StepRecords(0, (theirs,)))
    assert found.birth is None, (found.distance.ratio, max(found.bins, default=0.0))
