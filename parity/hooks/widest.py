"""A model in a wider dtype than it was made for, where torch refuses what it does in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from parity.hooks.torchtools import Intercept, mapped


def widest() -> Intercept:
    """Within it a model runs in a wider dtype than it was made for.

    torch refuses a norm that a model asks for in float32 where it would narrow its operand (Cosmos' positions): it is
    taken in the operand's dtype. And what it refuses for operands of two dtypes, as a product of what a model makes in
    one (Motif's sinusoids of a timestep) with weights in another: all are taken in the widest, or where that is written
    to in the first's.
    """

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.linalg.vector_norm and args and args[0].dtype == torch.float64:
            kwargs.pop("dtype", None)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            dtypes = {x.dtype for x in leaves}
            if len(dtypes) < 2:
                raise
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        wanted = args[0].dtype if in_place else max(dtypes, key=lambda dtype: dtype.itemsize)
        return func(*mapped(_to(wanted), args), **mapped(_to(wanted), kwargs))

    return Intercept(handle)


def _to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype) if x.is_floating_point() else x
