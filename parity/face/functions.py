"""Functions as modules, so that they are observed, perturbed and repeated in float64 as any reference is.

Problem. A floor is measured by running the reference again in float64 and with its rounding moved. A function holds its
weights in a closure, where no cast reaches them; a function of JAX's knows no torch at all.

How. `Function` is called within a mode that widens what torch's functions are given, so that every product is computed
in float64 whoever holds the weights. `JaxFunction` hands its arrays to JAX and back, 64 bits wide where that is asked.
Neither moves or casts anything of the caller's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch.nn.utils import stateless

from parity.errors import UsageError
from parity.face.arguments import is_array
from parity.hooks.torchtools import Intercept, mapped, named_tensors, to_torch


class Function(torch.nn.Module):
    """A torch function as a module.

    Args:
        call: the function. held: modules that it calls, by name. Of a single one the modules are observed under its
            own names, of several under theirs.
        dtype: that it works in as it is. device: of its arguments as they were given.
    """

    def __init__(
        self, call: Callable[..., Any], held: Mapping[str, torch.nn.Module], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.call, self.own, self.wanted, self.where = call, dtype, dtype, device
        self.wide: dict[str, torch.Tensor] = {}
        if len(held) == 1:
            # The very dicts of the module: what takes a parameter's place here takes it there, where it is used.
            (module,) = held.values()
            for name in ("_parameters", "_buffers", "_modules"):
                self.__dict__[name] = vars(module)[name]
            return
        for name, module in held.items():
            self.add_module(name, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call, hooks included, with the weights of the modules that it holds as wide as was asked."""
        with stateless._reparametrize_module(self, self.wide):
            return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function's own output, computed in the dtype that was asked of this module."""
        args, kwargs = mapped(self._placed, args), mapped(self._placed, kwargs)
        with widened(self.wanted) if self.wanted != self.own else contextlib.nullcontext():
            return self.call(*args, **kwargs)

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.device.type in ("jax", self.where.type) else x.to(self.where)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """What `to` comes to: the dtype is remembered, the caller's modules stay as they are."""
        self.wanted = fn(torch.zeros(1, dtype=self.wanted)).dtype
        if torch.finfo(self.wanted).bits < torch.finfo(self.own).bits:
            raise UsageError(
                f"a function that works in {self.own} cannot be run in {self.wanted}: its weights are its own; give a "
                "module, or a function with weights of that dtype"
            )
        held = named_tensors(self) if self.wanted != self.own else ()
        self.wide = {n: x.detach().to(self.wanted) for n, x in held if x.is_floating_point()}
        return self


def widened(dtype: torch.dtype) -> Intercept:
    """Within it, the floating tensors that torch's functions are given are as wide as `dtype`."""
    bits = torch.finfo(dtype).bits

    def wide(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or torch.finfo(x.dtype).bits >= bits:
            return x
        with torch._C.DisableTorchFunction():
            return x.to(dtype)

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") in _LOOKS:
            return func(*args, **kwargs)
        return func(*mapped(wide, args), **mapped(wide, kwargs))

    return Intercept(handle)


_LOOKS = frozenset({"__get__", "__set__", "is_floating_point", "is_complex", "size", "dim", "copy_", "__setitem__"})
"""What only looks at a tensor, or writes to it: there a copy would be looked at."""


class JaxFunction(torch.nn.Module):
    """A function of JAX's as a torch module: the output alone can be observed.

    Args:
        call: takes and returns jax arrays, in any nest.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call, self.wanted = call, torch.float32

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What it returns, its arrays as torch tensors on the CPU."""
        import jax

        from parity.hooks.reduce.on_jax import array_of

        with jax.enable_x64(True) if self.wanted == torch.float64 else contextlib.nullcontext():
            out = self.call(*mapped(array_of, args), **mapped(array_of, kwargs))
            return mapped(to_torch, out, lambda x: to_torch(x) if is_array(x) else x)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.wanted = fn(torch.zeros(1, dtype=self.wanted)).dtype
        return self
