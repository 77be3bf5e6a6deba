"""Splash attention, JAX's own Pallas kernel, and what else of the attention needs jax: for the torchax path alone.

The kernel (`jax.experimental.pallas.ops.tpu.splash_attention`) is compiled on TPU and interpreted elsewhere. It takes
one batch element, sequences of whole blocks, a query that is scaled already, and one id for each token: a query sees
the keys with its own id. So the batch is a vmap; queries and keys are filled up to blocks, and the added keys get an id
that no query has; the query is scaled in its own dtype, as ports do.

On a mesh the call is a shard_map: the batch over dp, heads over tp, queries over sp; every device of an sp group holds
all keys. What an axis does not divide is replicated.

Precision: the kernel's products follow jax.default_matmul_precision at the time they are traced. JAX's compiler for TPU
kernels knows `highest` (float32) and `default`, and refuses `high`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernel,
    splash_attention_mask as masks,
)
from jax.sharding import Mesh, PartitionSpec
from torchax import interop

from parity.hooks.methods import using
from parity.models.attention import Visible, splash_block

_MESH: ContextVar[Mesh | None] = ContextVar("parity_splash_mesh", default=None)

_SHARED_ID, _OTHER_ID, _ADDED_ID = 1, 0, -1
"""Ids of valid tokens, of padded ones, and of the keys that fill a block."""


def on_mesh(mesh: Mesh) -> contextlib.AbstractContextManager[None]:
    """Within it, calls are sharded over a mesh with the axes dp, sp and tp."""
    return using(_MESH, mesh)


def splash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: Visible | None,
    *,
    block_q: int = 0,
    block_kv: int = 0,
    lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of torchax tensors, arguments as those of `parity.models.attention`; where wanted with its log-sum-exp.

    Args:
        block_q, block_kv: rows of a block, 0 for `splash_block` of the keys; keys in multiples of 128.
    """
    mesh = _MESH.get()
    dp, sp, tp = (1, 1, 1) if mesh is None else (int(mesh.shape[axis]) for axis in ("dp", "sp", "tp"))
    q, k, v = (interop.jax_view(x) for x in (query, key, value))
    (batch, heads, length, width), keys = q.shape, k.shape[2]
    block_q, block_kv = block_q or splash_block(keys), block_kv or splash_block(keys)
    more_q, more_kv = -length % (block_q * sp), -keys % block_kv
    ids = None if visible is None else _ids(visible)
    if ids is None and more_kv:
        ids = jnp.full((batch, length), _SHARED_ID), jnp.full((batch, keys), _SHARED_ID)
    q = _filled(q * jnp.asarray(1.0 / math.sqrt(width), q.dtype), 2, more_q)
    k, v = _filled(k, 2, more_kv), _filled(v, 2, more_kv)
    given = () if ids is None else (_filled(ids[0], 1, more_q), _filled(ids[1], 1, more_kv, _ADDED_ID))
    run = functools.partial(_local, block_q=block_q, block_kv=block_kv, lse=lse)
    if mesh is not None and dp * sp * tp > 1:
        b, h = "dp" if batch % dp == 0 else None, "tp" if heads % tp == 0 else None
        rows, all_keys = PartitionSpec(b, h, "sp"), PartitionSpec(b, h)
        own_ids = () if ids is None else (PartitionSpec(b, "sp"), PartitionSpec(b))
        # Replication cannot be checked through a Pallas call.
        run = jax.shard_map(
            run, mesh=mesh, in_specs=(rows, all_keys, all_keys, *own_ids), out_specs=rows, check_vma=False
        )
    out, *sums = (interop.torch_view(x[:, :, :length]) for x in run(q, k, v, *given))
    return out, sums[0] if lse else None


def _ids(visible: Visible) -> tuple[jax.Array, jax.Array]:
    """int32 ids of queries [B, L] and keys [B, keys]; all queries have the valid keys' where there are no segments."""
    queries, keys = interop.jax_view(visible.queries), interop.jax_view(visible.keys)
    if not visible.segments:
        queries = jnp.ones_like(queries)
    return jnp.where(queries, _SHARED_ID, _OTHER_ID), jnp.where(keys, _SHARED_ID, _OTHER_ID)


def _filled(x: jax.Array, axis: int, more: int, value: int = 0) -> jax.Array:
    """`x` with `more` rows at the end of an axis."""
    return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)], constant_values=value) if more else x


def _local(
    q: jax.Array, k: jax.Array, v: jax.Array, *ids: jax.Array, block_q: int, block_kv: int, lse: bool
) -> tuple[jax.Array, ...]:
    """The kernel on what one device holds, batch element by batch element."""
    call = _kernel(q.shape[1], q.shape[2], k.shape[2], block_q, block_kv, lse, _platform() != "tpu")
    if ids:
        found = jax.vmap(lambda q, k, v, rows, keys: call(q, k, v, kernel.SegmentIds(rows, keys)))(q, k, v, *ids)
    else:
        found = jax.vmap(call)(q, k, v)
    return (found[0], found[1][0]) if lse else (found,)


def _platform() -> str:
    """Where the program goes: the mesh's devices, which may be no devices of this machine."""
    mesh = _MESH.get()
    return jax.default_backend() if mesh is None else str(mesh.devices.flat[0].platform)


@functools.lru_cache(maxsize=16)
def _kernel(heads: int, rows: int, keys: int, block_q: int, block_kv: int, lse: bool, interpret: bool) -> Any:
    """The kernel for these sizes; its tables of blocks take a second to make for the longest sequences."""
    blocks = kernel.BlockSizes(block_q=block_q, block_kv=block_kv)
    every = masks.MultiHeadMask([masks.FullMask((rows, keys))] * heads)
    with jax.ensure_compile_time_eval():  # the tables outlive the trace that first asks for them
        return kernel.make_splash_mha(
            every, block_sizes=blocks, save_residuals=lse, head_shards=1, q_seq_shards=1, interpret=interpret
        )


def rounded(x: torch.Tensor) -> torch.Tensor:
    """A torchax tensor rounded to bfloat16, dtype kept: by an instruction that XLA keeps, where it may drop casts."""
    return interop.torch_view(jax.lax.reduce_precision(interop.jax_view(x), exponent_bits=8, mantissa_bits=7))
