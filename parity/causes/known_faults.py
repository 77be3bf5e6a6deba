"""The known faults of a model, each a setting that the reference path can take, run once and kept.

A fault's run is kept in the cache folder as a golden, under a fingerprint of weights, inputs, settings, seed and
versions, so that it is run once on a machine; a port's is not, whose code may be another the next time. Cost of one: a
step of the reference. Imports neither torch nor jax.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from parity.cache import cache_dir
from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter
from parity.hooks.sites import plan_sites
from parity.paths.plan import LOOP_STAGE, VAE_STAGE, Plan, changed
from parity.paths.port.settings import PortInfo
from parity.paths.side import Side
from parity.records import Facts, Provenance, StepRecords
from parity.runs.request import Say
from parity.runs.sides import modules_of
from parity.settings import SETTINGS, Settings, parse


def known_faults(reference: Settings, facts: Facts, port: PortInfo | None, steps_left: int = 1) -> Iterator[str]:
    """`setting=value` of each known fault of this model: what the reference can take and does not have.

    Args:
        facts: of the reference. port: that runs in its place, with settings of its own; None for parity's path.
        steps_left: steps of the schedule after the one that is looked at, into which warm-up calls move the scheduler.
    """
    for setting in SETTINGS:
        if setting.innocent or setting.name in facts.lacks or not setting.applies_in(LOOP_STAGE):
            continue
        if port is not None and not port.knows(setting.name):
            continue
        if setting.name == "scheduler.warmup_steps" and steps_left < 1:
            continue
        for value in (*setting.values, *setting.examples):
            if setting.read(value) != reference[setting.name] and not _same(setting.name, value):
                yield f"{setting.name}={value}"


def decoder_faults(reference: Settings) -> Iterator[str]:
    """`setting=value` of each known fault of a VAE: what belongs to it alone."""
    for setting in SETTINGS:
        if setting.places == (VAE_STAGE,) and not setting.innocent:
            yield from (f"{setting.name}={v}" for v in setting.values if setting.read(v) != reference[setting.name])


def beside(reference: Settings, candidate: Mapping[str, str]) -> dict[str, str]:
    """What a candidate declares of its attention that is no fault and changes what one does: K-smooth, its blocks.

    Args:
        candidate: its settings as text, of which the reference takes those that it has code for.
    """
    found = {}
    for setting in SETTINGS:
        value = candidate.get(setting.name)
        if not setting.innocent or value is None or "attention" not in setting.requires:
            continue
        if setting.name == "attention.kernel":  # which computes the same; the reference keeps its own
            continue
        try:
            if setting.parse(value, "torch") != reference[setting.name]:
                found[setting.name] = value
        except UsageError:
            continue  # a kernel that torch has not
    return found


def _same(name: str, value: str) -> bool:
    """Values that only spell the default of a float32 path."""
    return value == "float32" and name != "dtype"


@dataclass
class Simulated:
    """The reference of this machine under known faults.

    Attributes:
        reference: this machine's. settings: its own. step: the one that is looked at. port: whether it is one.
        beside: settings of the candidate's that are no faults and change what a fault does, which every fault is run
            with.
        place: `3 of 22`: which of the known faults is run, where they are run one after the other.
    """

    reference: Side
    settings: Settings
    step: int
    port: bool
    say: Say
    beside: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    _steps: dict[str, StepRecords] = field(default_factory=dict)

    def run(self, fault: str = "") -> StepRecords:
        """The records of the step under a fault, or none; from the cache where it was run before."""
        if fault not in self._steps:
            self._steps[fault] = self._kept(fault)
        return self._steps[fault]

    def _kept(self, fault: str) -> StepRecords:
        settings = self._with(fault)
        # The encoders' dtype stays the reference's: what a fault changes is what it names.
        encode = {"dtype": self.settings.text("dtype"), "text.byt5_dtype": settings.text("text.byt5_dtype")}
        side = self.reference.patched(changed(self.reference.spec, settings=settings.as_text(), encode=encode))
        try:
            facts = side.facts()
            assert facts.provenance is not None
            if self.port:
                return self._run(fault, side, facts)
            where = cache_dir() / "known_faults" / _digest(facts.provenance, settings, self.step)
            if (where / "golden.json").exists():
                golden = Golden.open(where)
                if golden.complete:
                    return golden.read_step(self.step)
            with GoldenWriter(where, facts.provenance, overwrite=True) as writer:
                return self._run(fault, side, facts, writer)
        finally:
            side.close()

    def _run(self, fault: str, side: Side, facts: Facts, writer: GoldenWriter | None = None) -> StepRecords:
        place = f" {self.place}" if self.place else ""
        self.say(f"known fault{place}: {fault or 'none'}")
        plan = Plan(sites=plan_sites(["", *modules_of(facts)], "blocks"))
        for step in side.observe(plan, steps=(0, self.step + 1)):
            if writer is not None:
                writer.write_step(step)
            last = step
        return last

    def _with(self, fault: str) -> Settings:
        name, _, value = fault.partition("=")
        given = {**self.beside, name: value} if fault else {}
        typed = parse("torch", [f"{name}={value}" for name, value in given.items()])
        return self.settings.with_({name: typed[name] for name in given})


def _digest(provenance: Provenance, settings: Settings, step: int) -> str:
    p = provenance
    what = [dict(p.weights), dict(p.inputs), dict(p.versions), settings.as_text(), p.steps, p.seed, step]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
