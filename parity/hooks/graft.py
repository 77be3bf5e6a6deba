"""Changing what modules give while a model runs: forward hooks that return another value.

Under jax.jit the hooks fire while the program is traced, on tracers: what they return is part of the program.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

Place = tuple[str, int, int]
"""(module, how many times it had been called before in this call of the model, number of the tensor in its output)."""

Change = Callable[[Place, torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def changed_outputs(model: torch.nn.Module, targets: Mapping[str, str], change: Change) -> Iterator[None]:
    """Within it, each floating tensor that a target gives becomes what `change` makes of it.

    Args:
        targets: path of a module -> its name in `Place`.
    """
    counts: Counter[str] = Counter()

    def after(name: str) -> Callable[..., Any]:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
            number = counts[name]
            counts[name] += 1
            leaves, structure = pytree.tree_flatten(output)
            made = [change((name, number, i), x) if _is_floating(x) else x for i, x in enumerate(leaves)]
            return pytree.tree_unflatten(made, structure)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(after(name)) for path, name in targets.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype.is_floating_point


def finite(x: torch.Tensor) -> torch.Tensor:
    """`x`, 0 where it is no finite number."""
    return torch.where(torch.isfinite(x), x, torch.zeros_like(x))


def error_of(own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What is to be added to a module's own output so that it is the reference's; values that are not finite are 0."""
    wide = _wide(own.dtype)
    return (finite(reference).to(wide) - finite(own).to(wide)).to(own.dtype)


def without_error(own: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """A module's output with its error added, in the module's own dtype."""
    wide = _wide(own.dtype)
    return (finite(own).to(wide) + error.to(wide)).to(own.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize > 4 else torch.float32
