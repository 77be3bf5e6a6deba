"""Stages: parts of a generation outside the loop (text encoders, VAE), each inputs -> outputs, observed by taps.

A stage is described by one small object and run by a path: `TorchStage` here, `parity.paths.stage_torchax.TorchaxStage`
for the candidate. Its floors are measured as the transformer's are: in float64, under Monte Carlo rounding, and in the
working dtypes where they are coarser than float32. Records carry the stage's name and step -1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from parity.golden.records import LOOP, Floor, Key, Record, StepRecords
from parity.hooks.attach import attached, require_fired
from parity.hooks.rows import NoRows, RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap
from parity.hooks.transfer import to_numpy, torch_records
from parity.paths.floors import SEEDS, least, level, widen
from parity.paths.loop import value_record
from parity.paths.perturb import perturbed
from parity.paths.reference import TorchReducer, module_tree, torch_scope
from parity.reached import Reached
from parity.settings import Settings

STEP = -1
"""The step of records made outside the loop."""

Inputs = Mapping[str, torch.Tensor]
Outputs = Mapping[str, np.ndarray]


class Load(Protocol):
    """Makes the stage's module on the CPU, with its settings realised; see `parity.models.vae.load_decoder`."""

    def __call__(
        self, settings: Settings, reached: Reached, *, dtype: torch.dtype | None = None, traced: bool = False
    ) -> torch.nn.Module: ...


@dataclass(frozen=True)
class Stage:
    """One stage of a generation.

    Attributes:
        name: `text` or `vae`, the stage of its records.
        trunk: child of its module that does the work; each of its calls is one compiled program of the candidate.
        load: makes the module, which takes the inputs by name and returns a dict of output tensors.
        rule: which tensors' rows are observed, and how. branch: guidance branch of its records.
    """

    name: str
    trunk: str
    load: Load
    rule: RowRule = field(default_factory=NoRows)
    branch: str = ""

    def records(self, outputs: Mapping[str, tuple[np.ndarray, str]]) -> list[Record]:
        """Records of the stage's outputs, which are held whole and always decide, from (values, dtype) by name."""
        return [
            value_record(Key(self.name, STEP, self.branch, f"{LOOP}:{name}"), x, dtype)
            for name, (x, dtype) in outputs.items()
        ]


@dataclass(frozen=True, slots=True)
class Seen:
    """One run of a stage.

    Attributes:
        outputs: by name, on the host. records: of the sites, in execution order, then of the outputs.
    """

    outputs: Outputs
    records: tuple[Record, ...]


class Runner(Protocol):
    """A stage loaded on a path.

    Attributes:
        reached: proof of its settings. modules: module path -> parent's path.
    """

    reached: Reached
    modules: dict[str, str]

    def run(self, inputs: Inputs, plan: SitePlan | None) -> Seen:
        """Run it on CPU tensors.

        Raises:
            UnjudgedError: a chosen site never fired.
        """
        ...


class TorchStage:
    """A stage in PyTorch, on CUDA where there is one; see `Runner`.

    Args:
        dtype: in place of the settings' dtype: float64 for the floor.
    """

    def __init__(self, stage: Stage, settings: Settings, *, dtype: torch.dtype | None = None) -> None:
        self.stage, self.settings = stage, settings
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.reached = Reached(settings, stage.name)
        self.root = stage.load(settings, self.reached, dtype=dtype).to(self.device)
        self.wide = dtype
        self.modules = module_tree(self.root)

    def run(self, inputs: Inputs, plan: SitePlan | None) -> Seen:
        given = {k: self._placed(x) for k, x in inputs.items()}
        tap = None if plan is None else Tap(plan, TorchReducer(), self.stage.rule, (self.stage.branch,), {})
        with torch_scope(self.reached), contextlib.nullcontext() if tap is None else attached(self.root, tap):
            out = self.root(**given)
        records = []
        if tap is not None and plan is not None:
            require_fired(tap, plan.must_fire)
            records = torch_records(tap.entries, self.stage.name, STEP)
        held = {k: (to_numpy(x), str(x.dtype).removeprefix("torch.")) for k, x in out.items()}
        return Seen({k: x for k, (x, _) in held.items()}, (*records, *self.stage.records(held)))

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device)
        return x.to(self.wide) if self.wide is not None and x.is_floating_point() else x


@dataclass(frozen=True)
class Variant:
    """A run of the reference that rounds otherwise: `float64`, `rounding <seed>`, or a coarser dtype's."""

    name: str
    run: Callable[[Inputs, SitePlan | None], Seen]


def stage_variants(truth: TorchStage, coarse: Sequence[tuple[str, Settings]] = ()) -> Iterator[Variant]:
    """The runs that a stage's floors are measured from, each loaded when it is its turn.

    Args:
        truth: in float32. coarse: (name, settings) of the reference in working dtypes.
    """
    yield Variant("float64", TorchStage(truth.stage, truth.settings, dtype=torch.float64).run)
    for seed in range(SEEDS):
        yield Variant(f"rounding {seed}", _perturbed(truth, 1_000_003 * (seed + 1)))
    for name, settings in coarse:
        yield Variant(name, TorchStage(truth.stage, settings).run)


def _perturbed(truth: TorchStage, seed: int) -> Callable[[Inputs, SitePlan | None], Seen]:
    def run(inputs: Inputs, plan: SitePlan | None) -> Seen:
        with perturbed(truth.root, seed, truth.device):
            return truth.run(inputs, plan)

    return run


class Floors:
    """The floors of a stage, widened run by run around its truth."""

    def __init__(self, truth: Seen) -> None:
        self.truth = truth
        self.held: dict[Key, Floor] = {r.key: least(r) for r in truth.records if r.kind == "tensor"}

    def widen(self, other: Seen) -> None:
        widen(self.held, self.truth.records, other.records)

    def step(self) -> StepRecords:
        """The truth's records with their floors."""
        level(self.held, self.truth.records)
        return StepRecords(STEP, self.truth.records, self.held)


def host_tensor(x: Any) -> torch.Tensor:
    """A numpy array as a CPU tensor of its dtype."""
    return torch.from_numpy(np.array(x))
