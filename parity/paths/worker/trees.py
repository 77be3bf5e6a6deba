"""Nests of torch tensors as plain data and back: how a call's arguments cross a process border."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.hooks.reduce.transfer import to_numpy
from parity.paths.plan import Array, Tree

_DTYPE = "torch.dtype"
"""The one name in a dict that stands for a dtype given as an argument."""

_DEVICE = "torch.device"
"""The same for a device: on the other side that is where the other side computes."""


def array(x: torch.Tensor) -> Array:
    """A tensor's values on the host; 16-bit floats widened, which loses nothing."""
    return Array(to_numpy(x), str(x.dtype).removeprefix("torch."))


def tensor(x: Array) -> torch.Tensor:
    """The tensor on the CPU, of its own dtype."""
    dtype: torch.dtype = getattr(torch, x.dtype)
    return torch.from_numpy(x.values.copy()).to(dtype)


def plain(x: Any) -> Tree:
    """A nest as plain data.

    Raises:
        TypeError: something in it is no tensor, scalar, tuple, list or dict.
    """
    if isinstance(x, torch.Tensor):
        return array(x)
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, tuple):
        return tuple(plain(item) for item in x)
    if isinstance(x, list):
        return [plain(item) for item in x]
    if isinstance(x, torch.dtype):
        return {_DTYPE: str(x).removeprefix("torch.")}
    if isinstance(x, torch.device):
        return {_DEVICE: str(x)}
    if isinstance(x, Mapping):
        return {str(name): plain(item) for name, item in x.items()}
    raise TypeError(f"an argument of type {type(x).__name__} cannot be handed to another process")


def nest(x: Tree, device: torch.device | None = None) -> Any:
    """The nest that `plain` was made of.

    Args:
        device: in place of any that is an argument; None for the CPU.
    """
    if isinstance(x, Array):
        return tensor(x)
    if isinstance(x, tuple):
        return tuple(nest(item, device) for item in x)
    if isinstance(x, list):
        return [nest(item, device) for item in x]
    if isinstance(x, dict) and x.keys() == {_DTYPE}:
        return getattr(torch, str(x[_DTYPE]))
    if isinstance(x, dict) and x.keys() == {_DEVICE}:
        return device or torch.device("cpu")
    if isinstance(x, dict):
        return {name: nest(item, device) for name, item in x.items()}
    return x
