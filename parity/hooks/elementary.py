"""How far a TPU's elementary functions may move the result of a torch function: for floors that allow for a chip.

`parity.settings.chips` has the bounds of each function of XLA; a torch function is one of them, or is made of some
(a softmax of exp and a division), whose bounds add up. What is added up by the million (attention, norms) errs less
than the sum of its parts; a floor that holds this bound holds that too. float32 alone: 16-bit results are rounded by
more.

Cost. One elementwise pass over the results of these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from parity.settings.chips import EPS, Bounds

Reach = Callable[[torch.Tensor, Sequence[Any], Mapping[str, Any], Bounds], torch.Tensor | None]
"""(result, arguments, named arguments, bounds) -> how far the result may be; None for no error."""


def reach(
    name: str, out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds
) -> torch.Tensor | None:
    """How far from its exact value a result may be, of its shape; None for what every chip computes alike.

    Args:
        name: of the torch function. out: what it gave. args, kwargs: what it was given. bounds: of the chip.
    """
    known = _REACHES.get(name)
    if known is None or out.dtype not in (torch.float32, torch.float64):
        return None
    with torch._C.DisableTorchFunction():
        return known(out, args, kwargs, bounds)


def _of(*parts: str) -> Reach:
    """Of a function that is made of these, each of which errs relatively to the whole."""

    def reached(out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds) -> torch.Tensor:
        relative = sum(bounds[part].relative for part in parts) * EPS
        return out.abs() * relative + sum(bounds[part].absolute for part in parts)

    return reached


def _by_a_number(of: Reach) -> Reach:
    """Of a quotient or a power: where the second is a number XLA multiplies, which is rounded as anywhere."""

    def reached(
        out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds
    ) -> torch.Tensor | None:
        return None if len(args) > 1 and isinstance(args[1], int | float) else of(out, args, kwargs, bounds)

    return reached


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """What an activation is applied to."""
    return args[0] if args else kwargs["input"]


def _silu(out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds) -> torch.Tensor:
    """x times the logistic function."""
    return _given(args, kwargs).abs() * bounds["logistic"].absolute


def _gelu(out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds) -> torch.Tensor:
    """x / 2 times (1 + tanh), or (1 + erf), which JAX computes as erfc."""
    half = _given(args, kwargs).abs() * 0.5
    if kwargs.get("approximate") == "tanh":
        return half * (bounds["tanh"].absolute + bounds["tanh"].relative * EPS)
    return half * bounds["erf"].relative * EPS + out.abs() * bounds["erfc"].relative * EPS


_ATTENTION = _of("exp", "div")

_REACHES: Mapping[str, Reach] = {
    **{name: _of(name) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "erf", "erfc", "tanh")},
    **{name: _of(name) for name in ("cos", "sin", "tan", "sinh", "cosh", "acos", "asin", "atan", "atan2")},
    **dict.fromkeys(("div", "true_divide", "divide"), _by_a_number(_of("div"))),
    **dict.fromkeys(("reciprocal", "__rdiv__"), _of("div")),
    **dict.fromkeys(("pow", "__pow__", "float_power"), _by_a_number(_of("pow"))),
    "__rpow__": _of("pow"),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"), _of("rsqrt")),
    "normalize": _of("sqrt", "div"),
    **dict.fromkeys(("softmax", "_softmax", "scaled_dot_product_attention", "flex_attention"), _ATTENTION),
    "log_softmax": _of("log", "exp"),
    "sigmoid": _of("logistic"),
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _of("log1p", "exp"),
    "elu": _of("expm1"),
}
