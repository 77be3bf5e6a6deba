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

BATCHED = ("uncond", "cond")
_ORDER = ("cond", "uncond")


def _batch(x: Any) -> int:
    """How many an argument is of: a batch of tensors, or a list of them; 0 for anything else."""
    if isinstance(x, torch.Tensor):
        return x.shape[0] if x.ndim > 1 else 0
    return len(x) if isinstance(x, list) and all(isinstance(item, torch.Tensor) for item in x) else 0


class Branches:
    """Names the calls of one transformer.

    A batch of two that nobody explains is taken for both branches, until a second call in the same step shows that it
    is two videos.

    Attributes:
        guided: says whether a batch of several holds both branches; None where nobody knows.
        given: the names that the user gave for the branches of a batch, in order; empty for none.
    """

    def __init__(self, guided: Callable[[], bool | None], given: tuple[str, ...] = ()) -> None:
        self.guided, self.given = guided, given
        self._context = ""
        self._calls = 0
        self._guessed = self._apart = False

    def step(self) -> int:
        """A step of the scheduler ended: how many calls were made in it."""
        made, self._calls = self._calls, 0
        self._apart |= made > 1 and self._guessed
        self._guessed = False
        return made

    def failed(self) -> None:
        """The last call raised: another may take its place."""
        self._calls -= 1

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The branches in the batch of a call, in order."""
        batch = next((n for n in map(_batch, (*args, *kwargs.values())) if n), 1)
        self._calls += 1
        if len(self.given) > 1:
            return self.given
        name = self._context.removeprefix("pred_")
        if name and name != "cond_uncond":
            return (name,)
        guided = self.guided()
        both = batch == len(BATCHED) and not self._apart if guided is None else guided
        if both and batch % len(BATCHED) == 0 and (name or self._calls == 1):
            self._guessed |= guided is None and not name
            return BATCHED
        if self._guessed:  # the first was no batch of both after all: the next steps' are named one by one
            return (f"call{self._calls}",)
        return (_ORDER[self._calls - 1],) if self._calls <= len(_ORDER) else (f"call{self._calls}",)

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
