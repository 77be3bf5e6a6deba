"""The operations of one module call: every torch function it calls, its output reduced where it is.

Seen by `Intercept`, which torch and torchax pass through alike, before either takes a function apart: so the
two sides' operations have the same names. Cost: one reduction an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.hooks.torchtools import Intercept

_SILENT = frozenset({"__get__", "__set__", "size", "dim", "numel", "stride", "type", "__len__", "is_floating_point"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: the function's name, its output's shape, and what `reduce` made of it."""

    name: str
    shape: tuple[int, ...]
    reduced: Any


@dataclass
class Operations:
    """Collects the operations called within `watching()`.

    Attributes:
        reduce: of an output tensor, on its device. found: in order.
    """

    reduce: Callable[[torch.Tensor], Any]
    found: list[Operation] = field(default_factory=list)

    def watching(self) -> Intercept:
        def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            out = func(*args, **kwargs)
            name = str(getattr(func, "__name__", func))
            if name not in _SILENT:
                for x in out if isinstance(out, (tuple, list)) else (out,):
                    if isinstance(x, torch.Tensor) and x.is_floating_point():
                        self.found.append(Operation(_plain(name), tuple(x.shape), self.reduce(x)))
            return out

        return Intercept(handle)


def _plain(name: str) -> str:
    """`mul` for `__mul__`, `__rmul__` and `mul_`: the same operation however it is written."""
    name = name.strip("_")
    return name[1:] if name in ("radd", "rmul", "rsub", "rtruediv", "rmatmul", "rpow") else name
