"""`parity.hooks.reduce.on_tpu` against the numpy definition, its kernel interpreted: on one device and over meshes."""

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

import parity  # noqa: E402
from parity.golden.records import Moments  # noqa: E402
from parity.golden.sketch import sketch  # noqa: E402
from parity.hooks.reduce import on_jax  # noqa: E402
from parity.hooks.reduce.on_tpu import reduce_on_mesh  # noqa: E402
from parity.hooks.reduce.tpu_kernel import AT_ONCE, runs_of  # noqa: E402
from parity.tpu.compiler import ENVIRONMENT  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(parity.__file__).parents[1]


Mesh = tuple[int, int, int]
ONE: Mesh = (1, 1, 1)


def reduced(x: jax.Array, shape: Mesh = ONE, rows: tuple[int, ...] = ()) -> list[tuple[Moments, np.ndarray]]:
    """Moments and sketch of each item by the kernel on a mesh (dp, sp, tp), of a range of axis 1 where one is given."""
    auto = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh(shape, ("dp", "sp", "tp"), axis_types=auto, devices=jax.devices()[: int(np.prod(shape))])
    items = x.shape[0] if x.ndim > 2 else 1
    found = jax.jit(lambda x: reduce_on_mesh(x, *rows, mesh=mesh, items=items, interpret=True))(x)
    assert found is not None
    return [on_jax.to_host(each) for each in found]


def agrees(x: jax.Array, shape: Mesh = ONE, rows: tuple[int, ...] = ()) -> None:
    """Of each item of a batch."""
    whole = x[:, slice(*rows)] if rows else x
    for i, (moments, got) in enumerate(reduced(x, shape, rows)):
        item_agrees(whole[i : i + 1] if whole.ndim > 2 else whole, moments, got)


def item_agrees(x: jax.Array, moments: Moments, got: np.ndarray) -> None:
    exact = np.asarray(x.astype(jnp.float32))
    norm = float(np.linalg.norm(exact.astype(np.float64)))
    assert np.linalg.norm(got.astype(np.float64) - sketch(exact)) <= 1e-6 * norm
    theirs, _ = on_jax.to_host(on_jax.reduce(x))
    for name in ("count", "nan", "inf", "min", "max"):
        assert getattr(moments, name) == getattr(theirs, name), name
    assert moments.l2 == pytest.approx(norm, rel=1e-6)
    assert moments.mean == pytest.approx(float(exact.mean(dtype=np.float64)), rel=1e-5)


def values(shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape) + 0.1, jnp.float32).astype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, 5000, 256), (2, 1501, 4, 64), (5000, 128), (1, 1985, 192), (1, 3003, 4, 64), (1, 150, 128)], ids=str
)
def test_agrees_with_the_definition(shape: tuple[int, ...], dtype: str) -> None:
    agrees(values(shape, dtype))


def test_a_long_run_is_taken_in_pieces() -> None:
    """1,040 tokens of 48 heads have 768 slots: all at once they do not fit into a kernel's memory."""
    shape = (1, 2739, 48, 64)
    runs = runs_of(shape[1:], "bfloat16")
    assert runs is not None
    assert runs.tokens > AT_ONCE
    agrees(values(shape, "bfloat16"))


@pytest.mark.parametrize("rows", [(0, 2900), (226, 3004), (2501, 2700)], ids=str)
def test_a_range_of_the_tokens(rows: tuple[int, int]) -> None:
    """The image's or the text's part of a joint sequence; a short one is copied."""
    agrees(values((1, 3004, 4, 64), "bfloat16"), rows=rows)


def test_agrees_over_meshes() -> None:
    """Each way to lie on four devices: shared, tokens split, heads split; in a process with as many."""
    run = subprocess.run(
        [sys.executable, __file__],
        cwd=ROOT,
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def over_meshes() -> None:
    for mesh in ((1, 1, 4), (1, 2, 2), (2, 1, 2)):
        for shape in ((1, 3002, 128), (1, 3002, 4, 64)):
            agrees(values(shape, "bfloat16"), mesh)
            agrees(values(shape, "bfloat16"), mesh, (501, 2700))
    agrees(values((2, 3002, 4, 64), "bfloat16"), (2, 1, 2))  # both branches in one batch, which dp splits
    agrees(values((2, 3002, 128), "bfloat16"), (2, 2, 1), (501, 2700))
    agrees(values((2, 3002, 4, 64), "bfloat16"), (1, 2, 2), (501, 2700))
    agrees(values((3, 3002, 128), "bfloat16"), (2, 1, 2))  # a batch that dp does not split
    agrees(values((1, 3001, 4, 64), "bfloat16"), (1, 2, 2), (0, 3000))  # a joint sequence that sp does not split


def test_what_is_not_finite_is_counted_and_marks_the_sketch() -> None:
    x = values((1, 5000, 64), "float32").at[0, 4000, 3].set(jnp.nan).at[0, 4001, 5].set(-jnp.inf)
    ((moments, got),) = reduced(x)
    assert (moments.nan, moments.inf, moments.count) == (1, 1, 5000 * 64)
    rest = np.asarray(x)[np.isfinite(np.asarray(x))]
    assert (moments.min, moments.max) == (rest.min(), rest.max())
    assert moments.l2 == pytest.approx(float(np.linalg.norm(rest)), rel=1e-6)
    bad = np.isnan(sketch(np.asarray(x)))
    assert bad.any()
    assert np.isnan(got[bad]).all()


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_sums_that_leave_float32_s_range(scale: float) -> None:
    agrees_in_norm = values((1, 5000, 64), "float32") * scale
    ((moments, _),) = reduced(agrees_in_norm)
    exact = np.asarray(agrees_in_norm).astype(np.float64)
    assert moments.l2 == pytest.approx(float(np.linalg.norm(exact)), rel=1e-5)
    assert moments.mean == pytest.approx(float(exact.mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((5000, 1, 64), "int32"), ((5000, 1, 64), "float16"), ((20, 1, 8), "float32")], ids=str
)
def test_what_the_kernel_does_not_take(shape: tuple[int, ...], dtype: str) -> None:
    assert runs_of(shape, dtype) is None


def test_runs_hold_whole_slots_and_fit() -> None:
    for shape in ((111_600, 1, 2048), (113_585, 16, 128), (44_880, 1, 3072), (44_880, 48, 64), (1985, 16, 128)):
        runs = runs_of(shape, "bfloat16")
        assert runs is not None
        assert runs.tokens % 16 == 0
        assert runs.tokens * runs.heads == runs.slots * runs.whole.rows_per_slot
        assert shape[2] % runs.channels == 0


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

compiled_for_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra aot)"
)


def bytes_on(topology: str, shape: tuple[int, ...], split: int | None = None) -> tuple[float, float]:
    """What the real compiler says of the reduction of a bfloat16 tensor: bytes accessed and temporaries, a device.

    Args:
        split: axis that lies split over all devices; None for a copy on each.
    """
    words = [sys.executable, "-c", COMPILE, topology, str(split), *map(str, shape)]
    environment = {**os.environ, **ENVIRONMENT}
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    accessed, temporaries = map(float, run.stdout.split())
    return accessed, temporaries


@compiled_for_tpu
def test_it_compiles_for_a_tpu_and_reads_a_device_s_part_once() -> None:
    accessed, temporaries = bytes_on("v6e:2x2", (1, 40000, 1024))
    assert 0.25 < accessed / (2 * 40000 * 1024) < 0.9  # of the whole, by each of four devices, with what sums need
    assert temporaries < 16 << 20


@compiled_for_tpu
def test_long_runs_fit_a_chip_with_16_mib() -> None:
    """The queries of CogVideoX-1.5 at full size, heads split over a v5p's devices: they had needed 20 MiB."""
    bytes_on("v5p:2x2x2", (1, 44880, 48, 64), split=2)


if __name__ == "__main__":
    over_meshes()
