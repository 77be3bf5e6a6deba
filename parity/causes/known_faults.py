"""The known faults of a model, each a setting that the reference path can take, run once and kept.

A fault's run is kept in the cache folder as a golden, under a fingerprint of weights, inputs, settings, seed and
versions, so that it is run once on a machine; a port's is not, whose code may be another the next time. Cost of one: a
step of the reference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parity.cache import cache_dir
from parity.golden import Golden, GoldenWriter
from parity.golden.records import StepRecords
from parity.hooks.sites import plan_sites
from parity.models.family import Family
from parity.models.spec import Case
from parity.paths.inputs import Inputs, make_inputs
from parity.paths.loop import Loop, denoise, prepare
from parity.paths.provenance import provenance
from parity.paths.reference import load_reference
from parity.runs.pairing import Say
from parity.settings import SETTINGS, Settings, parse


def known_faults(reference: Settings, family: Family, case: Case, steps_left: int = 1) -> Iterator[str]:
    """`setting=value` of each known fault of this model: what the reference can take and does not have.

    Args:
        steps_left: steps of the schedule after the one that is looked at, into which warm-up calls move the scheduler.
    """
    meaningless = family.without(case.config)
    for setting in SETTINGS:
        if setting.innocent or setting.name in meaningless or not family.knows(setting.name):
            continue
        if setting.name == "scheduler.warmup_steps" and steps_left < 1:
            continue
        for value in (*setting.values, *setting.examples):
            if setting.read(value) != reference[setting.name] and not _same(setting.name, value):
                yield f"{setting.name}={value}"


def _same(name: str, value: str) -> bool:
    """Values that only spell the default of a float32 path."""
    return value == "float32" and name != "dtype"


@dataclass
class Simulated:
    """The reference of this machine under known faults.

    Attributes:
        family, case, settings: the reference's. steps, seed, stage1: of the run. step: the one that is looked at.
    """

    family: Family
    case: Case
    settings: Settings
    steps: int
    seed: int
    step: int
    stage1: Path | None
    say: Say
    _inputs: dict[str, Inputs] = field(default_factory=dict)
    _held: dict[frozenset[str], StepRecords] = field(default_factory=dict)

    def run(self, faults: frozenset[str]) -> StepRecords:
        """The records of the step under these faults; from the cache where they were run before."""
        if faults not in self._held:
            self._held[faults] = self._kept(faults)
        return self._held[faults]

    def _kept(self, faults: frozenset[str]) -> StepRecords:
        settings = self._with(faults)
        inputs = self._inputs_of(settings)
        side = load_reference(self.family, self.case, settings, inputs)
        loop = prepare(side)
        if not self.family.repeatable:
            return self._run(faults, loop)
        told = provenance(loop)
        where = cache_dir() / "known_faults" / _digest(told.weights, told.inputs, told.versions, settings, self)
        if (where / "golden.json").exists():
            golden = Golden.open(where)
            if golden.complete:
                return golden.read_step(self.step)
        with GoldenWriter(where, told, overwrite=True) as writer:
            return self._run(faults, loop, writer)

    def _run(self, faults: frozenset[str], loop: Loop, writer: GoldenWriter | None = None) -> StepRecords:
        self.say(f"known fault: {', '.join(sorted(faults)) or 'none'}")
        plan = plan_sites(["", *loop.side.modules], "blocks")
        for step in denoise(loop, plan, stop=self.step + 1):
            if writer is not None:
                writer.write_step(step)
            last = step
        return last

    def _with(self, faults: frozenset[str]) -> Settings:
        given = {name: value for name, _, value in (fault.partition("=") for fault in faults)}
        typed = parse("torch", [f"{name}={value}" for name, value in given.items()])
        return Settings("torch", {**self.settings.values, **{name: typed[name] for name in given}})

    def _inputs_of(self, settings: Settings) -> Inputs:
        # The encoders' dtype stays the reference's: what a fault changes is what it names.
        own = self.settings.replace(text_byt5_dtype=settings["text.byt5_dtype"])
        key = own.text("text.byt5_dtype")
        if key not in self._inputs:
            made, _ = make_inputs(
                self.family, self.case, own, own, steps=self.steps, seed=self.seed, stage1=self.stage1
            )
            self._inputs[key] = made
        return self._inputs[key]


def _digest(weights: object, inputs: object, versions: object, settings: Settings, run: Simulated) -> str:
    told = [weights, inputs, versions, settings.as_text(), run.steps, run.seed, run.step]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
