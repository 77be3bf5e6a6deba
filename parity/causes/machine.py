"""The model of a golden on this machine, for the witnesses that run it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parity.bisect.swaps import Plan, plan
from parity.causes.known_faults import Simulated
from parity.errors import UsageError
from parity.golden.fingerprint import fingerprint
from parity.golden.records import Provenance, StepRecords
from parity.models.family import Family
from parity.models.spec import Case
from parity.paths.inputs import make_inputs
from parity.paths.loop import denoise, prepare
from parity.paths.port_load import typed
from parity.runs.pairing import Say
from parity.runs.ports import NO_PORTS, Ports, base_of, families, load_candidate_side
from parity.settings import Settings, Value


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What `parity explain` was asked for.

    Attributes:
        reference, candidate: goldens. kept: the kept run's folder where they are of one, whose settings are known.
        model: in place of the golden's. stage1: the embeddings both were recorded with, where they were given a file.
        prompt: the prompt, where it was not the model's own.
        rounding: (setting, candidate's value) of the differing settings that the round of these goldens neutralised.
        ports, inputs: of the kept run; see `parity.runs.pairing.Request`.
    """

    reference: str
    candidate: str
    kept: Path | None = None
    model: str | None = None
    stage1: Path | None = None
    prompt: str | None = None
    rounding: tuple[tuple[str, str], ...] = ()
    ports: Ports = NO_PORTS
    inputs: Path | None = None


@dataclass(frozen=True)
class Machine:
    """The model of a golden on this machine, and what was run of it: each run is made once.

    Attributes:
        family, other: of the reference and of the candidate. case: the model. provenance: of the reference golden.
        settings: the reference's. stage1: embeddings. ports: that stand in for parity's own paths.
    """

    family: Family
    case: Case
    provenance: Provenance
    settings: Settings
    stage1: Path | None
    say: Say
    other: Any = None
    ports: Ports = NO_PORTS
    _simulated: dict[int, Simulated] = field(default_factory=dict)
    _candidates: dict[object, StepRecords] = field(default_factory=dict)

    @classmethod
    def of(cls, request: ExplainRequest, told: Provenance, say: Say) -> Machine:
        """Raises ParityError where the model, its weights or its inputs are not the golden's."""
        name = request.model or told.model
        ports = request.ports
        if told.backend != "torch":
            raise UsageError("the reference golden was not recorded by a torch path of parity's")
        settings = typed(ports.reference, "torch", told.settings)
        base, case = base_of(name, settings, ports, request.prompt, request.inputs)
        family, other = families(base, case, ports)
        inputs, _ = make_inputs(
            family, case, settings, settings, steps=told.steps, seed=told.seed, stage1=request.stage1
        )
        own = {
            f"{branch}.{n}": fingerprint(np.asarray(x.float().numpy()))
            for branch, condition in inputs.conditions.items()
            for n, x in condition.items()
        }
        strange = [n for n, known in told.inputs.items() if n in own and own[n] != known]
        if strange:
            say(f"this machine encodes '{strange[0]}' otherwise than the golden's did")
        return cls(family, case, told, settings, request.stage1, say, other, ports)

    def candidate_settings(self, told: Provenance) -> Settings:
        """The settings a candidate's golden names."""
        return typed(self.ports.candidate or self.ports.reference, "torchax", told.settings)

    def plan(self, candidate: Settings) -> Plan:
        """What can be swapped between the two sides; raises UsageError where nothing can."""
        entry = self.ports.candidate or self.ports.reference
        return plan(self.settings, candidate, entry)

    def settings_on(self, candidate: Settings) -> dict[str, Value]:
        """The reference's choices on the candidate's backend."""
        try:
            return dict(self.plan(candidate).with_only(()).values)
        except UsageError:
            return dict(candidate.values)

    def simulated(self, step: int) -> Simulated:
        """The reference under known faults, looked at in this step."""
        told = self.provenance
        if step not in self._simulated:
            self._simulated[step] = Simulated(
                self.family, self.case, self.settings, told.steps, told.seed, step, self.stage1, self.say
            )
        return self._simulated[step]

    def candidate(self, settings: Settings, step: int) -> StepRecords:
        """The loop's own records of a step of parity's candidate path with these settings."""
        key = _run_of(settings, step)
        if key not in self._candidates:
            self.say("candidate with swapped settings")
            told = self.provenance
            _, theirs = make_inputs(
                self.family, self.case, self.settings, settings, steps=told.steps, seed=told.seed,
                stage1=self.stage1, other=self.other,
            )  # fmt: skip
            loop = prepare(load_candidate_side(self.other, self.case, settings, theirs))
            *_, self._candidates[key] = denoise(loop, None, stop=step + 1)
        return self._candidates[key]

    def hold(self, settings: Settings, ran: StepRecords) -> None:
        """Take a step of the candidate with these settings that was recorded already, so that it is not run again."""
        self._candidates[_run_of(settings, ran.step)] = ran


def _run_of(settings: Settings, step: int) -> object:
    return (step, *settings.as_text().items())
