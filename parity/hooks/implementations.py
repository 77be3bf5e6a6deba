"""Which function computes an attention call: torch's, torchax's, or one that somebody's own code put in its place.

A port installs its kernel by replacing `scaled_dot_product_attention`, in torch or in torchax's operator table. A
verdict on the port rests on that kernel having run: so it is seen where it runs, and said with its file and line.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "torchax", "jax", "diffusers", "transformers", "parity")

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries."""
PORTS = "the port's own function"
"""How a function of somebody's own code is described."""


def described(function: Callable[..., Any]) -> str:
    """A function in words: `torchax's own`, or `the port's own function NAME (FILE:LINE)`."""
    found: Any = inspect.unwrap(function, stop=lambda wrapper: hasattr(wrapper, "__code__") and not _lent(wrapper))
    if isinstance(found, functools.partial):
        return described(found.func)
    found = getattr(found, "__func__", found)
    code = getattr(found, "__code__", None)
    if code is None or of_library(found):
        owner = _package(found)
        return "torch's own" if owner == "builtins" else f"{owner}'s own"
    name = str(code.co_qualname).rpartition("<locals>.")[2]
    return f"{PORTS} {name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]


def _lent(wrapper: Any) -> bool:
    """Whether a wrapper's code is some library's: a decorator's, as `torch.no_grad()`, or of what it wraps."""
    return of_library(wrapper) or not INSTALLED.isdisjoint(Path(wrapper.__code__.co_filename).parts)


def of_library(function: Any) -> bool:
    """Whether a function's code lies in the library that it says it is of: `functools.wraps` has a wrapper say that it
    is of what it wraps."""
    code, package = getattr(function, "__code__", None), _package(function)
    if code is None:
        return package in LIBRARIES or package == "builtins"
    files = [getattr(sys.modules.get(name), "__file__", None) for name in {package, "parity"} & set(LIBRARIES)]
    return any(Path(code.co_filename).is_relative_to(Path(file).parent) for file in files if file)


def sentence(ran: Mapping[str, str]) -> str:
    """What ran, and at which sites; empty where nothing did.

    Args:
        ran: attention site (`blocks.0.attention`) -> the function that computed it, and how often.
    """
    groups: dict[str, list[str]] = {}
    for site, function in ran.items():
        groups.setdefault(function, []).append(site.removesuffix(".attention"))
    return "; ".join(f"{function}{_at(sites)}" for function, sites in groups.items())


def _at(sites: list[str]) -> str:
    return f" at {sites[0]}" if len(sites) == 1 else f" each at {sites[0]} to {sites[-1]} ({len(sites)} modules)"
