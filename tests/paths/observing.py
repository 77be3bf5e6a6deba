"""Running one step of a side, for the tests of what observing promises."""

from __future__ import annotations

import numpy as np

from parity.golden.records import Key, Record
from parity.hooks.sites import plan_sites
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare


def step_of(side: Loaded, sites: str | None, values: tuple[str, ...] = ()) -> dict[Key, Record]:
    """The records of one step by key; `sites` None observes nothing but the loop's own values."""
    plan = None if sites is None else plan_sites(["", *side.modules], sites, values)
    return {r.key: r for r in next(iter(denoise(prepare(side), plan))).records}


_DONE: dict[tuple[int, str | None], dict[Key, Record]] = {}


def once(side: Loaded, sites: str | None) -> dict[Key, Record]:
    """`step_of`, run once for each shared side (which lives as long as the session) and choice of sites."""
    key = id(side), sites
    if key not in _DONE:
        _DONE[key] = step_of(side, sites)
    return _DONE[key]


def loop_values(records: dict[Key, Record]) -> dict[str, np.ndarray]:
    """The loop's own values: noise_pred of each branch and guided, latents before and after."""
    return {str(key): np.asarray(r.value) for key, r in records.items() if key.module == "loop"}
