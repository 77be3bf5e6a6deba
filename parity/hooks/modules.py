"""What a model is made of: its tensors by name, its tree of modules, what its classes remember.

A module that `torch.compile` made something of can be run without that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from types import CellType
from typing import Any

import torch

from parity.hooks.methods import replaced
from parity.hooks.torchtools import callable_modules


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, tied ones under each name, and the buffers that state_dict leaves out."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's tensors are; the CPU for one that has none."""
    return next((x.device for _, x in named_tensors(model)), torch.device("cpu"))


def cast(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose tensors are in a dtype, complex tables among them: torch's own `to` keeps only their real part."""
    wide = torch.complex128 if dtype is torch.float64 else torch.complex64

    def one(x: torch.Tensor) -> torch.Tensor:
        return x.to(wide) if x.is_complex() else x.to(dtype) if x.is_floating_point() else x

    return model._apply(one)


def module_tree(model: torch.nn.Module) -> dict[str, str]:
    """Path of each callable module -> path of the nearest callable module above it."""
    paths = callable_modules(model)
    return {path: nearest(path, paths) for path in paths if path}


def nearest(path: str, paths: Container[str]) -> str:
    """The nearest path above one among others; empty for none."""
    above = path.rpartition(".")[0]
    while above and above not in paths:
        above = above.rpartition(".")[0]
    return above


@contextlib.contextmanager
def uncached(model: torch.nn.Module) -> Iterator[None]:
    """Within it, what the methods of a model's classes remember (`functools.lru_cache`) begins empty, and is forgotten
    after it: a rotary table that one trace made is a tracer of that one, which no other program may use."""
    caches = list(_caches(model))
    for clear in caches:
        clear()
    try:
        yield
    finally:
        for clear in caches:
            clear()


def _caches(model: torch.nn.Module) -> Iterator[Callable[[], object]]:
    """What empties each cache; diffusers wraps the cached function in one that decides whether to use it."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if kind is not torch.nn.Module}
    for kind in kinds:
        for method in vars(kind).values():
            cells = getattr(method, "__closure__", None) or ()
            for held in (method, *(cell.cell_contents for cell in cells if _filled(cell))):
                clear = getattr(held, "cache_clear", None)
                if callable(clear) and callable(held):
                    yield clear


def _filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty one raises)
    except ValueError:
        return False
    return True


ORIGINAL = "_torchdynamo_orig_callable"
"""Attribute of a compiled function: the function."""


def plain(model: Any) -> Any:
    """The module that `torch.compile(module)` wraps; anything else as it is."""
    return model._orig_mod if type(model).__name__ == "OptimizedModule" else model


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether a module, or one within it, is compiled by torch.compile."""
    return any(_compiled(m) for m in model.modules())


def _compiled(module: torch.nn.Module) -> bool:
    held = vars(module)
    in_place = held.get("_compiled_call_impl") is not None
    return plain(module) is not module or in_place or hasattr(held.get("forward"), ORIGINAL)


def entry_of(module: torch.nn.Module) -> str:
    """The attribute of a module that a call of it ends in, outside of what is compiled."""
    return "forward" if vars(module).get("_compiled_call_impl") is None else "_compiled_call_impl"


@contextlib.contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Within it, a module and those within it run without the programs that they were compiled to.

    Args:
        model: as `plain` gives it.
    """
    with contextlib.ExitStack() as stack:
        for module in list(model.modules()):
            for name, child in list(module._modules.items()):
                if child is not None and plain(child) is not child:
                    stack.callback(module._modules.__setitem__, name, child)
                    module._modules[name] = plain(child)
        for module in list(model.modules()):
            if vars(module).get("_compiled_call_impl") is not None:
                stack.enter_context(replaced(module, "_compiled_call_impl", None))
            original = getattr(vars(module).get("forward"), ORIGINAL, None)
            if original is not None:
                stack.enter_context(replaced(module, "forward", original))
        yield
