"""One loaded path, ready to denoise, and what a backend must provide for it.

`parity.paths.reference` and `parity.paths.jax.candidate` build sides; `parity.paths.loop` runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import torch

from parity.hooks.rows import Masks, PairedRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap
from parity.models.family import Family, Sampler
from parity.models.feature_cache import Features
from parity.models.patches import DTYPES
from parity.models.spec import Case
from parity.paths.inputs import Inputs
from parity.paths.plan import LOOP_STAGE
from parity.reached import Reached
from parity.records import Record
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.paths.jax.candidate import TorchaxBackend
    from parity.paths.reference import TorchBackend

    Backend: TypeAlias = TorchBackend | TorchaxBackend

T = TypeVar("T", bound=Tap)

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


class Base:
    """Where tensors live and how the transformer is called: what both backends have. For the rest see
    `parity.paths.reference.TorchBackend`.

    Attributes:
        family, reached: what runs, and proof of its settings. dtype: it computes in.
        groups: the branches of each call. rules: which rows count at each site, by branch.
        frames: the row frames by branch and name: (index, weight) of `RowFrame`, put where it computes.
        placement: how the weights lie on the devices, in one line; empty where there is nothing to say.
        ran: attention site -> the function that computed it, of the calls so far.
        safe_attention: whether parity's attention stands in for torchax's own, which gives NaN in rows without a key.
    """

    placement = ""
    safe_attention = False

    def __init__(
        self, family: Family, case: Case, inputs: Inputs, reached: Reached, put: Callable[[np.ndarray], Any]
    ) -> None:
        settings, given = reached.settings, inputs.conditions.items()
        self.family, self.reached, self.dtype = family, reached, DTYPES[settings.text("dtype")]
        self.groups, self.ran = family.batches, dict[str, str]()
        self.rules = {branch: family.row_rule(case, settings, condition) for branch, condition in given}
        frames = {branch: family.frames(case, settings, condition) for branch, condition in given}
        self.frames: dict[str, dict[str, tuple[Any, Any]]] = {
            branch: {name: (put(f.index), put(f.weight)) for name, f in own.items()} for branch, own in frames.items()
        }

    def tap(
        self, kind: type[T], plan: SitePlan, reducer: Any, rule: PairedRule, names: tuple[str, ...], frames: Any
    ) -> T:
        """What observes a call with these branches in its batch."""
        family, masks = self.family, Masks(rule) if self.family.pairs_rows else None
        return kind(plan, reducer, rule, names, frames, named=family.named, ports=family.named_port, masks=masks)

    @property
    def seen(self) -> Set[str] | None:
        """The names that a port gave to values so far; None where modules are observed, all known beforehand."""
        return None

    @property
    def eager(self) -> TorchBackend | None:
        """This backend, where it runs a torch module eagerly, so that hooks act in every call; None where the module is
        compiled, or there is none."""
        return None

    def names(self, call: Callable[[], object]) -> Set[str] | None:
        """The names that a port's values will be observed under, found by tracing a call of it, so that nothing is
        computed; None where modules are observed, all known beforehand."""
        return None


Listen = Callable[[tuple[str, ...]], contextlib.AbstractContextManager[object]]
"""The branches of a call of the model -> the context in which it is made."""


@dataclass
class Loaded:
    """One path, loaded.

    Attributes:
        role: `reference` or `candidate`. family, case, inputs: what it runs.
        backend: where. sampler: diffusers' own scheduler and guidance, of this side alone.
        modules: module path -> parent's path.
    """

    role: str
    family: Family
    case: Case
    inputs: Inputs
    backend: Backend
    sampler: Sampler
    modules: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        """What it runs with."""
        return self.reached.settings

    @property
    def reached(self) -> Reached:
        """Proof that settings took effect."""
        return self.backend.reached

    def with_fresh_sampler(self) -> Loaded:
        """The same path with a sampler of its own, which keeps state."""
        return replace(self, sampler=self.sampler.fresh())


def batched(branches: Sequence[Arguments], shared: Arguments) -> dict[str, torch.Tensor | None]:
    """Arguments of one call: the branches' own stacked along the batch, the shared ones repeated."""

    def stacked(given: list[torch.Tensor | None]) -> torch.Tensor | None:
        return given[0] if len(given) == 1 or given[0] is None else torch.cat(cast(list[torch.Tensor], given))

    own = {name: stacked([b[name] for b in branches]) for name in branches[0]}
    return {name: stacked([x] * len(branches)) for name, x in shared.items()} | own
