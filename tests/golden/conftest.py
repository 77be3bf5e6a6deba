"""Records to write: small, of every kind, and the same for the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from parity.golden import Floor, Key, Moments, Provenance, Record, StepRecords, geometry, sketch


def moments_of(x: np.ndarray) -> Moments:
    values = np.asarray(x, np.float64)
    finite = values[np.isfinite(values)]
    return Moments(
        x.size,
        int(np.isnan(values).sum()),
        int(np.isinf(values).sum()),
        float(finite.min()) if finite.size else 0.0,
        float(finite.max()) if finite.size else 0.0,
        float(finite.mean()) if finite.size else 0.0,
        float(np.linalg.norm(finite)),
    )


def tensor_record(key: Key, x: np.ndarray, *, value: bool = False, dtype: str = "") -> Record:
    view = geometry(x.shape)
    return Record(
        key,
        "tensor",
        x.shape,
        dtype or x.dtype.name,
        "",
        (view.rows, view.channels),
        moments_of(x),
        sketch(x),
        x if value else None,
    )


def step_records(step: int, sites: int = 3, seed: int = 0) -> StepRecords:
    """`sites` tensors, a None, a scalar and a value in bfloat16, with floors."""
    rng = np.random.default_rng((seed, step + 1, sites))
    records = []
    for site in range(sites):
        x = rng.standard_normal((4, 40, 24)).astype(np.float32)
        records.append(tensor_record(Key("transformer", step, "cond", f"blocks.{site}:out"), x, value=site == 0))
    noise = rng.standard_normal((2, 3, 5)).astype(np.float32)
    rounded = (noise.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    records.append(
        tensor_record(Key("transformer", step, "", "loop:noise_pred"), rounded, value=True, dtype="bfloat16")
    )
    records.append(Record(Key("transformer", step, "cond", "blocks.0:in.image_rotary_emb"), "none"))
    records.append(Record(Key("transformer", step, "", "loop:sigma"), "scalar", dtype="float", value=math.nan))
    floors = {record.key: Floor(1e-6, np.full(4, 1e-7, np.float32), 2e-6) for record in records[:sites]}
    return StepRecords(step, tuple(records), floors)


@pytest.fixture(scope="session")
def make_step() -> Callable[..., StepRecords]:
    return step_records


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    return tensor_record


@pytest.fixture(scope="session")
def make_moments() -> Callable[[np.ndarray], Moments]:
    return moments_of


@pytest.fixture(scope="session")
def provenance() -> Provenance:
    return Provenance(
        side="reference",
        backend="torch",
        model="tiny-hunyuan-video-1.5",
        settings={"dtype": "float32", "attention.mask": "exact"},
        seed=7,
        steps=3,
        weights={"proj.weight": "0123456789abcdef"},
        inputs={"latents": "fedcba9876543210"},
        versions={"numpy": np.__version__},
        devices=("cpu",),
        command="parity record",
        modules={"blocks": "", "blocks.0": "blocks", "blocks.1": "blocks", "blocks.2": "blocks"},
    )


def _same(a: StepRecords, b: StepRecords) -> None:
    """Every field of every record and floor is the same, bit for bit, and in the same order."""
    assert a.step == b.step
    assert [record.key for record in a.records] == [record.key for record in b.records]
    for ours, theirs in zip(a.records, b.records, strict=True):
        for field in ("kind", "shape", "dtype", "rows", "frame"):
            assert getattr(ours, field) == getattr(theirs, field), (ours.key, field)
        assert repr(ours.moments) == repr(theirs.moments)
        _same_value(ours.sketch, theirs.sketch)
        _same_value(ours.value, theirs.value)
    assert list(a.floors) == list(b.floors)
    for key, floor in a.floors.items():
        numbers = [(repr(f.l2), repr(f.local_l2), repr(f.linf)) for f in (floor, b.floors[key])]
        assert numbers[0] == numbers[1]
        _same_value(floor.bins, b.floors[key].bins)


def _same_value(a: object, b: object) -> None:
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
        assert a.shape == b.shape
        assert np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes() == b.tobytes()
    else:
        assert type(a) is type(b)
        assert repr(a) == repr(b)


@pytest.fixture(scope="session")
def assert_same() -> Callable[[StepRecords, StepRecords], None]:
    return _same
