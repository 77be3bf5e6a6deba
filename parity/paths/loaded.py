"""One loaded path, ready to denoise: the explicit inputs that it starts from, and what a backend must provide for it.

The inputs are the only things that two paths share: weights (a folder), prompt embeddings and masks, initial noise,
number of steps. Everything else (schedule, loop, guidance, kernels) each path computes by itself, so that a mistake in
one cannot hide in the other.

`parity.paths.reference` and `parity.paths.jax.candidate` build sides; `parity.paths.loop` runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.reduce.on_torch import to_numpy
from parity.hooks.rows import Masks, RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap
from parity.models.family import Family
from parity.models.feature_cache import Features, require_cache
from parity.models.folder import Case
from parity.models.patches import DTYPES, setting_dtype
from parity.paths.network import Network, require_meaning
from parity.paths.plan import Array
from parity.records import Record
from parity.settings import Reached, Settings

BRANCHES = ("cond", "uncond")


Conditions = Mapping[str, Mapping[str, torch.Tensor]]
"""Branch -> keyword of the transformer -> CPU tensor."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a generation starts from.

    Attributes:
        conditions: branch -> keyword of the transformer -> CPU tensor.
        noise: float32 CPU tensor of the case's latent shape, drawn from the seed.
        steps: denoising steps. seed: of the noise.
        beside: what the runs made that measured the text stage's floors, by name, and `float32`, the truth: the loop's
            runs of the same names go on from them. tokens: what that stage encoded, by name. Both are empty where the
            conditions are not those of the side's own text stage.
        start: the initial latents as they are, in place of the noise.
    """

    conditions: Conditions
    noise: torch.Tensor
    steps: int
    seed: int
    beside: Mapping[str, Conditions] = field(default_factory=dict)
    tokens: Mapping[str, torch.Tensor] = field(default_factory=dict)
    start: torch.Tensor | None = None

    def of(self, name: str) -> Inputs:
        """Those of a run of the reference that rounds otherwise: what its own stages before gave it, if any."""
        return replace(self, conditions=self.beside.get(name, self.conditions))


def require_place(network: Network, settings: Settings, steps: int) -> None:
    """Refuse settings that the model or the number of steps has no place for.

    Raises:
        UsageError: naming the setting.
    """
    require_meaning(network, settings)
    blocks = None if network.declares("cache") else int(network.case.config.get("num_layers", 0))
    require_cache(settings, blocks, steps)


def require_fit(network: Network, conditions: Conditions, start: torch.Tensor) -> None:
    """Refuse a golden's embeddings and noise that are not of this model's sizes.

    Raises:
        UsageError: naming the first that does not fit.
    """
    case = network.case
    if tuple(start.shape) != tuple(case.latent_shape):
        raise UsageError(
            f"--inputs: the golden's noise has shape {list(start.shape)}, the latents of '{case.name}' "
            f"{list(case.latent_shape)}: it was recorded with another model or size; give --model, or record it again"
        )
    branches = {branch for group in network.batches for branch in group}
    if set(conditions) != branches:
        raise UsageError(
            f"--inputs: the golden holds embeddings of {', '.join(sorted(conditions)) or 'no branch'}, "
            f"'{case.name}' takes {', '.join(sorted(branches))}: it was recorded with another model"
        )
    for stream in network.family.streams:
        width = int(case.config[stream.width])
        for branch, given in conditions.items():
            found = given.get(stream.argument)
            if found is None or found.ndim != 3 or found.shape[-1] != width:
                shape = "none" if found is None else str(list(found.shape))
                raise UsageError(
                    f"--inputs: '{branch}.{stream.argument}' must be [1, L, {width}] for '{case.name}', found {shape}"
                )


def draw_noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Initial noise as diffusers draws it from a CPU generator with this seed, in float32."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)


def array(x: torch.Tensor) -> Array:
    """A tensor's values on the host; 16-bit floats widened, which loses nothing."""
    return Array(to_numpy(x), dtype_name(x.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype in numpy's names."""
    return str(dtype).removeprefix("torch.")


def tensor(x: Array) -> torch.Tensor:
    """The tensor on the CPU, of its own dtype."""
    dtype: torch.dtype = getattr(torch, x.dtype)
    return torch.from_numpy(x.values.copy()).to(dtype)


if TYPE_CHECKING:
    from parity.paths.jax.candidate import TorchaxBackend
    from parity.paths.reference import TorchBackend

    Backend: TypeAlias = TorchBackend | TorchaxBackend

T = TypeVar("T", bound=Tap)

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
        model: the module; of a compiled one only parts without weights may be called, within `scope`. network, reached:
            whose code runs, and proof of its settings. dtype: it computes in.
        groups: the branches of each call. rules: which rows count at each site, by branch.
        frames: the row frames by branch and name: (index, weight) of `RowFrame`, put where it computes.
        placement: how the weights lie on the devices, in one line; empty where there is nothing to say.
        ran: attention site -> the function that computed it, of the calls so far.
        safe_attention: whether parity's attention stands in for torchax's own, which gives NaN in rows without a key.
        heard: the names that a port gave to values so far; None where modules are observed, all known beforehand.
        stacked: whether parameters of several layers may be one array, which the names of the layers take apart.
        idle: see `Ends`.
    """

    placement = ""
    stacked = False
    safe_attention = False
    heard: Set[str] | None = None

    @property
    def idle(self) -> tuple[str, ...]:
        return self.network.idle

    def __init__(self, network: Network, inputs: Inputs, reached: Reached, put: Callable[[np.ndarray], Any]) -> None:
        settings, given = reached.settings, inputs.conditions.items()
        self.network, self.reached, self.dtype = network, reached, DTYPES[settings.text("dtype")]
        self.groups, self.ran = network.batches, dict[str, str]()
        rows = {branch: network.rows(settings, condition) for branch, condition in given}
        self.rules = {branch: rule for branch, (rule, _) in rows.items()}
        self.frames: dict[str, dict[str, tuple[Any, Any]]] = {
            branch: {name: (put(f.index), put(f.weight)) for name, f in own.items()}
            for branch, (_, own) in rows.items()
        }

    def tap(self, kind: type[T], plan: SitePlan, reducer: Any, rule: RowRule, names: tuple[str, ...], frames: Any) -> T:
        """What observes a call with these branches in its batch."""
        network, masks = self.network, Masks(rule) if self.network.pairs_rows else None
        return kind(plan, reducer, rule, names, frames, named=network.named, ports=network.named_port, masks=masks)

    def hear(self, calls: StepCalls) -> None:
        """Hear the names that a port gives to values in the calls of a step, by a trace, which computes nothing."""


Listen = Callable[[tuple[str, ...]], contextlib.AbstractContextManager[object]]
"""The branches of a call of the model -> the context in which it is made."""


@dataclass
class Loaded:
    """One path, loaded.

    Attributes:
        network, inputs: what it runs. backend: where. modules: module path -> parent's path.
    """

    network: Network
    inputs: Inputs
    backend: Backend
    modules: Mapping[str, str]

    @property
    def family(self) -> Family:
        """What the model is."""
        return self.network.family

    @property
    def case(self) -> Case:
        """Whose weights it has."""
        return self.network.case

    @property
    def settings(self) -> Settings:
        """What it runs with."""
        return self.reached.settings

    @property
    def reached(self) -> Reached:
        """Proof that settings took effect."""
        return self.backend.reached

    def asked(self, setting: str) -> torch.dtype | None:
        """The dtype that a setting asks for; None for none. Who asks applies it: it is marked as reached."""
        dtype = setting_dtype(self.settings, setting)
        if dtype is not None:
            self.reached.mark(setting)
        return dtype


def batched(branches: Sequence[Arguments], shared: Arguments) -> dict[str, torch.Tensor | None]:
    """Arguments of one call: the branches' own stacked along the batch, the shared ones repeated."""

    def stacked(given: list[torch.Tensor | None]) -> torch.Tensor | None:
        return given[0] if len(given) == 1 or given[0] is None else torch.cat(cast(list[torch.Tensor], given))

    own = {name: stacked([b[name] for b in branches]) for name in branches[0]}
    return {name: stacked([x] * len(branches)) for name, x in shared.items()} | own
