"""Stages: parts of a generation outside the loop (text encoders, VAE), each inputs -> outputs, observed by taps.

A stage is described by one small object and run by a path: `TorchStage` here, `parity.paths.jax.stage.TorchaxStage`
for the candidate. Its floors are measured as the transformer's are: in float64, under Monte Carlo rounding, and in the
working dtypes where they are coarser than float32. Records carry the stage's name and step -1.

Something else may take a stage's place as a whole: it gives outputs, and shows nothing of how. The candidate of a text
stage may be a file: a port's embeddings, as its first stage wrote them. The VAE may be that of a port: its own decoder
in the candidate's place, called with the latents that the reference decodes. What that computes inside is not observed:
a port's decoder is a function (Flax, JAX, torchax, frame by frame or whole). Its frames are, each by itself and in the
chain, against the reference's with their floors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.attach import attached
from parity.hooks.perturb import perturbed
from parity.hooks.reduce.on_torch import TorchReducer, to_numpy, torch_records, widen16
from parity.hooks.rows import NoRows, RowFrame, RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap, require_fired
from parity.hooks.torchtools import module_tree, named_tensors
from parity.models.patches import device_named
from parity.models.spec import Case
from parity.paths.floors import SEEDS
from parity.paths.follow import Listen, Walk
from parity.paths.layout import Watched
from parity.paths.loaded import array
from parity.paths.plan import STAGES_STEP, VAE_STAGE, Array, Given
from parity.paths.port.load import Entry
from parity.paths.port.ported import built, guarded, moved
from parity.paths.reference import torch_scope
from parity.port import Port
from parity.reached import Reached
from parity.records import LOOP, Key, Record
from parity.settings import SETTINGS, Settings, parse
from parity.sketch import shown_record, value_record

STEP = STAGES_STEP
"""The step of records made outside the loop."""

Inputs = Mapping[str, torch.Tensor]
Outputs = Mapping[str, np.ndarray]
Divided = Mapping[str, tuple[np.ndarray, str]]
"""Suffix of an output's port (`""`, `@padding`) -> (its rows, the name of their frame)."""


@dataclass(frozen=True)
class Stage:
    """One stage of a generation.

    Attributes:
        name: `text` or `vae`, the stage of its records.
        trunk: child of its module that does the work; each of its calls is one compiled program of the candidate.
        load: makes the module on the CPU, with its settings realised (see `parity.models.vae.load_decoder`); it takes
            the inputs by name and returns a dict of output tensors.
        rule: which tensors' rows are observed, and how. frames: the row frames that it names, of a run's inputs.
        divide: an output's rows, of a branch. place: its entry in `parity.reached.OWN`, where that is not its name.
        pictures: whether its outputs are frames.
    """

    name: str
    trunk: str
    load: Callable[..., torch.nn.Module]
    rule: RowRule = field(default_factory=NoRows)
    frames: Callable[[Inputs], Mapping[str, RowFrame]] = lambda inputs: {}
    divide: Callable[[str, np.ndarray], Divided] = lambda branch, x: {"": (x, "")}
    place: str = ""
    pictures: bool = False

    def seen(self, outputs: Given, branch: str, before: Sequence[Record] = ()) -> Seen:
        """A run that gave these outputs, which are held whole and decide, after the records `before`."""
        found = list(before)
        for name, x in outputs.items():
            for suffix, (rows, frame) in self.divide(branch, x.values).items():
                record = value_record(Key(self.name, STEP, branch, f"{LOOP}:{name}{suffix}"), rows, x.dtype)
                found.append(replace(record, rows=frame))
                found += [shown_record(record, rows)] if self.pictures else []
        return Seen({name: x.values for name, x in outputs.items()}, tuple(found))


@dataclass(frozen=True, slots=True)
class Seen:
    """One run of a stage.

    Attributes:
        outputs: by name, on the host. records: of the sites, in execution order, then of the outputs.
    """

    outputs: Outputs
    records: tuple[Record, ...]


class TorchStage:
    """A stage in PyTorch, on the device that its settings name.

    Args:
        dtype: in place of the settings' dtype: float64 for the floor.

    Attributes:
        reached: proof of its settings. modules: module path -> parent's path.
    """

    def __init__(self, stage: Stage, settings: Settings, *, dtype: torch.dtype | None = None) -> None:
        self.stage, self.settings = stage, settings
        self.device = device_named(settings)
        self.reached = Reached(settings, stage.place or stage.name)
        self.reached.mark("device")
        self.root = stage.load(settings, self.reached, dtype=dtype).to(self.device)
        self.wide = dtype
        self.modules = module_tree(self.root)

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        """Run it on CPU tensors.

        Args:
            branch: guidance branch of its records.

        Raises:
            InconclusiveError: a chosen site never fired.
        """
        given = {k: self._placed(x) for k, x in inputs.items()}
        frames = self._frames(inputs)
        tap = None if plan is None else Tap(plan, TorchReducer(), self.stage.rule, (branch,), {branch: frames})
        with torch_scope(self.reached), contextlib.nullcontext() if tap is None else attached(self.root, tap):
            out = self.root(**given)
        records = []
        if tap is not None and plan is not None:
            require_fired(plan, plan.must_fire, tap.calls, {e.site for e in tap.entries})
            records = torch_records(tap.entries, self.stage.name, STEP)
        return self.stage.seen({k: array(x) for k, x in out.items()}, branch, records)

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, values) of each parameter and buffer, one at a time on the host; 16-bit floats as float32."""
        return ((name, to_numpy(x)) for name, x in named_tensors(self.root))

    def rounded(self, seed: int) -> contextlib.AbstractContextManager[None]:
        """Within it, it rounds otherwise."""
        return perturbed(self.root, 1_000_003 * (seed + 1), self.settings.text("tpu"))

    def walk(
        self, inputs: Mapping[str, Inputs], around: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> Walk:
        """A run of each branch's inputs, for `parity.paths.follow`.

        Args:
            around: context of a run.
        """

        def walk(listen: Listen) -> None:
            for branch, given in inputs.items():
                model = Watched(self.root, {branch: self.stage.rule}, {branch: self._frames(given)})
                with around(), listen(model, (branch,)):
                    self.run(given, None, branch)

        return walk

    def _frames(self, inputs: Inputs) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {
            name: (torch.from_numpy(f.index).to(self.device), torch.from_numpy(f.weight).to(self.device))
            for name, f in self.stage.frames(inputs).items()
        }

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.device)
        return x.to(self.wide) if self.wide is not None and x.is_floating_point() else x


Rounded = tuple[str, TorchStage, Callable[[], contextlib.AbstractContextManager[object]]]
"""A run of a stage that rounds otherwise: its name, the stage, and the context of each of its calls."""


def rounded(truth: TorchStage, kinds: Sequence[str]) -> Iterator[Rounded]:
    """The runs that the floors of a stage in float32 are measured from, each loaded when it is its turn: `float64` and
    `rounding <seed>`, as the kinds of floors say."""
    if "fp64" in kinds:
        yield "float64", TorchStage(truth.stage, truth.settings, dtype=torch.float64), contextlib.nullcontext
    for seed in range(SEEDS if "rounding" in kinds else 0):
        yield f"rounding {seed}", truth, functools.partial(truth.rounded, seed)


class Whole:
    """A runner without modules or weights; who extends it says what `run` gives. See
    `TorchStage`.

    Args:
        stage: whose place it takes.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reached = Reached(parse("torchax"), stage.name)
        self.modules: dict[str, str] = {}

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(())


class HeldStage(Whole):
    """Gives back what it holds, whatever it is given.

    Args:
        stage: with the rows of the file's own masks. held: branch -> output by name, on the CPU.
    """

    def __init__(self, stage: Stage, held: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        super().__init__(stage)
        self.held = held

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        return self.stage.seen({k: array(x) for k, x in self.held[branch].items()}, branch)


def held_dtype(tensors: list[torch.Tensor]) -> str:
    """The coarsest dtype that holds these values exactly, whatever they are stored as: what they were computed in, or
    rounded to at the end."""
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if all(torch.equal(x.to(dtype).to(torch.float32), x.to(torch.float32)) for x in tensors):
            return name
    return "float32"


_RANK = 5
"""Of latents and frames, [B, C, T, H, W]."""


class PortDecoder(Whole):
    """Calls a port's `vae`.

    Args:
        stage: of the decoder. entry, port: with a `vae`.
    """

    def __init__(self, stage: Stage, entry: Entry, port: Port) -> None:
        super().__init__(stage)
        self.entry, self.port = entry, port

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        """Raises UsageError where it raises, or gives something else than frames [B, 3, T, H, W]."""
        assert self.port.vae is not None
        latents: Any = inputs["latents"]
        if self.port.runs == "jax":
            from parity.paths.jax.tracing import to_jax  # jax, for a port that has it

            latents = to_jax(latents)
        with guarded(self.entry, "vae"), torch.no_grad():
            out = self.port.vae(moved(latents, self.port, _RANK, 1, -1))
        frames = _host(out)
        values, dtype = frames.values, frames.dtype
        values = np.moveaxis(values, -1, 1) if self.port.layout == "channels_last" and values.ndim == _RANK else values
        if values.ndim != _RANK or values.shape[1] != 3:
            raise UsageError(
                f"{self.entry.named}: `vae` gave {dtype} {list(values.shape)}; expected frames [B, 3, T, H, W], some "
                "-1 to 1 (channels last where the port's layout says so)"
            )
        return self.stage.seen({"frames": Array(values, dtype)}, branch)


def decoder_of(stage: Stage, entry: Entry, case: Case, settings: Settings) -> PortDecoder | None:
    """The decoder that a port brings; None where it brings none.

    Raises:
        UsageError: the port cannot be built, or a setting of the VAE is given, which is the port's own business.
    """
    port, _ = built(entry, "candidate", case, settings, lambda name: None)
    if port.vae is None:
        return None
    for setting in SETTINGS:
        if setting.places == (VAE_STAGE,) and settings.changed(setting.name):
            own = f"{setting.name} is a setting of parity's own VAE, and {entry.named} brings its own"
            raise UsageError(f"{own}: leave it out")
    return PortDecoder(stage, entry, port)


def _host(x: Any) -> Array:
    """A tensor's or array's values on the host."""
    if isinstance(x, torch.Tensor) and not hasattr(x, "jax"):
        return array(x)
    values = np.asarray(x.jax() if hasattr(x, "jax") else x)
    return Array(widen16(values), str(values.dtype))
