"""Torch tensors as plain data and back: how values cross a process border."""

from __future__ import annotations

import torch

from parity.hooks.reduce.transfer import to_numpy
from parity.paths.plan import Array


def array(x: torch.Tensor) -> Array:
    """A tensor's values on the host; 16-bit floats widened, which loses nothing."""
    return Array(to_numpy(x), str(x.dtype).removeprefix("torch."))


def tensor(x: Array) -> torch.Tensor:
    """The tensor on the CPU, of its own dtype."""
    dtype: torch.dtype = getattr(torch, x.dtype)
    return torch.from_numpy(x.values.copy()).to(dtype)
