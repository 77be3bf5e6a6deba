"""The stages outside the loop in a recording: the encoders before it, the decoder after it, both at step -1.

A recording is of a chain: the loop goes on from the embeddings that its own side encoded, the decoder from the latents
that its own loop came to. So are the runs that measure the floors: each encodes, denoises and decodes with its own
rounding, and the floor of a frame holds what rounding the encoders has grown to by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parity.hooks.sites import plan_sites, split_sites
from parity.models.family import Family
from parity.models.folder import Case
from parity.models.registry import opened
from parity.paths.known_stages import stage_modules
from parity.paths.plan import STAGES_STEP, VAE_INPUT, VAE_STAGE, Ends, Openers, Plan, Spec, Start
from parity.records import LOOP, Facts, Floor, Key, Record, StepRecords
from parity.runs.record import RecordRequest
from parity.runs.request import Choice, Say
from parity.runs.sides import modules_of, source_of
from parity.runs.text_stage import start_of
from parity.settings import Settings


@dataclass
class Chain:
    """What a recording keeps of the stages outside its loop.

    Attributes:
        case, family: of the model. request: of the recording. openers: who loads the stages.
        choices: stage or encoder -> its own sites and values. records, floors: of step -1 so far.
        weights: fingerprints of the stages' weights.
    """

    case: Case
    family: Family
    request: RecordRequest
    openers: Openers
    choices: Mapping[str, Choice]
    records: list[Record] = field(default_factory=list)
    floors: dict[Key, Floor] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: RecordRequest, openers: Openers) -> Chain:
        """Raises UsageError where a stage is not known for this model."""
        run = request.run
        family, case = opened(run.model, prompt=run.prompt)
        choices = split_sites(stage_modules(case, family, run.stages), run.sites, run.values)
        made = cls(case, family, request, openers, choices)
        if "vae" in run.stages:
            # Its weights belong to the provenance, which is written first: before there is anything to decode.
            vae = openers.of(request.side).open(made._spec(VAE_STAGE, "", request.settings))
            made.weights |= _weights(vae.facts())
            vae.close()
        return made

    def encode(self, say: Say) -> Start:
        """Run the encoders, keep their records, and give what the loop goes on from."""
        text = self.family.text(self.case)
        ends: dict[str, Ends] = {}
        for number, encoder in enumerate(text.encoders):
            if encoder.tokens:
                say(f"text: {encoder.part}")
                spec = self._spec("text", encoder.part, encoder.settings(self.request.settings))
                ends[encoder.part] = self._run(spec, self.choices[encoder.part], number)
        return start_of(text, ends, self.request.settings)

    def decode(self, ends: Ends, say: Say) -> None:
        """Decode what the loops came to, and keep the records."""
        say("vae: decoding")
        beside = {name: {VAE_INPUT: x["latents"]} for name, x in ends.beside.items()}
        start = Start({VAE_INPUT: ends.own["latents"]}, beside)
        self._run(replace(self._spec(VAE_STAGE, "", self.request.settings), start=start), self.choices["vae"])

    def _spec(self, stage: str, part: str, settings: Settings) -> Spec:
        source = source_of(replace(self.request.run, stages=(stage,), part=part))
        return Spec(role=self.request.side, source=source, settings=settings.as_text(), named=True)

    def _run(self, spec: Spec, choice: Choice, number: int = 0) -> Ends:
        """Observe a stage, keep its records, and give what it came to.

        Args:
            number: of the encoder: each has a top module, whose name is empty, and counts as another call of it.
        """

        def placed(key: Key) -> Key:
            return key if key.module else replace(key, call=key.call + number)

        side = self.openers.of(self.request.side).open(spec)
        facts = side.facts()
        self.weights |= _weights(facts)
        sites = plan_sites(["", *modules_of(facts)], *choice, trunk=facts.trunk)
        for step in side.observe(Plan(sites=sites, floors=self.request.floors)):
            for r in step.records:
                # The values of a whole video are as large as everything else together: its sketch is compared.
                video = spec.source.stage == VAE_STAGE and r.key.module == LOOP
                self.records.append(replace(r, key=placed(r.key), value=None if video else r.value))
            self.floors |= {placed(key): floor for key, floor in step.floors.items()}
        ends = side.ends()
        side.close()
        return ends

    def step(self) -> StepRecords:
        return StepRecords(STAGES_STEP, tuple(self.records), self.floors)


def _weights(facts: Facts) -> Mapping[str, str]:
    return {} if facts.provenance is None else facts.provenance.weights
