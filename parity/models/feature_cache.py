"""Feature caches: blocks that most steps leave out, adding again what they added in an earlier step.

DeepCache (Ma et al. 2023) for a transformer, `cache=deepcache:start,end,interval`: at steps that are multiples of
`interval` all blocks run, and the residual of the blocks [start, end), their output less their input of both token
streams, is kept; at the other steps those blocks are not called and the kept residual is added.

How. The model's list of blocks is replaced by one that hands other items to the loop over it, while a call is made
within `calling`: items that keep or add a residual stand between the blocks, and skipped blocks are left out. So
every forward that walks its blocks as `x, text = block(x, text, ...)` is served, diffusers' own included. The kept
residuals are given to a call and taken from it, never held here: they are inputs and outputs of a compiled program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.methods import using
from parity.models.attention import SETTLE
from parity.settings import DeepCache, Reached, Settings

Kept = tuple[Any, ...]
"""The residuals (image tokens, text tokens), each [B, tokens, channels]; empty where there is no cache."""

Features = dict[tuple[str, ...], Kept]
"""What one loop keeps from step to step, by the guidance branches of a call."""


@dataclass
class CachedCall:
    """One call of a model.

    Attributes:
        given: the residuals to add; None where all blocks run. kept: the residuals after the call.
    """

    given: Kept | None
    kept: Kept = ()


CALL: ContextVar[CachedCall | None] = ContextVar("parity_cached_call", default=None)
"""The call under way, for blocks with a cache, and for a model that keeps what it skips by itself (a port)."""


class CachedBlocks(torch.nn.ModuleList):
    """The blocks of a model with a cache; a plain list outside of `calling`."""

    def __init__(self, blocks: Sequence[torch.nn.Module], cache: DeepCache, reached: Reached) -> None:
        super().__init__(blocks)
        self.cache, self.reached = cache, reached

    def __iter__(self) -> Iterator[Any]:
        blocks, call = list(self._modules.values()), CALL.get()
        if call is None:
            return iter(blocks)

        def begin(hidden_states: Any, encoder_hidden_states: Any, *rest: Any, **others: Any) -> Any:
            call.kept = SETTLE.get()(hidden_states, encoder_hidden_states)
            return call.kept

        def keep(hidden_states: Any, encoder_hidden_states: Any, *rest: Any, **others: Any) -> Any:
            self.reached.mark("cache")
            after = SETTLE.get()(hidden_states, encoder_hidden_states)
            residuals = [b - a for a, b in zip(call.kept, after, strict=True)]
            call.kept = tuple(SETTLE.get()(*residuals))
            return after

        def add(hidden_states: Any, encoder_hidden_states: Any, *rest: Any, **others: Any) -> Any:
            assert call.given is not None
            call.kept = image, text = call.given
            return SETTLE.get()(hidden_states + image, encoder_hidden_states + text)

        start, end = self.cache.start, self.cache.end
        between = [begin, *blocks[start:end], keep] if call.given is None else [add]
        return iter([*blocks[:start], *between, *blocks[end:]])


def install(model: Any, settings: Settings, reached: Reached) -> None:
    """Give a loaded model the cache that the settings name, if any."""
    cache = settings.deep_cache
    if cache is not None:
        model.transformer_blocks = CachedBlocks(list(model.transformer_blocks), cache, reached)


@contextlib.contextmanager
def calling(given: Kept | None) -> Iterator[CachedCall]:
    """Within it, a call of a model runs all its blocks (`given` None), or adds what it is given for skipped ones."""
    call = CachedCall(given)
    with using(CALL, call):
        yield call


def given_at(settings: Settings, step: int, features: Features, group: tuple[str, ...]) -> Kept | None:
    """What a call of this step is given: None for a step that runs all blocks, and outside the loop."""
    cache = settings.deep_cache
    return None if cache is None or step < 0 or cache.full(step) else features[group]


def require_cache(settings: Settings, blocks: int | None, steps: int) -> None:
    """Refuse a cache that the model has no blocks for, or that would skip nothing.

    Args:
        blocks: how many the model has; None where it skips them itself.

    Raises:
        UsageError: naming what there is.
    """
    cache = settings.deep_cache
    if cache is None:
        return
    given = f"the {settings.backend} path was given 'cache={settings.text('cache')}'"
    if blocks is not None and cache.end > blocks:
        raise UsageError(f"{given}, and the model has {blocks} blocks: END is at most {blocks}")
    if steps < 2:
        raise UsageError(f"{given}, which skips nothing in 1 step: give --steps 2 or more")
