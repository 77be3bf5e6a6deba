"""Sides of the tiny model, loaded with given settings; inputs are encoded once and shared."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from parity.hooks.sites import plan_sites
from parity.models.family import Family
from parity.models.folder import Case
from parity.models.registry import DEFAULT_MODEL, opened
from parity.paths.loaded import Inputs, Loaded, draw_noise, require_place
from parity.paths.loop import denoise, prepare
from parity.paths.network import Network
from parity.paths.reference import load_reference
from parity.records import Key, Record, StepRecords
from parity.settings import parse


@dataclass(frozen=True)
class Tiny:
    """A tiny model's case and family."""

    family: Family
    case: Case


@functools.cache
def tiny(model: str = DEFAULT_MODEL) -> Tiny:
    return Tiny(*opened(model))


@functools.cache
def _inputs(model: str, settings: tuple[str, ...]) -> Inputs:
    """Embeddings that a reference with these settings encodes, and the noise of a seed."""
    made, parsed = tiny(model), parse("torch", settings)
    require_place(Network(made.family, made.case), parsed, 1)
    conditions = made.family.conditions(made.case, parsed, None, torch.device("cpu"))
    return Inputs(conditions, draw_noise(made.case.latent_shape, 0), 1, 0)


def inputs(backend: str, settings: Sequence[str] = (), steps: int = 1, model: str = DEFAULT_MODEL) -> Inputs:
    """What a side with these settings starts from beside a partner with none; only the text stage's settings count."""
    # A candidate is fed what the reference's dtype gives, so its own counts for nothing here.
    counts = ("text.byt5_dtype=", "dtype=") if backend == "torch" else ("text.byt5_dtype=",)
    text = tuple(s for s in settings if s.startswith(counts) and s != "dtype=float32")
    return replace(_inputs(model, text), steps=steps)


def side(backend: str, *settings: str, steps: int = 1, model: str = DEFAULT_MODEL) -> Loaded:
    """One loaded side: `torch` is the reference, `torchax` the candidate."""
    made = tiny(model)
    parsed, given = parse(backend, settings), inputs(backend, settings, steps, model)  # type: ignore[arg-type]
    if backend == "torch":
        return load_reference(Network(made.family, made.case), parsed, given)
    from parity.paths.jax.candidate import load_candidate

    return load_candidate(Network(made.family, made.case), parsed, given)


shared = functools.cache(side)
"""A side that all tests share; its programs stay. None may change it."""


@dataclass(frozen=True)
class Outcome:
    """What one side came to.

    Attributes:
        side: with its proof of what was reached. schedule: timesteps. steps: records of each step.
    """

    side: Loaded
    timesteps: np.ndarray
    steps: tuple[StepRecords, ...]

    def value(self, port: str, *, step: int = -1, branch: str = "") -> np.ndarray:
        """One of the loop's own values."""
        return np.asarray(self.record(f"loop:{port}", step=step, branch=branch).value)

    def record(self, site: str, *, step: int = -1, branch: str = "") -> Record:
        return next(r for r in self.steps[step].records if r.key.site == site and r.key.branch == branch)

    @property
    def noise_pred(self) -> np.ndarray:
        return self.value("noise_pred")

    @property
    def latents(self) -> np.ndarray:
        return self.value("latents.after")


def walk(loaded: Loaded, plan: Any = None) -> Outcome:
    """Run a side alone over all its steps."""
    loop = prepare(loaded)
    return Outcome(loaded, loop.schedule.timesteps, tuple(denoise(loop, plan)))


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Relative L2."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(np.linalg.norm(y - x) / np.linalg.norm(x))


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
