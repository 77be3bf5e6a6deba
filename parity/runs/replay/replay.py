"""`parity replay`: a golden's recorded inputs through this machine's modules, one at a time: their local errors.

The golden holds the inputs of some modules whole (`parity record --values 'GLOB:in'`) and with them the local floors of
their outputs. Each of these modules is run here on exactly those inputs, on either side, and its outputs are compared
with the recorded ones; nothing is inherited, and no loop is run. Cost: one run of each module, compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from parity.compare.conclude import divergence
from parity.compare.local import Local, local_errors
from parity.compare.preflight import failed
from parity.compare.reason import Reason
from parity.compare.result import NAN, Birth, Check, Distance, Origin, Result, SiteDiff, SiteVerdict
from parity.errors import UnjudgedError, UsageError
from parity.golden import Golden
from parity.golden.facts import Facts
from parity.golden.records import Floor, Key, Record, StepRecords
from parity.paths.plan import ModuleCall, Plan, Spec
from parity.paths.side import Side
from parity.paths.worker.openers import Openers
from parity.paths.worker.process import RemoteError
from parity.runs.replay.inputs import recorded_calls
from parity.runs.request import NO_PORTS, Ports, Request, Say
from parity.runs.sides import candidate_spec, modules_of, reference_spec, source_of
from parity.settings import Settings, Value, parse

HOW = "parity record DIR --values 'transformer_blocks.?:in'"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What `parity replay` was asked for.

    Attributes:
        golden: path or URL. model: in place of the golden's, None for its own. side: which of this machine's paths.
        settings: of that path. stage1, inputs: what the golden was recorded with, where it was given files.
        ports: in place of parity's paths; a candidate must be a torch module.
    """

    golden: str
    settings: Settings
    side: Literal["reference", "candidate"] = "candidate"
    model: str | None = None
    stage1: Path | None = None
    ports: Ports = NO_PORTS
    inputs: Path | None = None


def replay(request: ReplayRequest, openers: Openers, say: Say) -> Result:
    """Run the golden's modules here and compare.

    Raises:
        UsageError: no golden, another model. UnjudgedError: the golden holds no whole inputs, or no local floors.
    """
    golden = Golden.open(request.golden)
    say("loading the model")
    side, facts = _open(request, golden, openers)
    checks = (_weights(golden, facts),)
    model = request.model or golden.provenance.model
    problem = failed(checks)
    if problem is not None:
        why = Reason(kind="preflight", check=problem.check, detail=problem.detail)
        return Result("fail", "preflight", why, model, preflight=checks)
    sites: list[SiteDiff] = []
    for step in (s for s in golden.steps if s >= 0):  # what is outside the loop is no module of the transformer
        records = golden.read_step(step)
        for call, outputs in recorded_calls(records, golden.provenance.modules):
            if facts.own and call.module not in modules_of(facts):
                continue
            say(f"{call.module} of step {step}")
            local = local_errors(_truth(step, outputs, records.floors), _called(side, call, step, request.golden))
            sites += [_site(key, error) for key, error in local.items()]
    return _conclude(model, tuple(sites), checks, request.golden)


def _called(side: Side, call: ModuleCall, step: int, where: str) -> tuple[Record, ...]:
    """What a module of this machine gives for a recorded call.

    Raises:
        UsageError: it does not take the recorded inputs.
    """
    try:
        return tuple(side.call(call, Plan()).records)
    except RemoteError as error:
        raise UsageError(
            f"'{where}': this machine's {call.module} does not take its recorded inputs (step {step}): {error}; was "
            "the golden changed, or recorded with another diffusers?"
        ) from error


def _open(request: ReplayRequest, golden: Golden, openers: Openers) -> tuple[Side, Facts]:
    """This machine's side; its rows stand as they are recorded: valid tokens first."""
    provenance = golden.provenance
    dtype = provenance.settings.get("dtype", "float32")
    layout: dict[str, Value] = {"text.reorder": "valid_first"}
    if provenance.settings.get("vision_states") in ("zeros", "none"):
        layout["vision_states"] = provenance.settings["vision_states"]
    settings = Settings(request.settings.backend, {**request.settings.values, **layout})
    pair = Request(
        model=request.model or provenance.model,
        reference=parse("torch", [f"dtype={dtype}"]) if request.side == "candidate" else settings,
        candidate=settings,
        steps=max(provenance.steps, 1),
        seed=provenance.seed,
        stage1=request.stage1,
        inputs=request.inputs,
        ports=request.ports,
    )
    encode = {"dtype": dtype}
    if request.side == "reference":
        side = openers.of("reference").open(replace(reference_spec(pair), encode=encode))
        return side, side.facts()
    # A reference port without a model has the inputs; else the candidate encodes the prompt as the golden's did.
    known = openers.of("reference").open(reference_spec(pair)).facts() if request.ports.alone else None
    spec = candidate_spec(pair, known) if known is not None else replace(_candidate(pair), encode=encode)
    side = openers.of("candidate").open(spec)
    facts = side.facts()
    if facts.cannot_call:
        raise UsageError(facts.cannot_call)
    return side, facts


def _candidate(pair: Request) -> Spec:
    """The candidate of a model, whose inputs are its own to encode."""
    port = pair.ports.candidate or pair.ports.reference
    spec = Spec(role="candidate", source=source_of(pair), settings=pair.candidate.as_text())
    return spec if port is None else replace(spec, port=port.text, option=port.option)


def _weights(golden: Golden, facts: Facts) -> Check:
    """Whether this machine's weights are those that the golden was recorded with, where its dtype can tell."""
    recorded = golden.provenance.weights
    assert facts.provenance is not None
    if golden.provenance.settings.get("dtype") != facts.provenance.settings.get("dtype"):
        return Check("weights", "pass", "another dtype: not compared")
    own = facts.provenance.weights
    if facts.own and set(own) != set(recorded):
        return Check("weights", "explained", "not compared: the port names its parameters otherwise")
    other = [name for name, known in recorded.items() if name in own and own[name] != known]
    if other or not set(recorded) & set(own):
        first = f"; first: '{other[0]}'" if other else ""
        return Check("weights", "fail", f"{len(other)} of {len(recorded)} parameters are not the golden's{first}")
    return Check("weights", "pass", f"{len(recorded)} parameters are the golden's")


def _truth(step: int, outputs: list[Record], floors: Mapping[Key, Floor]) -> StepRecords:
    """The recorded outputs with their local floors in the place of those of the free run."""
    local = {r.key: Floor(floors[r.key].local_l2) for r in outputs if r.key in floors}
    return StepRecords(step, tuple(outputs), {key: f for key, f in local.items() if not np.isnan(f.l2)})


def _site(key: Key, local: Local) -> SiteDiff:
    unknown = np.isnan(local.distance.ratio) and not local.note
    differs = local.beyond and not (unknown and local.distance.rel_l2 == 0.0)
    verdict: SiteVerdict = "unjudged" if differs and unknown else "fail" if differs else "pass"
    born: Birth | None = "module" if verdict == "fail" else None
    far = Distance(NAN, NAN, NAN)
    return SiteDiff(key, far, local=local.distance, birth=born, verdict=verdict, note=local.note)


def _conclude(model: str, sites: tuple[SiteDiff, ...], checks: tuple[Check, ...], where: str) -> Result:
    if not sites:
        raise UnjudgedError(f"'{where}' holds no module's inputs whole: record it with {HOW}")
    failing = [d for d in sites if d.verdict == "fail"]
    found: dict[str, Any] = {"model": model, "preflight": checks, "sites": sites}
    if failing:
        why = divergence(failing[0], "module", fed="recorded")
        return Result("fail", "structure", why, origin=Origin(failing[0].key, "module"), **found)
    unknown = sum(d.verdict == "unjudged" for d in sites)
    if unknown:
        detail = f"{unknown} outputs differ and the golden holds no local floors: record it with {HOW} and floors"
        return Result("unjudged", None, Reason(kind="unjudged", detail=detail), **found)
    worst = max(sites, key=lambda d: 0.0 if np.isnan(d.local.ratio) else d.local.ratio)
    why = Reason(kind="agrees", fed="recorded", sites=len(sites), distance=worst.local)
    return Result("pass", None, why, **found)
