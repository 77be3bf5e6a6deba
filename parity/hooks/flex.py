"""Flex attention in somebody's own code, which is mostly compiled: no function mode of torch sees such a call.

It is found by its function wherever a module keeps that, as it is or compiled by `torch.compile`. While a call of the
model is observed, what is found there is called through a function that looks at what goes in and comes out.

Cost: a pass over the names of the modules that no package manager installed, and over all where others were loaded.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

_HOME = "torch.nn.attention.flex_attention"

Watcher = Callable[[Any, Any, Any, Any, Callable[..., Any]], None]
"""`seen(query, key, value, out, function)`: tensors [B, heads, rows, head dim], and the function that computed them."""


@contextlib.contextmanager
def watched_flex(seen: Watcher) -> Iterator[None]:
    """Within it, each call of a flex attention that somebody's code makes is seen. Its result is as it would be."""
    replaced = [(module, name, own, _observed(own, seen)) for module, name, own in _places()]
    for module, name, _, observed in replaced:
        setattr(module, name, observed)
    try:
        yield
    finally:
        for module, name, own, observed in replaced:
            if vars(module).get(name) is observed:
                setattr(module, name, own)


def _observed(own: Callable[..., Any], seen: Watcher) -> Callable[..., Any]:
    @functools.wraps(own, updated=())  # without what torch.compile has noted on it
    def observed(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        out = own(query, key, value, *args, **kwargs)
        if not torch.compiler.is_compiling():  # within a program of the script's own nothing can be looked at
            seen(query, key, value, out[0] if isinstance(out, tuple) else out, own)
        return out

    return observed


def _places() -> list[tuple[ModuleType, str, Callable[..., Any]]]:
    """Modules, and the names under which they keep flex attention; empty where nobody has imported it."""
    home = sys.modules.get(_HOME)
    if home is None:
        return []
    return [
        (module, name, value)
        for module in _modules(len(sys.modules))
        for name, value in list(vars(module).items())
        if _is_flex(value, home.flex_attention)
    ]


def _is_flex(value: Any, own: Callable[..., Any]) -> bool:
    # Compiled functions are functions; of anything else no attribute is asked for, which might run its code.
    return type(value) is FunctionType and (value is own or vars(value).get("_torchdynamo_orig_callable") is own)


@functools.lru_cache(maxsize=1)
def _modules(loaded: int) -> list[ModuleType]:
    """The modules that may keep flex attention: installed ones that do, and all others, which may still be given it.

    Args:
        loaded: how many there are, for the cache alone.
    """
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    own = sys.modules[_HOME].flex_attention
    return [m for m in modules if not _is_installed(m) or any(_is_flex(x, own) for x in list(vars(m).values()))]


def _is_installed(module: ModuleType) -> bool:
    where = getattr(module.__spec__, "origin", None) if module.__spec__ else None
    return where is not None and where.startswith((*_INSTALLED, "built-in", "frozen"))


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
