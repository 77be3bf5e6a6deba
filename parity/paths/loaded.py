"""One loaded path, ready to denoise, and what a backend must provide for it.

`parity.paths.reference` and `parity.paths.jax.candidate` build sides; `parity.paths.loop` runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch

from parity.hooks.rows import PairedRule
from parity.hooks.sites import SitePlan
from parity.models.family import Family
from parity.models.feature_cache import Features
from parity.models.sampler import Sampler
from parity.models.spec import Case
from parity.paths.inputs import Inputs
from parity.paths.plan import LOOP_STAGE
from parity.reached import Reached
from parity.records import Record
from parity.settings import Settings

Array = TypeVar("Array")


STAGE = LOOP_STAGE


Arguments = Mapping[str, torch.Tensor | None]
"""Of the transformer, by name."""

Predicted = tuple[dict[str, torch.Tensor], list[Record]]
"""Noise predictions [1, ...] by branch, and the records of the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """The calls of the transformer in one step.

    Attributes:
        branches: branch -> the arguments that differ between branches. shared: the others.
        step: which. features: what the loop's feature cache holds, read and replaced; empty before the first step.
    """

    branches: Mapping[str, Arguments]
    shared: Arguments
    step: int
    features: Features

    def of(self, group: tuple[str, ...]) -> dict[str, torch.Tensor | None]:
        """Arguments of one call with these branches in its batch."""
        return batched([self.branches[b] for b in group], self.shared)


class Backend(Protocol):
    """Where tensors live and how the transformer is called."""

    name: str
    dtype: torch.dtype
    placement: str
    """How the weights lie on the devices, in one line; empty where there is nothing to say."""
    ran: dict[str, str]
    """Attention site -> the function that computed it, of the calls so far."""
    safe_attention: bool
    """Whether parity's attention stands in for torchax's own, which gives NaN in rows without a key."""

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        """Make the transformer's calls of one step.

        Args:
            plan: what to observe; None for nothing.
        """
        ...

    @property
    def named(self) -> Callable[[str], str]:
        """A module of its model -> the name that it is observed under."""
        ...

    @property
    def seen(self) -> Set[str] | None:
        """The names that a port gave to values so far; None where modules are observed, all known beforehand."""
        ...

    @property
    def eager(self) -> Eager | None:
        """This backend, where it runs a torch module eagerly; None where the module is compiled, or there is none."""
        ...

    def names(self, call: Callable[[], object]) -> Set[str] | None:
        """The names that a port's values will be observed under, found by tracing a call of it, so that nothing is
        computed; None where modules are observed, all known beforehand."""
        ...

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which everything of the loop runs: precision, gradients, torchax environment."""
        ...

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        """A CPU tensor moved to where this path computes, dtype kept."""
        ...

    def host(self, x: torch.Tensor) -> np.ndarray:
        """The values of a tensor on the host; bfloat16 and float16 widened to float32."""
        ...

    @property
    def device(self) -> Any:
        """What diffusers' schedulers take as a device."""
        ...

    def weights(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """(name, dtype, values) of each parameter and buffer, one at a time on the host; 16-bit floats as float32."""
        ...

    def to_torch(self, x: torch.Tensor) -> torch.Tensor:
        """A plain CPU torch tensor of the same dtype and values."""
        ...

    def describe(self) -> tuple[str, ...]:
        """The devices by process, for people: `cpu`, `NVIDIA H200`, `TPU v5 lite x 8`."""
        ...

    def module(self) -> torch.nn.Module:
        """The transformer, to be called within `scope` and only for parts without weights."""
        ...


Listen = Callable[[tuple[str, ...]], contextlib.AbstractContextManager[None]]
"""The branches of a call of the model -> the context in which it is made."""


class Eager(Backend, Protocol):
    """A backend that runs a torch module eagerly, so that hooks act in every call."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def rules(self) -> Mapping[str, PairedRule]:
        """Which rows count at each site, by branch."""
        ...

    @property
    def pairs_rows(self) -> bool:
        """Whether the masks that the module is given say which rows count."""
        ...

    @property
    def frames(self) -> Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]:
        """The row frames by branch and name, on its device."""
        ...

    def listening(self, listen: Listen) -> contextlib.AbstractContextManager[None]:
        """Within it, each call of the model, of these branches, is made in the context that `listen` gives."""
        ...


@dataclass
class Loaded:
    """One path, loaded.

    Attributes:
        role: `reference` or `candidate`. family, case, settings, inputs: what it runs.
        backend: where. sampler: diffusers' own scheduler and guidance, of this side alone.
        reached: proof that settings took effect. modules: module path -> parent's path.
    """

    role: str
    family: Family
    case: Case
    settings: Settings
    inputs: Inputs
    backend: Backend
    sampler: Sampler
    reached: Reached
    modules: Mapping[str, str]

    def with_fresh_sampler(self) -> Loaded:
        """The same path with a sampler of its own, which keeps state."""
        return replace(self, sampler=self.sampler.fresh())


def batched(branches: Sequence[Arguments], shared: Arguments) -> dict[str, torch.Tensor | None]:
    """Arguments of one call: the branches' own stacked along the batch, the shared ones repeated."""

    def stacked(given: list[torch.Tensor | None]) -> torch.Tensor | None:
        return given[0] if len(given) == 1 or given[0] is None else torch.cat(cast(list[torch.Tensor], given))

    own = {name: stacked([b[name] for b in branches]) for name in branches[0]}
    return {name: stacked([x] * len(branches)) for name, x in shared.items()} | own


def rules_of(family: Family, case: Case, settings: Settings, inputs: Inputs) -> dict[str, PairedRule]:
    """Which rows count at each site, by branch."""
    return {b: family.row_rule(case, settings, c) for b, c in inputs.conditions.items()}


def frames_of(
    family: Family, case: Case, settings: Settings, inputs: Inputs, put: Callable[[np.ndarray], Array]
) -> dict[str, dict[str, tuple[Array, Array]]]:
    """The row frames by branch and name: (index, weight) of `RowFrame`, put where a backend computes."""
    return {
        b: {name: (put(f.index), put(f.weight)) for name, f in family.frames(case, settings, c).items()}
        for b, c in inputs.conditions.items()
    }
