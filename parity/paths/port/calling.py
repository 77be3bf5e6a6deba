"""Calling a port's functions: what they raise is reported, what they change is put back, their layout is theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from parity.errors import UsageError
from parity.paths.port.load import Entry, failures
from parity.paths.port.state import kept
from parity.port import Port


@contextlib.contextmanager
def guarded(entry: Entry, name: str = "call") -> Iterator[None]:
    """A call of a port: what it raises becomes one line; what it changes for the process is put back, and an error.

    Args:
        name: of the function.

    Raises:
        UsageError: see above.
    """
    said: list[str] = []
    with kept(said), entry.running(), failures(f"{entry.named}: `{name}`", entry.path):
        yield
    if said:
        raise UsageError(f"{entry.named}: `{name}` {'; '.join(said)}; put back, but nothing outside may be changed")


def moved(x: Any, port: Port, rank: int, source: int, target: int) -> Any:
    """An array of the latents' rank with its channels moved, where the port has them last; anything else as it is."""
    if port.layout == "channels_first" or rank < 4 or getattr(x, "ndim", 0) != rank:
        return x
    if isinstance(x, torch.Tensor):
        return x.movedim(source, target)
    import jax.numpy as jnp

    return jnp.moveaxis(x, source, target)
