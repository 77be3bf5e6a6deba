"""`parity replay`: a golden's recorded inputs through this machine's modules, one at a time: their local errors.

The golden holds the inputs of some modules whole (`parity record --values 'GLOB:in'`) and with them the local floors of
their outputs. Each of these modules is run here on exactly those inputs, on either side, and its outputs are compared
with the recorded ones; nothing is inherited, and no loop is run. Cost: one run of each module, compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from parity.compare.conclude import divergence
from parity.compare.local import Local, local_errors
from parity.compare.preflight import failed
from parity.compare.reason import Reason
from parity.compare.result import NAN, Birth, Check, Distance, Origin, Result, SiteDiff, SiteVerdict
from parity.errors import UnjudgedError
from parity.golden import Golden
from parity.golden.fingerprint import fingerprint
from parity.golden.records import Floor, Key, Record, StepRecords
from parity.hooks.calls import Call
from parity.paths.families import base_of, load_candidate_side
from parity.paths.inputs import make_inputs
from parity.paths.loaded import Loaded
from parity.paths.local_modules import local_modules, require_local
from parity.paths.ported import Ported
from parity.runs.ports import behind, families
from parity.runs.replay_inputs import recorded_calls
from parity.runs.request import NO_PORTS, Ports, Say
from parity.settings import Settings, parse

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


def replay(request: ReplayRequest, say: Say) -> Result:
    """Run the golden's modules here and compare.

    Raises:
        UsageError: no golden, another model. UnjudgedError: the golden holds no whole inputs, or no local floors.
    """
    golden = Golden.open(request.golden)
    say("loading the model")
    side = _load(request, golden)
    checks = (_weights(golden, side),)
    model = request.model or golden.provenance.model
    problem = failed(checks)
    if problem is not None:
        why = Reason(kind="preflight", check=problem.check, detail=problem.detail)
        return Result("fail", "preflight", why, model, preflight=checks)
    run, has = _runner(side)
    sites: list[SiteDiff] = []
    for step in (s for s in golden.steps if s >= 0):  # what is outside the loop is no module of the transformer
        records = golden.read_step(step)
        for call, outputs in recorded_calls(records):
            if not has(call.module):
                continue
            say(f"{call.module} of step {step}")
            found = local_errors(_truth(step, outputs, records.floors), run(call, step))
            sites += [_site(key, local) for key, local in found.items()]
    return _conclude(model, tuple(sites), checks, request.golden)


def _load(request: ReplayRequest, golden: Golden) -> Loaded:
    provenance = golden.provenance
    theirs = parse("torch", [f"dtype={provenance.settings.get('dtype', 'float32')}"])
    base, case = base_of(request.model or provenance.model, theirs, behind(request.ports), None, request.inputs)
    family, other = families(request.ports, base, case)
    # Recorded rows stand in the frame's order, valid tokens first, whatever order either path uses.
    settings = request.settings.replace(text_reorder="valid_first")
    if provenance.settings.get("vision_states") in ("zeros", "none"):
        settings = settings.replace(vision_states=provenance.settings["vision_states"])
    inputs, _ = make_inputs(
        family, case, theirs, theirs, steps=max(provenance.steps, 1), seed=provenance.seed, stage1=request.stage1
    )
    if request.side == "reference":
        from parity.paths.reference import load_reference

        return load_reference(family, case, settings, inputs)
    side = load_candidate_side(other, case, settings, inputs)
    require_local(side)
    return side


def _weights(golden: Golden, side: Loaded) -> Check:
    """Whether this machine's weights are those that the golden was recorded with, where its dtype can tell."""
    held = golden.provenance.weights
    if golden.provenance.settings.get("dtype") != side.settings.text("dtype"):
        return Check("weights", "pass", "another dtype: not compared")
    ours = {name: fingerprint(values) for name, _, values in side.backend.weights()}
    family: Any = side.family
    if isinstance(family, Ported) and set(ours) != set(held):
        return Check("weights", "explained", "not compared: the port names its parameters otherwise")
    other = [name for name, known in held.items() if name in ours and ours[name] != known]
    if other or not set(held) & set(ours):
        first = f"; first: '{other[0]}'" if other else ""
        return Check("weights", "fail", f"{len(other)} of {len(held)} parameters are not the golden's{first}")
    return Check("weights", "pass", f"{len(held)} parameters are the golden's")


def _runner(side: Loaded) -> tuple[Any, Callable[[str], bool]]:
    """What runs a module on a call, and whether the side has one of this name."""
    if side.role == "candidate":
        modules = local_modules(side)
        return modules.records, modules.has if isinstance(side.family, Ported) else _any
    from parity.paths.local import observe, rerun
    from parity.paths.reference import TorchBackend

    backend = side.backend
    assert isinstance(backend, TorchBackend)

    def run(call: Call, step: int) -> list[Record]:
        module = backend.model.get_submodule(call.module)
        with backend.scope():
            return observe(backend, call, rerun(module, call, None), step)

    return run, _any


def _any(module: str) -> bool:
    return True


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
