"""What `parity explain` was asked for: two goldens, or a run that was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from parity.compare.result import Result, read_result
from parity.errors import UsageError
from parity.files import read_bytes, unused
from parity.paths.plan import Openers, Role
from parity.paths.port.settings import typed
from parity.records import AFTER, Provenance
from parity.redact import typed_command
from parity.runs.given import carried
from parity.runs.request import FOUND, NO_PORTS, Ports, Request, RunSpec, no_run, ports_of, replaced, texts_of
from parity.settings import BY_NAME, NEUTRAL, Backend, Settings

FOLDER = "closer"
"""Of the records of a check's closer look, with one golden a side."""
_MOST_BYTES = 1 << 30
"""Of a document of a kept run; a site takes about a kilobyte."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What `parity explain` was asked for.

    Attributes:
        reference, candidate: goldens. model: in place of the golden's. prompt: of goldens that carry no embeddings,
            where it was not the model's own.
        rounding: the differing settings that the check of these goldens neutralised.
        ports, inputs: of the kept run; see `parity.runs.request.Request`.
        outside: the stages outside the loop in which the kept run failed, each to be compared again. spec, found: what
            the kept run was asked for, and what it found; None for two goldens, which are compared first.
    """

    reference: str
    candidate: str
    model: str | None = None
    prompt: str | None = None
    rounding: tuple[str, ...] = ()
    ports: Ports = NO_PORTS
    inputs: Path | None = None
    outside: tuple[Request, ...] = ()
    spec: RunSpec | None = None
    found: Result | None = None

    def pair(self, golden: Provenance, reference: Settings, candidate: Settings) -> Request:
        """The comparison of two sides with these settings, of the model that the reference's golden is of."""
        model, steps = self.model or golden.model, max(golden.steps, 1)
        return Request(model, reference, candidate, steps, golden.seed, prompt=self.prompt)

    def with_fault(self, fault: str, golden: Provenance) -> str:
        """The command whose reference has a known fault (`NAME=VALUE`): it passes where the candidate has the same.

        Args:
            golden: provenance of the reference. Empty where it is not parity's own, or carries no inputs.
        """
        if self.spec is not None:
            return self.spec.with_settings(reference=[fault]).command()
        if golden.backend != "torch" or carried(self.reference) is None:
            return ""
        texts = replaced(texts_of(typed(None, "torch", golden.settings)), [fault])
        words = [word for text in texts for word in ("-r", text)]
        words += [] if self.model is None else ["-m", self.model]
        faulty = unused("faulty")
        record = typed_command("parity", "record", faulty, "--inputs", self.reference, *words)
        return f"{record} && {typed_command('parity', 'diff', places=[faulty, self.candidate])}"


def of_run(where: Path, openers: Openers, named: Mapping[Role, str | None] | None = None) -> ExplainRequest:
    """The request for a kept run (`parity run --out DIR`): its last check.

    Args:
        openers: who imports its ports. named: its ports, `FILE:FUNCTION` by role; a run's folder does not decide what
            is executed.

    Raises:
        UsageError: the folder is no kept run, or a port of it is not named.
    """
    named = named or {}
    try:
        spec = RunSpec.read(where)
        found = read_result(read_bytes(where / FOUND, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):  # another than a run writes
        raise no_run(where) from None
    ports = ports_of(spec, openers, named)
    failed = tuple(s.stage for s in found.stages if s.verdict == "fail")
    neutral = (d for d in found.differing_settings if d.setting in NEUTRAL)
    at = where / "precision" if (where / "precision").is_dir() else where
    return ExplainRequest(
        reference=str(at / "reference"),
        candidate=str(at / "candidate"),
        model=spec.model if spec.port or spec.reference_port else None,
        prompt=spec.prompt,
        rounding=tuple(d.setting for d in neutral) if at == where else (),
        ports=ports,
        inputs=None if spec.arguments is None else Path(spec.arguments),
        outside=tuple(_outside(where, spec, stage, ports) for stage in failed),
        spec=spec.at([stage for stage in spec.stages if stage not in failed]),
        found=found,
    )


def _outside(where: Path, spec: RunSpec, stage: str, ports: Ports) -> Request:
    """The comparison of one stage of a kept run."""
    sides, latents = ports.settings([*spec.reference], [*spec.candidate]), where / "reference_latents.safetensors"
    asked = Request(str(spec.model), *sides, spec.steps, spec.seed, prompt=spec.prompt, stages=(stage,), ports=ports)
    given = spec.latents or (str(latents) if latents.is_file() else None)
    if stage == AFTER:
        return asked if given is None else replace(asked, prompt=None, stage2=Path(given))
    return asked if spec.embeddings is None else replace(asked, stage1=Path(spec.embeddings))


def own_settings(golden: Provenance, backend: Backend) -> Settings | None:
    """The settings of a golden that parity's own path recorded as this side's; None of any other."""
    if golden.settings.keys() - BY_NAME.keys():  # a script's
        return None
    settings = typed(None, backend, golden.settings)
    return settings if settings.backend == golden.backend else None


def outside_of(request: ExplainRequest, reference: Provenance, candidate: Provenance, stage: str) -> Request:
    """The comparison of one stage of two recorded chains.

    Raises:
        UsageError: one of them was recorded by a port or a script, whose stages cannot be run here.
    """
    ours, theirs = own_settings(reference, "torch"), own_settings(candidate, "torchax")
    if ours is None or theirs is None:
        side = reference.side if ours is None else candidate.side
        raise UsageError(f"the {side}'s golden was not recorded by parity's own path")
    return replace(request.pair(reference, ours, theirs), stages=(stage,))
