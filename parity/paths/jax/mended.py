"""torchax's own defects, mended where its tensors are parity's candidate's; a port meets them as its users do.

Attention: torchax's scaled_dot_product_attention gives NaN in a row without any key (0/0 in the softmax), and
HunyuanVideo-1.5's text refiner has such rows for every padded token. Here such a row gives 0, as in torch. The override
is torchax's own mechanism, the one by which ports install their kernels. Query, key and value are pinned in it: XLA on
a CPU (jaxlib 0.10.2) writes a rotated part into the tensor that it still reads, `q.at[:, n:].set(rotated(q[:, n:]))`,
as CogView4 and CogVideoX rotate, and what reads it gets other numbers unless something observes it too.

Views: torchax (0.0.14) keeps a slice as a view, and some of its operators read the field in which its tensors hold
their array: `'View' object has no attribute '_elem'`. Here a view has it too: the array that the view stands for. What
is written to it is refused as before.

`type_as`: torchax casts the array of the tensor itself and keeps the tensor's own dtype, so that in
`y = x.float().type_as(x)` a later `y.float()` does nothing: Wan's norms then run in bfloat16. Here it is a cast.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from torchax import interop
from torchax.ops import ops_registry
from torchax.tensor import Tensor

from parity.hooks.methods import replaced
from parity.hooks.torchtools import SDPA

_OP: Any = SDPA
"""The entry of torchax's operator table: torch's own function, whatever a port puts in its place later."""


def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, scale: float | None
) -> jax.Array:
    """softmax(query key^T * scale + mask) value in float32 or wider; rows whose every key is masked give 0.

    Args:
        query, key, value: [B, heads, rows, head dim].
        mask: broadcastable to [B, heads, rows, keys]; bool (True: attend) or added to the scores.

    Returns:
        [B, heads, rows, head dim] in the dtype of value.
    """
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32) * scale
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = (weights / jnp.where(total == 0.0, 1.0, total)).astype(value.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, value, preferred_element_type=jnp.float32).astype(value.dtype)


def _sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **ignored: Any,
) -> Any:
    q, k, v = jax.lax.optimization_barrier((query.jax(), key.jax(), value.jax()))
    if enable_gqa and k.shape[1] != q.shape[1]:
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    mask = None if attn_mask is None else attn_mask.jax()
    if is_causal:
        mask = jnp.tril(jnp.ones((q.shape[2], k.shape[2]), jnp.bool_))
    return interop.torch_view(attention(q, k, v, mask, scale))


@contextlib.contextmanager
def mended(env: Any) -> Iterator[None]:
    """Within it, the environment's scaled_dot_product_attention is `attention`, a view can be read as a torchax tensor
    is (where torchax's cannot), and `type_as` makes another tensor."""
    from torchax.view import View  # a port with older pins has perhaps none, and does not come here

    before, readable = env._ops.get(_OP), hasattr(View, "_elem")
    env.override_op_definition(_OP, _sdpa)
    with (
        replaced(Tensor, "type_as", lambda self, other: self.to(other.dtype)),
        contextlib.nullcontext() if readable else replaced(View, "_elem", property(lambda view: view.jax())),
    ):
        try:
            yield
        finally:
            env._ops[_OP] = before


def is_torchax_own(env: Any) -> bool:
    """Whether nobody has put attention of their own into an environment: what a port installed is what runs."""
    return env._ops.get(_OP) is ops_registry.all_torch_functions.get(_OP)


def attention_of(env: Any) -> Any:
    """The function that computes scaled_dot_product_attention in a torchax environment; None for none of its own."""
    found = env._ops.get(_OP)
    return None if found is None else found.func
