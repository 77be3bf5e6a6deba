"""A process of its own for `test_attention`: splash sharded over meshes of eight CPU devices, against one device."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType
from torchax import interop

from parity.models import splash
from parity.models.attention import Visible


def main() -> None:
    rng = np.random.default_rng(0)
    for shape, batch, heads in (((2, 2, 2), 2, 4), ((2, 2, 2), 3, 1)):
        q, k, v = (jax.numpy.asarray(rng.standard_normal((batch, heads, 150, 16)), "float32") for _ in range(3))
        ids = jax.numpy.asarray(rng.random((batch, 150)) < 0.7, "int32")

        def call(q, k, v, ids):  # type: ignore[no-untyped-def]
            visible = Visible(ids, ids, segments=True)
            return interop.jax_view(splash.splash(q, k, v, visible, block_q=32, block_kv=128, lse=True))

        mesh = jax.make_mesh(
            shape, ("dp", "sp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[: int(np.prod(shape))]
        )
        with jax.default_matmul_precision("highest"):
            alone = jax.jit(call)(q, k, v, ids)
            with splash.on_mesh(mesh):
                sharded = jax.jit(lambda *x: call(*x))(q, k, v, ids)
        divided = [n if size % n == 0 else 1 for n, size in zip((shape[0], shape[2]), (batch, heads), strict=True)]
        assert len(sharded[0].sharding.device_set) == mesh.devices.size
        local = sharded[0].addressable_shards[0].data.shape
        assert local[:2] == (batch // divided[0], heads // divided[1]), local
        for one, other in zip(alone, sharded, strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other))
        print("ok")


if __name__ == "__main__":
    main()
