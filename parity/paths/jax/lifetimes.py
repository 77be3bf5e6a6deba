"""Observed tensors end with the block that they are of: the next block waits for their reductions.

Problem. A reduction has no consumer but the program's end. A TPU's compiler schedules such operations late, and every
tensor that they read stays in memory until then: gigabytes for each block of a large model.

How. Where a block begins, its activations and the reductions that were begun before it pass one optimization barrier
so that it cannot start before they are done. Nothing is computed by it. Small tensors are reduced together at the end
(`BatchingReducer`): they wait for nothing.

Cost. What the compiler would have fused across the border of two blocks of an observed program is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torchax
from torch.utils import _pytree as pytree
from torchax import interop

from parity.hooks.attach import callable_modules
from parity.hooks.reduce.batch_jax import SMALL, BatchingReducer, array_of
from parity.hooks.sites import is_block


@contextlib.contextmanager
def bounded(model: torch.nn.Module, reducer: BatchingReducer) -> Iterator[None]:
    """Within it, under a trace, each block waits for the reductions of large tensors that were begun before it.

    Entered after the observers are attached, so that they see what a block is given before it waits: a tensor that is
    one block's output and the next one's input is reduced once.
    """

    def wait(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        at = [i for i, x in enumerate(leaves) if _is_activation(x)]
        if not at:
            return None
        for i, x in zip(at, reducer.settled([array_of(leaves[i]) for i in at]), strict=True):
            leaves[i] = interop.torch_view(x)
        return pytree.tree_unflatten(leaves, structure)

    blocks = [module for path, module in callable_modules(model).items() if is_block(path)]
    handles = [block.register_forward_pre_hook(wait, with_kwargs=True) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_activation(x: Any) -> bool:
    """Whether it is a large [batch, tokens, channels] inside a trace."""
    if not isinstance(x, torchax.tensor.Tensor):
        return False
    array = array_of(x)
    wide = array.ndim >= 3 and array.size > SMALL and jnp.issubdtype(array.dtype, jnp.floating)
    return wide and isinstance(array, jax.core.Tracer)
