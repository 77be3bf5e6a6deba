"""The arguments of somebody's function: tensors by a flat name, and the nest that they were in.

A comparison hands both sides the same tensors by name and keeps them as records; what a caller gives is a dict, a list
or one array, with numbers and None among them. `split` takes such a nest apart, `Nest.fill` puts it together again of
any library's arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

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
        args, kwargs: nests of tuples, lists and dicts, a place where each tensor was.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def fill(self, tensors: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Positional and keyword arguments with these tensors in their places."""
        return tuple(_filled(x, tensors) for x in self.args), {n: _filled(x, tensors) for n, x in self.kwargs.items()}


def split(inputs: object) -> tuple[Nest, dict[str, torch.Tensor]]:
    """A caller's inputs as a nest and its tensors by name, on the devices they were on.

    Args:
        inputs: keyword arguments (a mapping), positional ones (a tuple or list), or one array. Arrays are torch's,
            torchax's, numpy's or jax's.

    Raises:
        UsageError: no array among them.
    """
    tensors: dict[str, torch.Tensor] = {}
    if isinstance(inputs, Mapping):
        nest = Nest((), {str(name): _split(str(name), x, tensors) for name, x in inputs.items()})
    elif isinstance(inputs, (tuple, list)):
        nest = Nest(tuple(_split(str(i), x, tensors) for i, x in enumerate(inputs)), {})
    else:
        nest = Nest((_split("0", inputs, tensors),), {})
    if not tensors:
        raise UsageError(
            f"the inputs hold no array (found {type(inputs).__name__}); give a dict of arguments by name, a tuple of "
            "positional ones, or one array"
        )
    return nest, tensors


def leaves(output: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The arrays of what a function returned, with their paths: nests of tuples, lists, dicts and dataclasses."""
    return ((name, x) for name, x in torchtools.leaves(output, path) if is_array(x))


def to_torch(x: object) -> torch.Tensor:
    """An array of numpy's, jax's or torchax's as a torch tensor of the same dtype, with memory of its own."""
    if isinstance(x, torch.Tensor):
        if type(x).__module__.partition(".")[0] != "torchax":
            return x.detach()
        x = x.jax()  # type: ignore[attr-defined]
    values = np.array(x)
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def is_array(x: object) -> bool:
    """Whether it is an array of any library's."""
    return isinstance(x, (torch.Tensor, np.ndarray)) or (hasattr(x, "dtype") and hasattr(x, "shape"))


def _split(path: str, x: object, tensors: dict[str, torch.Tensor]) -> object:
    if isinstance(x, Mapping):
        return {name: _split(f"{path}.{name}", item, tensors) for name, item in x.items()}
    if isinstance(x, (tuple, list)):
        return _like(x, [_split(f"{path}.{i}", item, tensors) for i, item in enumerate(x)])
    if not is_array(x):
        return x
    tensor = to_torch(x)
    place = _Place(path, tensor.is_complex())
    tensors[path] = torch.view_as_real(tensor.resolve_conj()) if place.is_complex else tensor
    return place


def _filled(x: object, tensors: Mapping[str, object]) -> object:
    if isinstance(x, _Place):
        return _complex(tensors[x.name]) if x.is_complex else tensors[x.name]
    if isinstance(x, Mapping):
        return {name: _filled(item, tensors) for name, item in x.items()}
    if isinstance(x, (tuple, list)):
        return _like(x, [_filled(item, tensors) for item in x])
    return x


def _like(x: Sequence[object], items: list[object]) -> object:
    if isinstance(x, list):
        return items
    return type(x)(*items) if hasattr(x, "_fields") else tuple(items)


def _complex(x: object) -> object:
    if isinstance(x, torch.Tensor):
        return torch.view_as_complex(x.contiguous())
    import jax

    assert isinstance(x, jax.Array)
    return jax.lax.complex(x[..., 0], x[..., 1])
