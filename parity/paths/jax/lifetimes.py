"""Observed tensors end with what they are of: what comes next waits for their reductions.

Problem. A reduction has no consumer but the program's end. A TPU's compiler schedules such operations late, and every
tensor that they read stays in memory until then: gigabytes for each block of a large model.

How. Where a block begins, where a module follows the last of them, and where a module is called while the four of an
attention are pending, what it is given and the reductions that were begun before it pass one optimization barrier, so
that it cannot start before they are done. Nothing is computed by it. The barrier is put on a small argument where there
is one, the time embedding that a block is modulated by: on the activations it would keep apart what the compiler fuses
across two blocks, and each of them would be read once more. Small tensors are reduced together at the end
(`BatchingReducer`): they wait for nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree
from torchax import interop

from parity.hooks.reduce.batch_jax import SMALL, BatchingReducer, array_of
from parity.hooks.sites import is_block
from parity.hooks.torchtools import callable_modules

MANY = 4
"""Reductions that are pending when a module below a block waits too: an attention's query, key, value and output."""


@contextlib.contextmanager
def bounded(model: torch.nn.Module, reducer: BatchingReducer) -> Iterator[None]:
    """Within it, under a trace, modules wait for the reductions of large tensors that were begun before them.

    Entered after the observers are attached, so that they see what a block is given before it waits: a tensor that is
    one block's output and the next one's input is reduced once.
    """

    def wait(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        at = [i for i, x in enumerate(leaves) if _floats(x) and 0 < array_of(x).size <= SMALL]
        at = at[:1] or [i for i, x in enumerate(leaves) if _floats(x) and array_of(x).ndim >= 3]
        if not at:
            return None
        for i, x in zip(at, reducer.settled([array_of(leaves[i]) for i in at]), strict=True):
            leaves[i] = interop.torch_view(x)
        return pytree.tree_unflatten(leaves, structure)

    def wait_for_many(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return wait(module, args, kwargs) if len(reducer.pending) >= MANY else None

    modules = {path: module for path, module in callable_modules(model).items() if path}
    outer = {path for path in modules if "." not in path or is_block(path)}
    with contextlib.ExitStack() as hooks:
        for path, module in modules.items():
            hook = wait if path in outer else wait_for_many
            hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield


def _floats(x: Any) -> bool:
    """Whether it is a floating-point tensor inside a trace."""
    if not hasattr(x, "jax"):  # a torchax tensor, or a view of one
        return False
    array = array_of(x)
    return jnp.issubdtype(array.dtype, jnp.floating) and isinstance(array, jax.core.Tracer)
