"""Which guidance branch a call of the transformer is of.

diffusers' pipelines say it themselves: each call is made within `transformer.cache_context(NAME)`, `cond`, `uncond`,
`pred_cond`, or `cond_uncond` for both in one batch, the unconditional one first. Without it the calls of a step are
named in their order, `cond` first, as those pipelines make them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from parity.hooks.methods import replaced
from parity.hooks.reduce.shards import is_split
from parity.recorder.steps import Called, Steps, in_order

BATCHED = ("uncond", "cond")
_TIMES = ("timestep", "timesteps", "t", "time", "sigma")
_GIVEN = ("hidden_states", "sample", "latents", "x")


def _timestep(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """The timestep that a call is given, by its name or as the first number; None for none."""
    named = (kwargs[name] for name in _TIMES if name in kwargs)
    first = (x for x in args if type(x) in (int, float) or (isinstance(x, torch.Tensor) and x.ndim < 2))
    found = next((x for x in (*named, *first) if x is not None), None)
    if isinstance(found, torch.Tensor):
        return float(found.max()) if found.numel() and not found.is_complex() else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _latents(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """A copy of the latents that a call is given: by their name, or the first of rows or pixels; None for a share."""
    every = (*(kwargs[name] for name in _GIVEN if name in kwargs), *args, *kwargs.values())
    found = next((x for x in every if isinstance(x, torch.Tensor) and x.ndim > 2), None)
    return None if found is None or is_split(found) else found.detach().clone()


def _batch(x: Any) -> int:
    """How many an argument is of: a batch of tensors, or a list of them; 0 for anything else."""
    if isinstance(x, torch.Tensor):
        return x.shape[0] if x.ndim > 1 else 0
    return len(x) if isinstance(x, list) and all(isinstance(item, torch.Tensor) for item in x) else 0


class Branches:
    """Names the calls of one transformer.

    A batch of two that nobody explains is taken for both branches, until a second call on the same latents shows that
    it is two videos.

    Attributes:
        guided: says whether a batch of several holds both branches; None where nobody knows.
        given: the names that the user gave for the branches of a batch, in order; empty for none. steps: of the
            recording, which are told of each call.
    """

    def __init__(self, guided: Callable[[], bool | None], given: tuple[str, ...], steps: Steps) -> None:
        self.guided, self.given, self.steps = guided, given, steps
        self._context = ""
        self._apart = False

    def failed(self) -> None:
        """The last call raised: another may take its place."""
        if self.steps.calls:
            self.steps.calls.pop()

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The branches in the batch of a call that begins, in order."""
        timestep, latents = _timestep(args, kwargs), _latents(args, kwargs)
        self.steps.turn(timestep)
        names, by_order = self._named(args, kwargs, latents)
        self.steps.calls.append(Called(self, len(self.steps.part), names, by_order, timestep, latents))
        return names

    def _named(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], latents: torch.Tensor | None
    ) -> tuple[tuple[str, ...], bool]:
        """Its branches, and whether they are named by its place among the calls of the step."""
        batch = next((n for n in map(_batch, (*args, *kwargs.values())) if n), 1)
        if len(self.given) > 1:
            return self.given, False
        name = self._context.removeprefix("pred_")
        if name and name != "cond_uncond":
            return (name,), False
        before = [c for c in self.steps.calls if c.of is self]
        guided = self.guided()
        again = any(c.branches == BATCHED and c.on(latents) for c in before)
        self._apart |= again
        both = batch == len(BATCHED) if guided is None else guided and batch % len(BATCHED) == 0
        if both and not self._apart and (name or not any(c.by_order for c in before)):
            return BATCHED, False
        if again:  # the first was taken for both branches, and has their names; the next steps' calls get them
            return (f"call{len(before) + 1}",), False
        return (in_order(len(before)),), True

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Within it, the names that a pipeline gives its calls are heard."""
        own = getattr(model, "cache_context", None)
        if own is None:
            yield
            return

        @contextlib.contextmanager
        def heard(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
            before, self._context = self._context, str(name)
            try:
                with own(name, *args, **kwargs):
                    yield
            finally:
                self._context = before

        with replaced(model, "cache_context", heard):
            yield
