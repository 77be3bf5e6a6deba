"""Norms and activations of 16-bit tensors that round after each of their operations, as implementations without fused
kernels do.

torch computes a layer norm in float32 inside and rounds its result once; torchax's mean, difference, square root and
product each round to the working dtype, which puts an output 2.3 times as far from the truth, and a whole row with it
where its scale is rounded. Both are right: the distance of the second from the truth is part of a 16-bit floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from parity.hooks.torchtools import Intercept


def stepwise() -> Intercept:
    """Within it, torch's layer norm, RMS norm, SiLU and GELU of 16-bit tensors do."""

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, torch.Tensor) or given.dtype.itemsize != 2:
            return func(*args, **kwargs)
        return _STEPS[func](*args, **kwargs)

    return Intercept(handle, only=_STEPS)


def _layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    centred = input - input.mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
    out = _rms_norm(centred, normalized_shape, weight, eps)
    return out if bias is None else out + bias


def _rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    over = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    out = input * torch.rsqrt((input * input).mean(over, keepdim=True) + least)
    return out if weight is None else out * weight


def _silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return input * torch.sigmoid(input)


def _gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    if approximate == "none":
        return 0.5 * input * (1.0 + torch.erf(input / math.sqrt(2.0)))
    return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + 0.044715 * input * input * input)))


_STEPS: Mapping[Any, Callable[..., torch.Tensor]] = {
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.silu: _silu,
    functional.gelu: _gelu,
}
