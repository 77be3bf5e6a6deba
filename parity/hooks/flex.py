"""Flex attention in somebody's own code, which is mostly compiled: no function mode of torch sees such a call.

It is found by its function wherever a module keeps that, as it is or compiled by `torch.compile`. While a call of the
model is observed, what is found there is called through a function that looks at what goes in and comes out.

Cost: one pass over the names of all loaded modules, again only where others have been loaded since.
"""

from __future__ import annotations

import contextlib
import functools
import sys
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
    own = None if home is None else home.flex_attention
    return [] if own is None else list(_found(own, len(sys.modules)))


@functools.lru_cache(maxsize=1)
def _found(own: Callable[..., Any], loaded: int) -> tuple[tuple[ModuleType, str, Callable[..., Any]], ...]:
    """As `_places`; `loaded`, the number of modules, is there for the cache alone."""
    return tuple(
        (module, name, value)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        # Compiled functions are functions; of anything else no attribute is asked for, which might run its code.
        if type(value) is FunctionType and (value is own or vars(value).get("_torchdynamo_orig_callable") is own)
    )
