"""What `torch.compile` made of a module, and the module run without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from parity.hooks.methods import replaced

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
