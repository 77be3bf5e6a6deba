"""What observing promises (docs/how-it-works.md): the result stays, and records compare by name everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.records import Key, Record
from parity.sketch import Geometry, distance
from tests.paths.sides import loop_values, once, shared

ALONE, BATCHED, SHARDED = "dp=1,sp=1,tp=1", "dp=2,sp=1,tp=1", "dp=2,sp=2,tp=2"


@pytest.mark.parametrize(
    ("path", "dtype", "sites"),
    # Compiled, each choice is another program. Eager JAX compiles every operation of each shape: one block, once.
    [
        ("torch", "float32", "all"),
        pytest.param("torchax", "float32", "blocks", marks=pytest.mark.slow),
        pytest.param("torch", "bfloat16", "all", marks=pytest.mark.slow),
        pytest.param("torchax", "float32", "all", marks=pytest.mark.slow),
        pytest.param("torchax", "bfloat16", "all", marks=pytest.mark.slow),
        pytest.param("torchax jit=false", "float32", "transformer_blocks.0*", marks=pytest.mark.slow),
    ],
)
def test_observed_is_bitwise_unobserved(path: str, dtype: str, sites: str) -> None:
    backend, *settings = path.split()
    side = shared(backend, *settings, f"dtype={dtype}")
    unobserved, observed = loop_values(once(side, None)), once(side, sites)
    assert len(observed) > {"all": 1000, "blocks": 200}.get(sites, 20)
    values = loop_values(observed)
    assert values.keys() == unobserved.keys()
    for name, value in unobserved.items():
        apart = np.abs(value.astype(np.float64) - values[name].astype(np.float64)).max()
        assert value.tobytes() == values[name].tobytes(), f"{name}: observing moves it by {apart:.1e}"


@pytest.mark.slow
def test_records_of_jit_and_eager_have_the_same_keys() -> None:
    glob = "transformer_blocks.0*"
    compiled = once(shared("torchax", "dtype=float32"), glob)
    eager = once(shared("torchax", "jit=false", "dtype=float32"), glob)
    assert len(compiled) > 200
    assert list(compiled) == list(eager)
    for key, record in compiled.items():
        other = eager[key]
        assert (record.kind, record.shape, record.dtype, record.rows, record.frame) == (
            *(other.kind, other.shape, other.dtype),
            *(other.rows, other.frame),
        ), key


@pytest.mark.slow
def test_torch_and_torchax_blocks_are_named_alike() -> None:
    reference, candidate = (once(shared(backend, "dtype=float32"), "blocks") for backend in ("torch", "torchax"))
    assert set(reference) == set(candidate)


@pytest.fixture(scope="session")
def on_meshes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Key, Record]]:
    """Block records of one step by mesh, taken in a process of eight host devices."""
    folder = tmp_path_factory.mktemp("meshes")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    meshes = [ALONE, BATCHED, SHARDED]
    subprocess.run(
        [sys.executable, "-m", "tests.paths.record_on_meshes", str(folder), *meshes],
        check=True, env=environment, cwd=root, timeout=600,
    )  # fmt: skip
    return {mesh: _read(folder / f"{i}.npz") for i, mesh in enumerate(meshes)}


def _read(path: Path) -> dict[Key, Record]:
    with np.load(path) as arrays:
        told = json.loads(arrays["told"].tobytes())
        return {
            Key(*key): Record(Key(*key), kind, tuple(shape), frame=tuple(frame), sketch=arrays.get(str(i)))
            for i, (key, kind, shape, frame) in enumerate(told)
        }


@pytest.mark.slow
def test_branches_batched_by_dp_compare_by_name(on_meshes: dict[str, dict[Key, Record]]) -> None:
    apart, batched = on_meshes[ALONE], on_meshes[BATCHED]
    assert set(apart) == set(batched)
    assert {key.branch for key in batched} == {"cond", "uncond", ""}
    assert {key: r.shape for key, r in apart.items()} == {key: r.shape for key, r in batched.items()}
    _close(apart, batched)
    # By position they would be each other's: the branches are not alike.
    key = Key("transformer", 0, "cond", "transformer_blocks.0:out.0")
    other = Key("transformer", 0, "uncond", "transformer_blocks.0:out.0")
    assert _relative(apart[key], batched[other]) > 1e-2


@pytest.mark.slow
def test_sketches_are_equal_on_any_mesh(on_meshes: dict[str, dict[Key, Record]]) -> None:
    _close(on_meshes[ALONE], on_meshes[SHARDED])


def _close(ours: dict[Key, Record], theirs: dict[Key, Record]) -> None:
    compared = 0
    for key, record in ours.items():
        if record.sketch is not None:
            assert _relative(record, theirs[key]) < 1e-4, key
            compared += 1
    assert compared > 100


def _relative(a: Record, b: Record) -> float:
    assert a.sketch is not None
    assert b.sketch is not None
    return distance(a.sketch, b.sketch, Geometry(*a.frame)) / max(float(np.linalg.norm(a.sketch)), 1e-30)
