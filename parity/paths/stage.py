"""Stages: parts of a generation outside the loop (text encoders, VAE), each a step of its own with another module.

A stage stands in the place of the transformer's network: it says what is loaded, what it is called with and which rows
count, and the backends of the loop run it (`parity.paths.reference.TorchBackend`;
`parity.paths.jax.candidate.TorchaxStage` for the candidate). So its floors are measured as the transformer's are, and
it is followed as that is. Records carry the stage's name and step -1.

Something else may take a stage's place as a whole (`Opaque`): it gives outputs, and shows nothing of how. The candidate
of a text stage may be a file: a port's embeddings, as its first stage wrote them. The VAE may be that of a port: its
own decoder in the candidate's place, called with the latents that the reference decodes. What that computes inside is
not observed: a port's decoder is a function (Flax, JAX, torchax, frame by frame or whole). Its frames are, each by
itself and in the chain, against the reference's with their floors.

Which stages a checkpoint has, and what each takes, is one function a stage, by name (`known`). A text stage is as many
sides as it has encoders, since each is loaded after the one before it is gone; `part` names the encoder. The VAE's part
is its decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.rows import NoRows, RowFrame, RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.torchtools import leaves, module_tree, to_torch
from parity.models.family import Condition, Constrain, Family
from parity.models.folder import Case, read_config, skeleton, vae_config
from parity.models.registry import opened
from parity.models.stage_files import read_stage1, read_stage2
from parity.models.text import TEXT, load_encoder, skeleton as encoder_skeleton
from parity.models.vae import CacheRows, load_decoder
from parity.paths.loaded import Arguments, Conditions, Inputs, Predicted, StepCalls, array, dtype_name, tensor
from parity.paths.network import Network
from parity.paths.plan import Array, Spec, split_branches
from parity.paths.port.load import Entry
from parity.paths.port.ported import built, guarded, moved
from parity.paths.reference import TorchBackend
from parity.port import Port
from parity.records import AFTER, LOOP, OUTSIDE, Key, Record
from parity.settings import SETTINGS, Reached, Settings, parse
from parity.sketch import shown_record, value_record

Compute = Callable[[str, Arguments], torch.Tensor]
"""Branch and inputs -> a stage's output."""


@dataclass(kw_only=True, eq=False)
class Stage(Network):
    """One stage of a generation, as a network.

    Attributes:
        family, place: see `Network`. stage: `text` or `vae`, the stage of its records. case: of the checkpoint.
        output: name of what it gives.
        trunk: child of its module that does the work; each of its calls is one compiled program of the candidate.
        make: makes the module of a side's settings on the CPU; it takes the inputs by name, returns a dict of its one
            output, and applies settings by its `adapt`.
        inputs: by guidance branch (`""` where there is none).
        rule: which tensors' rows are observed, and how. frames_of: the row frames that it names, of a branch's inputs.
        divide: an output of a branch -> suffix of its port (`""`, `@padding`) -> (its rows, the name of their frame).
        pictures: whether its output is frames.
        replaced: what a port's file, or its decoder, gives in the candidate's place; None where the stage is run.
    """

    family: Family
    stage: str
    case: Case
    output: str
    trunk: str
    make: Callable[[Settings], torch.nn.Module]
    inputs: Mapping[str, Condition]
    place: str
    rule: RowRule = field(default_factory=NoRows)
    frames_of: Callable[[Condition], dict[str, RowFrame]] = lambda inputs: {}
    divide: Callable[[str, np.ndarray], Mapping[str, tuple[np.ndarray, str]]] = lambda branch, x: {"": (x, "")}
    pictures: bool = False
    replaced: Compute | None = None
    may_be_silent = pairs_rows = False

    @property
    def batches(self) -> tuple[tuple[str, ...], ...]:
        return tuple((branch,) for branch in self.inputs)

    def load(self, settings: Settings) -> torch.nn.Module:
        return self.make(settings).eval()

    def adapt(self, model: Any, reached: Reached, *, traced: bool, first: Condition | None) -> None:
        model.adapt(reached, traced=traced)

    def constrain(self, model: Any, place: Constrain) -> None:
        """Nothing: the mesh is the transformer's."""

    def rows(self, settings: Settings, condition: Condition) -> tuple[RowRule, Mapping[str, RowFrame]]:
        return self.rule, self.frames_of(condition)

    def predict(self, model: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
        out: torch.Tensor = model(**arguments)[self.output]
        return out

    def records(self, output: Array, branch: str) -> Iterator[Record]:
        """An output, which is held whole and decides."""
        for suffix, (rows, frame) in self.divide(branch, output.values).items():
            key = Key(self.stage, OUTSIDE, branch, f"{LOOP}:{self.output}{suffix}")
            record = value_record(key, rows, output.dtype)
            yield replace(record, rows=frame)
            if self.pictures:
                yield shown_record(record, rows)


class Opaque(TorchBackend):
    """Calls what stands in a stage's place, without modules or weights."""

    network: Stage

    def __init__(self, stage: Stage, inputs: Inputs) -> None:
        super().__init__(torch.nn.Module(), stage, inputs, stage.reached(parse("torchax")))

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        assert self.network.replaced is not None
        return {branch: self.network.replaced(branch, given) for branch, given in calls.branches.items()}, []


_RANK = 5
"""Of latents and frames, [B, C, T, H, W]."""


def decoder_of(stage: Stage, entry: Entry, settings: Settings) -> Compute | None:
    """The decoder that a port brings; None where it brings none.

    Raises:
        UsageError: the port cannot be built, or a setting of the VAE is given, which is the port's own business.
    """
    port, _ = built(entry, "candidate", stage.case, settings, {})
    if port.vae is None:
        return None
    for setting in SETTINGS:
        if setting.places == (AFTER,) and settings.changed(setting.name):
            own = f"{setting.name} is a setting of parity's own VAE, and {entry.named} brings its own"
            raise UsageError(f"{own}: leave it out")
    return lambda branch, inputs: _decoded(entry, port, inputs)


def _decoded(entry: Entry, port: Port, inputs: Arguments) -> torch.Tensor:
    """What a port's `vae` gives, on the CPU.

    Raises:
        UsageError: it raises, or gives something else than frames [B, 3, T, H, W].
    """
    assert port.vae is not None
    latents: Any = inputs["latents"]
    if port.runs == "jax":
        from parity.paths.jax.tracing import to_jax  # jax, for a port that has it

        latents = to_jax(latents)
    with guarded(entry, "vae"):
        made = port.vae(moved(latents, port, _RANK, 1, -1))
        arrays = (x for _, x in leaves(made) if hasattr(x, "shape"))  # of a tuple or an output object the first
        frames = next((to_torch(x).cpu() for x in arrays), None)
    if frames is None:
        raise UsageError(f"{entry.named}: `vae` gave an object of type {type(made).__name__}; expected frames")
    frames = frames.movedim(-1, 1) if port.layout == "channels_last" and frames.ndim == _RANK else frames
    if frames.ndim != _RANK or frames.shape[1] != 3:
        raise UsageError(
            f"{entry.named}: `vae` gave {dtype_name(frames.dtype)} {list(frames.shape)}; expected frames "
            "[B, 3, T, H, W], some -1 to 1 (channels last where the port's layout says so)"
        )
    return frames


# --- the stages of a checkpoint


def known(spec: Spec) -> Stage:
    """The stage that a spec names.

    Raises:
        UsageError: the checkpoint has none, or a file does not fit it.
    """
    family, case = opened(spec.source.model, prompt=spec.source.prompt)
    return (_text if spec.source.stage == TEXT else _vae)(spec, case, family)


def _text(spec: Spec, case: Case, family: Family) -> Stage:
    text = family.text(case)
    encoder = next(e for e in text.encoders if e.part == spec.source.part)
    stage = Stage(
        family=family,
        stage=TEXT,
        case=case,
        output=encoder.stream.name,
        trunk=encoder.part,
        make=partial(load_encoder, case, encoder),
        inputs=encoder.tokens,
        place="text.byt5" if encoder.stream.byt5 else TEXT,
        rule=encoder.rule,
        frames_of=encoder.frames,
        divide=encoder.divide,
    )
    if spec.source.stage1 is None or spec.role == "reference":
        return stage
    given = read_stage1(Path(spec.source.stage1), family.streams, case.config)
    held = {branch: given[branch][encoder.stream.argument] for branch in encoder.tokens}
    return replace(stage, divide=partial(encoder.divide, given=given), replaced=lambda branch, _: held[branch])


def _vae(spec: Spec, case: Case, family: Family) -> Stage:
    vae_config(case.folder)  # refuses a class that is not known
    return Stage(
        family=family,
        stage=AFTER,
        case=case,
        output="frames",
        trunk="decoder",
        make=partial(load_decoder, case),
        inputs=conditions_of(spec.start.inputs or {}),  # of one that is opened for its weights alone there are none
        place=AFTER,
        rule=CacheRows(),
        pictures=True,
    )


def conditions_of(inputs: Mapping[str, Array]) -> Conditions:
    """Explicit inputs by branch."""
    return split_branches({name: tensor(x) for name, x in inputs.items()})


def file_latents(case: Case, file: Path) -> Array:
    """A port's latents, float32 [B, C, T, H, W].

    Raises:
        UsageError: they are not those of the checkpoint's VAE.
    """
    latents = read_stage2(file)
    channels = int(read_config(case.folder, "vae")["latent_channels"])
    if latents.shape[1] != channels:
        other = "; they are laid out [B, T, C, H, W], permute them" if latents.shape[2] == channels else ""
        raise UsageError(
            f"{file}: tensor 'latents': expected [B, {channels}, T, H, W] for the VAE of '{case.name}', "
            f"found {list(latents.shape)}{other}"
        )
    return array(latents.to(torch.float32))


def stage_modules(case: Case, family: Family, stages: tuple[str, ...]) -> dict[str, list[str]]:
    """The module paths of each stage, of each encoder of the text stage by its part, known from the configs alone (as
    far as the classes make them)."""
    found: dict[str, list[str]] = {}
    if TEXT in stages:
        found |= {e.part: ["", *module_tree(encoder_skeleton(case, e))] for e in family.text(case).encoders}
    if "transformer" in stages:
        found["transformer"] = ["", *module_tree(skeleton(case.folder, "transformer")), "rope"]
    if AFTER in stages:
        found[AFTER] = ["", *module_tree(load_decoder(case, parse("torch")))]
    return found
