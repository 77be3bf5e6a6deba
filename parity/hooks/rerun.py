"""Running a module again on the inputs of one of its calls, as it is or in another dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from parity.hooks.calls import Call
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


def rerun(module: torch.nn.Module, call: Call, dtype: torch.dtype | None, *, inputs: bool = True) -> Any:
    """Run a module again on a call's inputs, its weights and (`inputs`) its inputs in another dtype; None: as it is."""
    if dtype is None:
        return module(*call.args, **call.kwargs)

    cast = _to(dtype)
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    once = {id(x): cast(x.detach()) for x in tensors.values()}  # tied weights stay one
    weights = {name: once[id(x)] for name, x in tensors.items()}
    if not inputs:
        return torch.func.functional_call(module, weights, call.args, dict(call.kwargs))

    def named(x: Any) -> Any:
        """A dtype that the module is asked to work in, as some time embeddings are."""
        return dtype if isinstance(x, torch.dtype) and x.is_floating_point else x

    args, kwargs = mapped(cast, call.args, named), mapped(cast, dict(call.kwargs), named)
    with widest() if dtype is torch.float64 else contextlib.nullcontext():
        return torch.func.functional_call(module, weights, args, kwargs)
