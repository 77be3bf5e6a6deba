"""`matmul_precision` on the torch path: what JAX's lower precisions do to float32 matrix products, emulated exactly.

On TPU, JAX's `default` rounds the operands of a float32 product to bfloat16 and accumulates in float32; `high` takes
three bfloat16 passes, which keep the operands to about 16 bits: each is split into two bfloat16 terms and the product
of the two small terms is dropped (jax.lax.Precision). The emulation makes a candidate's setting reproducible on the
reference alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from parity.hooks.torchtools import SDPA, Intercept
from parity.reached import Reached

_PRODUCTS = {
    torch.nn.functional.linear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.bmm,
    torch.Tensor.bmm,
    torch.nn.functional.conv2d,
    torch.conv2d,
    torch.nn.functional.conv3d,
    torch.conv3d,
    SDPA,
}
"""Functions whose first two arguments are operands of a product; a bias or mask after them is left alone."""


@contextlib.contextmanager
def rounded_matmuls(reached: Reached) -> Iterator[None]:
    """Within it, float32 products round their operands as `matmul_precision` says; nothing where it is `highest`."""
    precision = reached.settings.text("matmul_precision")
    if precision == "highest":
        yield
        return

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in _PRODUCTS:
            return func(*args, **kwargs)
        reached.mark("matmul_precision")
        operands = 3 if func is SDPA else 2
        args = tuple(_round(x, precision) if i < operands else x for i, x in enumerate(args))
        return func(*args, **{n: _round(x, precision) if n in _OPERANDS else x for n, x in kwargs.items()})

    with Intercept(handle):
        yield


_OPERANDS = ("query", "key", "value", "input", "weight")


def _round(x: Any, precision: str) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    large = x.to(torch.bfloat16).to(torch.float32)
    if precision == "default":
        return large
    return large + (x - large).to(torch.bfloat16).to(torch.float32)
