"""The stages outside the loop in a recording: the encoders before it, the decoder after it, both at step -1.

A recording is of a chain: the loop goes on from the embeddings that its own side encoded, the decoder from the latents
that its own loop came to. So are the runs that measure the floors: each encodes, denoises and decodes with its own
rounding, and the floor of a frame holds what rounding the encoders has grown to by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from parity.golden.fingerprint import fingerprint
from parity.golden.floors import least, level, widen
from parity.golden.records import LOOP, Floor, Key, Record, StepRecords
from parity.hooks.sites import SitePlan, plan_sites, split_sites
from parity.models.family import Family
from parity.models.patches import DTYPES
from parity.models.spec import Case
from parity.paths.inputs import Encoded
from parity.paths.plan import Role
from parity.paths.stage import STEP, Run, Runner, Stage, TorchStage, host_tensor, stage_variants
from parity.runs.request import Request, Say
from parity.runs.sides import Own
from parity.runs.stages.chain import case_of, handed, stage_modules
from parity.runs.stages.stage import Branches, records_of, run_branches
from parity.runs.stages.text import conditions_of, encoder_stage, text_modules
from parity.runs.stages.vae import vae_stage
from parity.runs.stream import Ends
from parity.settings import BITS, Settings

Choice = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class OneSide:
    """A stage of a recording: the side's own runner, and beside it those that measure its floors.

    Attributes:
        own: as given. beside: name -> run, the truth (`float32`) before those that are measured around it.
    """

    stage: Stage
    own: Runner
    beside: Mapping[str, Run]

    @classmethod
    def load(cls, stage: Stage, side: str, settings: Settings, kinds: tuple[str, ...]) -> OneSide:
        """Load a stage; `kinds` as of `parity.paths.floors.make_variants`, for the reference alone."""
        if side == "candidate":
            from parity.paths.jax.stage import TorchaxStage  # jax and torchax, only from here on

            return cls(stage, TorchaxStage(stage, settings), {})
        own = truth = TorchStage(stage, settings)
        beside: dict[str, Run] = {}
        if "dtype" in kinds and settings.working_bits < BITS["float32"]:
            truth = TorchStage(stage, settings.neutral)
            beside["float32"] = truth.run
        wanted = {"float64": "fp64"}
        for variant in stage_variants(truth) if {"fp64", "rounding"} & set(kinds) else ():
            if wanted.get(variant.name, "rounding") in kinds:
                beside[variant.name] = variant.run
        return cls(stage, own, beside)

    def plan(self, choice: Choice) -> SitePlan:
        return plan_sites(["", *self.own.modules], choice[0], choice[1], trunk=self.stage.trunk)

    def weights(self) -> dict[str, str]:
        """Fingerprints, for the provenance."""
        return {f"{self.stage.name}.{name}": fingerprint(x) for name, x in self.own.weights()}


def floors_of(own: tuple[Record, ...], beside: Mapping[str, tuple[Record, ...]]) -> dict[Key, Floor]:
    """The floors of one run's records, as `parity.paths.floors.with_floors` has them; empty without other runs."""
    if not beside:
        return {}
    floors = {r.key: least(r) for r in own if r.kind == "tensor"}
    centre = own
    for name, records in beside.items():
        widen(floors, centre, records)
        centre = records if name == "float32" else centre
    level(floors, centre)
    return floors


@dataclass
class Chain:
    """What a recording keeps of the stages outside its loop.

    Attributes:
        case, family, side, settings, kinds: of the recording. choices: stage -> its own sites and values.
        records, floors: of step -1 so far. weights: fingerprints of the stages' weights.
        vae: the decoder, loaded, where it is among the stages.
    """

    case: Case
    family: Family
    side: str
    settings: Settings
    kinds: tuple[str, ...]
    choices: Mapping[str, Choice]
    records: list[Record] = field(default_factory=list)
    floors: dict[Key, Floor] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    vae: OneSide | None = None

    @classmethod
    def of(cls, request: Request, side: Role, settings: Settings, kinds: tuple[str, ...]) -> Chain:
        """Raises UsageError where a stage is not known for this model."""
        case, family = case_of(request)
        choices = split_sites(stage_modules(case, family, request.stages), request.sites, request.values)
        made = cls(case, family, side, settings, kinds, choices)
        if "vae" in request.stages:
            made.vae = OneSide.load(vae_stage(case), side, settings, kinds)
            made.weights |= made.vae.weights()
        return made

    def encode(self, say: Say) -> Own:
        """Run the encoders, keep their records, and give what the loop goes on from."""
        text = self.family.text(self.case)
        choices = split_sites(text_modules(self.case, text), *self.choices["text"])
        runs: dict[str, dict[str, Branches]] = {}
        for encoder in text.encoders:
            if not encoder.tokens:
                continue
            say(f"text: {encoder.part}")
            stage = encoder_stage(self.case, encoder)
            loaded = OneSide.load(stage, self.side, encoder.settings(self.settings), self.kinds)
            self.weights |= loaded.weights()
            plan = loaded.plan(choices[encoder.part])
            own = run_branches(loaded.own.run, encoder.tokens, plan)
            loaded.own.reached.require()
            beside = {name: run_branches(run, encoder.tokens, plan) for name, run in loaded.beside.items()}
            self.keep(records_of(own), {name: records_of(seen) for name, seen in beside.items()})
            for name, seen in {"": own, **beside}.items():
                runs.setdefault(name, {})[encoder.part] = seen
        dtype = DTYPES[self.settings.text("dtype")]
        made = {
            name: conditions_of(text, {**runs[""], **of}, torch.float64 if name == "float64" else torch.float32)
            for name, of in runs.items()
            if name
        }
        return handed(Encoded(conditions_of(text, runs[""], dtype), made, text.tokens()))

    def decode(self, ends: Ends, say: Say) -> None:
        """Decode what the loops came to, and keep the records."""
        assert self.vae is not None
        say("vae: decoding")
        plan = self.vae.plan(self.choices["vae"])

        def decoded(run: Run, x: np.ndarray) -> tuple[Record, ...]:
            records = run({"latents": host_tensor(x)}, plan).records
            # A whole video is as large as everything else together: it is compared by its sketch.
            return tuple(replace(r, value=None) if r.key.module == LOOP else r for r in records)

        own = decoded(self.vae.own.run, ends.own)
        self.vae.own.reached.require()
        self.keep(own, {name: decoded(run, ends.beside.get(name, ends.own)) for name, run in self.vae.beside.items()})

    def keep(self, own: tuple[Record, ...], beside: Mapping[str, tuple[Record, ...]]) -> None:
        self.records += own
        self.floors |= floors_of(own, beside)

    def step(self) -> StepRecords:
        return StepRecords(STEP, tuple(self.records), self.floors)
