"""Calls that can be made again: the same arguments, the same draws, and models that remember the same."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from parity.hooks.methods import replaced
from parity.hooks.torchtools import mapped

Guard = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Draws:
    """Where the generators stand that a script may draw from without naming one: torch's, numpy's and Python's.

    Attributes:
        cpu: the state of torch's on the CPU. devices: of each CUDA device's. others: of numpy's and of Python's.
    """

    cpu: torch.Tensor
    devices: tuple[torch.Tensor, ...]
    others: tuple[Any, Any]

    @classmethod
    def now(cls) -> Draws:
        """Where they stand now."""
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        devices = tuple(torch.cuda.get_rng_state_all()) if cuda else ()
        return cls(torch.get_rng_state(), devices, (np.random.get_state(), random.getstate()))

    def put(self) -> None:
        """Put them back there."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            torch.cuda.set_rng_state_all(list(self.devices))
        np.random.set_state(self.others[0])
        random.setstate(self.others[1])


MOST = 2**20
"""Elements of a tensor that is copied to be put back; larger ones are weights that stand in buffers."""


@dataclass(frozen=True)
class Memory:
    """What modules remember of their calls in attributes of their own and in buffers: counters, caches, tables.

    Attributes:
        held: for each module its attributes, and what was in those that can be written to.
    """

    held: tuple[tuple[torch.nn.Module, Mapping[str, tuple[Any, Any]], tuple[tuple[Any, Any], ...]], ...]

    @classmethod
    def of(cls, modules: Iterable[torch.nn.Module]) -> Memory:
        """What they remember now."""
        every = {id(m): m for module in modules for m in module.modules()}
        return cls(
            tuple(
                (
                    module,
                    {name: (x, _content(x)) for name, x in _own(module).items()},
                    tuple((x, _content(x)) for x in module._buffers.values()),
                )
                for module in every.values()
            )
        )

    def put(self) -> None:
        """Have them remember that again."""
        for module, attributes, buffers in self.held:
            for name in _own(module).keys() - attributes.keys():
                del vars(module)[name]
            for name, (x, content) in attributes.items():
                vars(module)[name] = x
                _put(x, content)
            for x, content in buffers:
                _put(x, content)


def _own(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes that a module's class gave it; not its parts, and not what torch or a recording hooked on to it."""
    return {n: x for n, x in vars(module).items() if n == "_buffers" or not (n.startswith("_") or n == "forward")}


def _content(x: Any) -> Any:
    """A copy of what can be written to; None for anything else."""
    if isinstance(x, torch.Tensor):
        small = type(x) is torch.Tensor and x.numel() <= MOST and x.device.type != "meta"
        return x.detach().clone() if small else None
    return x.copy() if type(x) in (list, dict, set) else None


def _put(x: Any, content: Any) -> None:
    """Write what a copy holds into what it was made of."""
    if content is None:
        return
    if isinstance(x, torch.Tensor):
        if x.device == content.device and not torch.equal(x, content):
            with torch.no_grad():
                x.copy_(content)
    elif isinstance(x, list):
        x[:] = content
    else:
        x.clear()
        x.update(content)


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
def calls_of(pipe: Any, guard: Guard) -> Iterator[list[Again]]:
    """Within it, the calls of a pipeline are noted, so that each can be made again.

    Args:
        guard: context in which parity's own work is done.
    """
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
            with guard():
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
