"""Calls that can be made again: the same arguments, and the same draws from torch's generators."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parity.hooks.calls import mapped
from parity.recorder.methods import replaced


@dataclass(frozen=True)
class Draws:
    """Where torch's own generators stand.

    Attributes:
        cpu: the state of the CPU's. devices: of each CUDA device's.
    """

    cpu: torch.Tensor
    devices: tuple[torch.Tensor, ...]

    @classmethod
    def now(cls) -> Draws:
        """Where they stand now."""
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        return cls(torch.get_rng_state(), tuple(torch.cuda.get_rng_state_all()) if cuda else ())

    def put(self) -> None:
        """Put them back there."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            torch.cuda.set_rng_state_all(list(self.devices))


@dataclass(frozen=True)
class Again:
    """A call as it was made: what it was given is copied, generators where they stood."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    draws: Draws

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Again:
        """The call that is about to be made."""
        return cls(function, _copied(args), _copied(dict(kwargs)), Draws.now())

    def __call__(self) -> Any:
        """Make it again; may be done any number of times."""
        self.draws.put()
        return self.function(*_copied(self.args), **_copied(self.kwargs))


@contextlib.contextmanager
def calls_of(pipe: Any) -> Iterator[list[Again]]:
    """Within it, the calls of a pipeline are noted, so that each can be made again."""
    calls: list[Again] = []
    if not callable(pipe):
        yield calls
        return
    own, inside = type(pipe).__call__, False

    @functools.wraps(own)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if self is not pipe or inside:
            return own(self, *args, **kwargs)
        inside = True
        try:
            calls.append(Again.of(functools.partial(own, self), args, kwargs))
            return own(self, *args, **kwargs)
        finally:
            inside = False

    with replaced(type(pipe), "__call__", observed):
        yield calls


def _copied(x: Any) -> Any:
    return mapped(torch.clone, x, _same_draws)


def _same_draws(x: Any) -> Any:
    """A generator that draws what this one will; anything else as it is."""
    if not isinstance(x, torch.Generator):
        return x
    again = torch.Generator(x.device)
    again.set_state(x.get_state())
    return again
