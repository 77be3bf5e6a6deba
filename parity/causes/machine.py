"""The model of a golden on this machine, for the witnesses that run it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from parity.bisect.swaps import Plan as Swaps
from parity.bisect.swaps import plan
from parity.causes.known_faults import Simulated, beside
from parity.causes.request import ExplainRequest
from parity.compare.comparable import of_script
from parity.errors import UsageError
from parity.golden import Golden
from parity.paths.plan import Plan
from parity.paths.port.settings import typed
from parity.paths.side import Openers, Side
from parity.records import Facts, Provenance, StepRecords
from parity.runs.given import Like, carried
from parity.runs.request import Ports, Request, Say
from parity.runs.sides import candidate_spec, spec_of
from parity.settings import Settings, parse


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The model of a golden on this machine, and what was run of it: each run is made once.

    Attributes:
        openers: who loads its sides. request: of the pair, its candidate's settings left open. provenance: of the
            reference golden. reference, facts: this machine's. settings: the reference's.
    """

    openers: Openers
    request: Request
    provenance: Provenance
    reference: Side
    facts: Facts
    settings: Settings
    say: Say
    _simulated: dict[object, Simulated] = field(default_factory=dict)
    _candidates: dict[object, StepRecords] = field(default_factory=dict)

    @classmethod
    def of(cls, request: ExplainRequest, golden: Provenance, openers: Openers, say: Say) -> Machine:
        """Raises ParityError where the model, its weights or its inputs are not the golden's."""
        if golden.backend != "torch":
            raise UsageError("the reference golden was not recorded by a torch path of parity's")
        if of_script(golden):
            raise UsageError("the reference golden was recorded in a script, of whose model this machine knows nothing")
        settings = typed(request.ports.reference, "torch", golden.settings)
        pair = Request(
            request.model or golden.model,
            settings,
            parse("torchax"),
            max(golden.steps, 1),
            golden.seed,
            prompt=request.prompt,
            inputs=request.inputs,
            ports=request.ports,
            like=_inputs(request, golden),
        )
        reference = openers.of("reference").open(spec_of(pair, "reference"))
        facts = reference.facts()
        own = {} if facts.provenance is None else facts.provenance.inputs
        known = golden.inputs.items()
        strange = [n for n, print_ in known if n != "noise" and own.get(n, print_) != print_]
        if strange:
            say(f"this machine encodes '{strange[0]}' otherwise than the golden's did")
        return cls(
            openers=openers,
            request=pair,
            provenance=golden,
            reference=reference,
            facts=facts,
            settings=settings,
            say=say,
        )

    @property
    def ports(self) -> Ports:
        """The ports of the pair."""
        return self.request.ports

    def candidate_settings(self, told: Provenance) -> Settings:
        """The settings a candidate's golden names."""
        return typed(self.ports.candidate or self.ports.reference, "torchax", told.settings)

    def plan(self, candidate: Settings) -> Swaps:
        """What can be swapped between the two sides; raises UsageError where nothing can."""
        entry = self.ports.candidate or self.ports.reference
        return plan(self.settings, candidate, entry)

    def settings_on(self, candidate: Settings) -> Settings:
        """The reference's choices on the candidate's backend."""
        try:
            return self.plan(candidate).with_only(())
        except UsageError:
            return candidate

    def simulated(self, step: int, candidate: Mapping[str, str] = MappingProxyType({})) -> Simulated:
        """The reference under known faults, looked at in this step.

        Args:
            candidate: settings that the candidate says it has, some of which change what a fault does.
        """
        port = self.ports.reference is not None
        own = {} if port or "attention" in self.facts.lacks else beside(self.settings, candidate)
        key = (step, *own.items())
        if key not in self._simulated:
            self._simulated[key] = Simulated(self.reference, self.settings, step, port, self.say, own)
        return self._simulated[key]

    def candidate_side(self, settings: Settings) -> Side:
        """Parity's candidate path with these settings, or the port."""
        request = replace(self.request, candidate=settings)
        return self.openers.of("candidate").open(candidate_spec(request, self.facts))

    def candidate(self, settings: Settings, step: int) -> StepRecords:
        """The loop's own records of a step of the candidate with these settings."""
        key = _run_of(settings, step)
        if key not in self._candidates:
            self._candidates[key] = self.again(settings, step)
        return self._candidates[key]

    def again(self, settings: Settings, step: int) -> StepRecords:
        """The same, run now, whatever was recorded of it."""
        self.say("candidate with swapped settings")
        side = self.candidate_side(settings)
        try:
            *_, last = side.observe(Plan(), steps=(0, step + 1))
        finally:
            side.close()
        return last

    def hold(self, settings: Settings, ran: StepRecords) -> None:
        """Take a step of the candidate with these settings that was recorded already, so that it is not run again."""
        self._candidates[_run_of(settings, ran.step)] = ran


def _run_of(settings: Settings, step: int) -> object:
    return (step, *settings.as_text().items())


def _inputs(request: ExplainRequest, golden: Provenance) -> Like | None:
    """The embeddings and the noise that the reference's golden carries.

    None where there are none, where a port brings its own, and where the candidate encodes the prompt in another dtype:
    then both encode it here.
    """
    encoding = "text.byt5_dtype"
    own = Golden.open(request.candidate).provenance.settings.get(encoding)
    if request.ports.alone or own != golden.settings.get(encoding) or encoding in dict(request.rounding):
        return None
    return carried(request.reference)
