"""The arguments of somebody's function: tensors by a flat name, and the nest that they were in.

A comparison hands both sides the same tensors by name and keeps them as records; what a caller gives is a dict, a list
or one array, with numbers and None among them. `split` takes such a nest apart, `Nest.fill` puts it together again of
any library's arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils import _pytree as pytree

from parity.errors import UsageError
from parity.hooks import torchtools


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor stands. is_complex: whether its real view [..., 2] is what travels."""

    name: str
    is_complex: bool = False


@dataclass(frozen=True, slots=True)
class Nest:
    """Arguments without their tensors.

    Attributes:
        tree: positional arguments and keyword arguments, with a place where each tensor was.
    """

    tree: tuple[tuple[object, ...], dict[str, object]]

    def fill(self, tensors: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments with these tensors in their places."""
        args, kwargs = pytree.tree_map(lambda item: _filled(item, tensors), self.tree)
        return args, kwargs


def split(inputs: object) -> tuple[Nest, dict[str, torch.Tensor]]:
    """A caller's inputs as a nest and its tensors by name, on the devices they were on.

    Args:
        inputs: keyword arguments (a mapping), positional ones (a tuple or list), or one array. Arrays are torch's,
            torchax's, numpy's or jax's.

    Raises:
        UsageError: no array among them.
    """
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else () if isinstance(inputs, Mapping) else (inputs,)
    given = inputs if isinstance(inputs, Mapping) else {}
    kwargs = {str(name): x for name, x in given.items()}
    tensors: dict[str, torch.Tensor] = {}

    def placed(path: pytree.KeyPath, x: object) -> object:
        if not is_array(x):
            return x
        name, tensor = ".".join(map(_named, path[1:])), torchtools.to_torch(x)
        if name in tensors or len(kwargs) < len(given):
            raise UsageError(f"two of the inputs have one name ('{name}' among them): rename one")
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise UsageError(f"the input '{name}' is sparse, quantized or without values: give a plain array")
        tensors[name] = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return _Place(name, tensor.is_complex())

    tree = pytree.tree_map_with_path(placed, (args, kwargs))
    if not tensors:
        raise UsageError(
            f"the inputs hold no array (found {type(inputs).__name__}); give a dict of arguments by name, a tuple of "
            "positional ones, or one array"
        )
    return Nest(tree), tensors


def _named(key: pytree.KeyEntry) -> str:
    """An entry of a path: the place in a tuple or list, the key of a dict, the field of a named tuple."""
    return str(next(getattr(key, kind) for kind in ("idx", "key", "name") if hasattr(key, kind)))


def leaves(output: object) -> Iterator[tuple[str, object]]:
    """The arrays of what a function returned, with their paths: nests of tuples, lists, dicts and dataclasses."""
    return ((name, x) for name, x in torchtools.leaves(output) if is_array(x))


def is_array(x: object) -> bool:
    """Whether it is an array of any library's."""
    return isinstance(x, (torch.Tensor, np.ndarray)) or (hasattr(x, "dtype") and hasattr(x, "shape"))


def _filled(item: object, tensors: Mapping[str, object]) -> object:
    if not isinstance(item, _Place):
        return item
    return _complex(tensors[item.name]) if item.is_complex else tensors[item.name]


def _complex(x: object) -> object:
    if isinstance(x, torch.Tensor):
        return torch.view_as_complex(x.contiguous())
    import jax

    assert isinstance(x, jax.Array)
    return jax.lax.complex(x[..., 0], x[..., 1])
