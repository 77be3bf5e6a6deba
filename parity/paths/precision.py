"""`matmul_precision` on the torch path: what JAX's lower precisions do to float32 matrix products, emulated exactly.

On TPU, JAX's `default` rounds the operands of a float32 product to bfloat16 and accumulates in float32; `high` takes
three bfloat16 passes, which keep the operands to about 16 bits: each is split into two bfloat16 terms and the product
of the two small terms is dropped (jax.lax.Precision). The emulation makes a candidate's setting reproducible on the
reference alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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
    torch.nn.functional.scaled_dot_product_attention,
}
"""Functions whose first two arguments are operands of a product; a bias or mask after them is left alone."""


@contextlib.contextmanager
def rounded_matmuls(reached: Reached) -> Iterator[None]:
    """Within it, float32 products round their operands as `matmul_precision` says; nothing where it is `highest`."""
    precision = reached.settings.text("matmul_precision")
    if precision == "highest":
        yield
        return
    with _Rounding(precision, reached):
        yield


class _Rounding(TorchFunctionMode):
    def __init__(self, precision: str, reached: Reached) -> None:
        super().__init__()
        self.precision, self.reached = precision, reached

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _PRODUCTS:
            return func(*args, **kwargs)
        self.reached.mark("matmul_precision")
        operands = 3 if func is torch.nn.functional.scaled_dot_product_attention else 2
        names = ("query", "key", "value")
        args = tuple(self._round(a) if i < operands else a for i, a in enumerate(args))
        kwargs = {k: self._round(v) if k in names or k in ("input", "weight") else v for k, v in kwargs.items()}
        return func(*args, **kwargs)

    def _round(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
            return x
        large = x.to(torch.bfloat16).to(torch.float32)
        if self.precision == "default":
            return large
        return large + (x - large).to(torch.bfloat16).to(torch.float32)
