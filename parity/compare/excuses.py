"""Where a differing setting changes what is called or passed by design, so that a birth there is no fault by itself.

Whether such a difference does harm is told by noise_pred and latents, which no setting excuses.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from parity.golden.records import Key
from parity.settings import BY_NAME, DeepCache, Difference, deep_cache


@dataclass(frozen=True, slots=True)
class SkippedExcuse:
    """A site that a declared feature cache changes at the steps at which it skips blocks.

    Attributes:
        glob: over `module` or `module:port`. cache: whose steps count.
    """

    glob: str
    cache: DeepCache


Excuse = str | SkippedExcuse
"""A glob over `module` or `module:port`, for every step or for those at which a cache skips blocks."""


def excuses(differing: Iterable[Difference]) -> tuple[Excuse, ...]:
    """What these declared differences excuse."""
    found: list[Excuse] = []
    for difference in differing:
        if difference.setting in BY_NAME:  # a golden may have a setting of another version
            found += BY_NAME[difference.setting].expected_at
        if difference.setting == "cache":
            caches = (deep_cache(difference.reference), deep_cache(difference.candidate))
            found += [excuse for cache in caches if cache is not None for excuse in _cached(cache)]
    return tuple(found)


def excused(key: Key, excuses: Iterable[Excuse]) -> bool:
    """Whether an excuse names this site at this step."""
    return any(_names(excuse, key) for excuse in excuses)


def _names(excuse: Excuse, key: Key) -> bool:
    if isinstance(excuse, SkippedExcuse):
        return not excuse.cache.full(key.step) and _names(excuse.glob, key)
    return fnmatch.fnmatchcase(key.site, excuse) or fnmatch.fnmatchcase(key.module, excuse)


def _cached(cache: DeepCache) -> list[Excuse]:
    """The skipped blocks, which only one side calls, and what the kept residual is handed to."""
    blocks = [f"transformer_blocks.{i}{below}" for i in range(cache.start, cache.end) for below in ("", ".*")]
    following = f"transformer_blocks.{cache.end}"
    taken = (f"{following}:in.hidden_states*", f"{following}:in.encoder_hidden_states*", "norm_final:in.input*")
    return [SkippedExcuse(glob, cache) for glob in (*blocks, *taken, "norm_out:in.x*")]
