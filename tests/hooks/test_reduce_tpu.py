"""The reduction for TPUs against the numpy definition, its kernel interpreted: on one device and over meshes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from parity.golden.records import Moments  # noqa: E402
from parity.golden.sketch import sketch  # noqa: E402
from parity.hooks.reduce import on_jax  # noqa: E402
from parity.hooks.reduce.on_tpu import reduce_on_mesh  # noqa: E402
from parity.hooks.reduce.tpu_kernel import AT_ONCE, runs_of  # noqa: E402

ROOT = Path(__file__).parents[2]
Mesh = tuple[int, int, int]


def reduced(x: jax.Array, shape: Mesh = (1, 1, 1), rows: tuple[int, ...] = ()) -> list[tuple[Moments, np.ndarray]]:
    """Moments and sketch of each item by the kernel on a mesh (dp, sp, tp), of a range of axis 1 if one is given."""
    auto = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh(shape, ("dp", "sp", "tp"), axis_types=auto, devices=jax.devices()[: int(np.prod(shape))])
    items = x.shape[0] if x.ndim > 2 else 1
    found = jax.jit(lambda x: reduce_on_mesh(x, *rows, mesh=mesh, items=items, interpret=True))(x)
    assert found is not None
    return [on_jax.to_host(each) for each in found]


def agrees(x: jax.Array, shape: Mesh = (1, 1, 1), rows: tuple[int, ...] = ()) -> None:
    """Of each item of a batch."""
    whole = np.asarray((x[:, slice(*rows)] if rows else x).astype(jnp.float32))
    for i, (moments, got) in enumerate(reduced(x, shape, rows)):
        exact = whole[i : i + 1] if whole.ndim > 2 else whole
        norm = float(np.linalg.norm(exact.astype(np.float64)))
        assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= 1e-6 * norm
        assert (moments.count, moments.nan, moments.inf) == (exact.size, 0, 0)
        assert (moments.min, moments.max) == (exact.min(), exact.max())
        assert moments.l2 == pytest.approx(norm, rel=1e-6)
        assert moments.mean == pytest.approx(float(exact.mean(dtype=np.float64)), rel=1e-5)


def values(shape: tuple[int, ...], dtype: str = "bfloat16") -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape) + 0.1, jnp.float32).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, 5000, 256), (2, 1501, 4, 64), (5000, 128), (1, 1985, 192), (1, 150, 128)], ids=str
)
def test_the_kernel_agrees_with_the_definition(shape: tuple[int, ...], dtype: str) -> None:
    agrees(values(shape, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(0, 2900), (226, 3004), (2501, 2700)], ids=str)
def test_a_range_of_the_tokens_is_reduced(rows: tuple[int, int]) -> None:
    """The image's or the text's part of a joint sequence; a short one is copied."""
    agrees(values((1, 3004, 4, 64)), rows=rows)


@pytest.mark.slow
def test_a_long_run_is_taken_in_pieces() -> None:
    """1,040 tokens of 48 heads have 768 slots: all at once they do not fit into a kernel's memory."""
    runs = runs_of((2739, 48, 64), "bfloat16")
    assert runs is not None
    assert runs.tokens > AT_ONCE
    agrees(values((1, 2739, 48, 64)))


@pytest.mark.slow
def test_numbers_that_are_not_finite_are_counted_and_mark_the_sketch() -> None:
    x = values((1, 5000, 64), "float32").at[0, 4000, 3].set(jnp.nan).at[0, 4001, 5].set(-jnp.inf)
    ((moments, got),) = reduced(x)
    assert (moments.nan, moments.inf, moments.count) == (1, 1, 5000 * 64)
    rest = np.asarray(x)[np.isfinite(np.asarray(x))]
    assert (moments.min, moments.max) == (rest.min(), rest.max())
    assert moments.l2 == pytest.approx(float(np.linalg.norm(rest)), rel=1e-6)
    bad = np.isnan(sketch(np.asarray(x)))
    assert bad.any()
    assert np.isnan(got[bad]).all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_squares_beyond_float32_are_no_problem(scale: float) -> None:
    x = values((1, 5000, 64), "float32") * scale
    ((moments, _),) = reduced(x)
    exact = np.asarray(x).astype(np.float64)
    assert (moments.l2, moments.mean) == pytest.approx((float(np.linalg.norm(exact)), float(exact.mean())), rel=1e-4)


@pytest.mark.parametrize("shape", [(111_600, 1, 2048), (44_880, 1, 3072), (44_880, 48, 64), (1985, 16, 128)])
def test_runs_have_whole_slots_and_fit(shape: tuple[int, ...]) -> None:
    runs = runs_of(shape, "bfloat16")
    assert runs is not None
    assert runs.tokens % 16 == 0
    assert runs.tokens * runs.heads == runs.slots * runs.whole.rows_per_slot
    assert shape[2] % runs.channels == 0
    for odd, dtype in (((5000, 1, 64), "int32"), ((5000, 1, 64), "float16"), ((20, 1, 8), "float32")):
        assert runs_of(odd, dtype) is None


def over_meshes() -> None:
    """Each way to lie on four devices: shared, tokens split, heads split, branches split or not."""
    for mesh in ((1, 1, 4), (1, 2, 2), (2, 1, 2)):
        for shape in ((1, 3002, 128), (2, 3002, 4, 64)):
            agrees(values(shape), mesh)
            agrees(values(shape), mesh, (501, 2700))
    agrees(values((3, 3002, 128)), (2, 1, 2))  # a batch that dp does not split
    agrees(values((1, 3001, 4, 64)), (1, 2, 2), (0, 3000))  # a joint sequence that sp does not split


@pytest.mark.slow
def test_the_kernel_agrees_over_meshes() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, __file__], env=os.environ | flags, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


COMPILE = """
import jax, numpy as np, sys
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from parity.hooks.reduce.on_tpu import reduce_on_mesh
topology, split, *shape = sys.argv[1:]
devices = topologies.get_topology_desc(topology, platform="tpu").devices
mesh = Mesh(np.array(devices).reshape(1, 1, -1), ("dp", "sp", "tp"))
axes = PartitionSpec(*("tp" if str(axis) == split else None for axis in range(len(shape))))
x = jax.ShapeDtypeStruct(tuple(map(int, shape)), "bfloat16", sharding=NamedSharding(mesh, axes))
made = jax.jit(lambda x: reduce_on_mesh(x, mesh=mesh)).lower(x).compile()
print(made.cost_analysis()["bytes accessed"], made.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra aot)")
@pytest.mark.parametrize(
    ("topology", "split", "shape"),
    [
        ("v6e:2x2", None, (1, 40000, 1024)),
        ("v5p:2x2x2", 2, (1, 44880, 48, 64)),  # CogVideoX-1.5's queries at full size had needed 20 MiB of 16
    ],
)
def test_the_real_compiler_reads_a_devices_part_once(topology: str, split: int | None, shape: tuple[int, ...]) -> None:
    from parity.tpu.compiler import ENVIRONMENT

    words = [sys.executable, "-c", COMPILE, topology, str(split), *map(str, shape)]
    ran = subprocess.run(words, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    accessed, temporaries = map(float, ran.stdout.split())
    if split is None:
        assert 0.25 < accessed / (2 * np.prod(shape)) < 0.9  # of the whole, by each of four devices
        assert temporaries < 16 << 20


if __name__ == "__main__":
    over_meshes()
