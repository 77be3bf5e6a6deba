"""Judging a stage outside the loop: both sides on the same inputs, each site against its floor, and a closer look.

In a structure round the truth is the reference in float32; in a precision round what is given is judged three ways
around the same truth (`parity.runs.precision`): the reference as given, and in the candidate's working dtype where
that is the coarser one, widen its floors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from parity.compare.conclude import Collected, conclude
from parity.compare.judge import Judge
from parity.compare.reason import Output, Reason
from parity.compare.result import Check, Failed, Result, SiteDiff
from parity.golden.records import LOOP, Record, StepRecords
from parity.hooks.sites import SitePlan, is_block, plan_sites
from parity.paths.stage import STEP, Floors, Inputs, Run, Runner, Seen, Stage, TorchStage, Variant, stage_variants
from parity.runs.precision import coarse_settings
from parity.runs.request import Say
from parity.runs.suspects import children_plan
from parity.settings import BITS, Settings


@dataclass
class StagePair:
    """Both sides of a stage, loaded.

    Attributes:
        stage: which. truth: the reference in float32. candidate: as it is judged.
        coarse: (name, settings) of the reference in the working dtypes that count towards the floors.
    """

    stage: Stage
    truth: TorchStage
    candidate: Runner
    coarse: tuple[tuple[str, Settings], ...] = ()

    def variants(self) -> list[Variant]:
        """The runs that floors are measured from."""
        return list(stage_variants(self.truth, self.coarse))


def load_stage(stage: Stage, reference: Settings, candidate: Settings) -> StagePair:
    """Load both sides of a stage.

    Args:
        reference, candidate: settings, neutralised for a structure round.
    """
    from parity.paths.jax.stage import TorchaxStage  # jax and torchax, only from here on

    coarse = coarse_runs(reference, candidate)
    return StagePair(stage, TorchStage(stage, reference.neutral), TorchaxStage(stage, candidate), coarse)


def coarse_runs(reference: Settings, candidate: Settings) -> tuple[tuple[str, Settings], ...]:
    """(name, settings) of the reference in the working dtypes that count towards the floors: its own, where that is
    not exact, and the candidate's, where that is the coarser one."""
    runs: list[tuple[str, Settings]] = []
    if reference.working_bits < BITS["float32"]:
        runs.append(("reference", reference))
    if candidate.working_bits < reference.working_bits:
        runs.append(("coarse", coarse_settings(reference, candidate)))
    return tuple(runs)


Branches = Mapping[str, Seen]
"""Guidance branch (`""` where there is none) -> what a run of it gave."""


@dataclass(frozen=True)
class Judged:
    """A stage judged by itself.

    Attributes:
        result: of its sites. plan: what was observed. truth, candidate: what each side gave, by branch. others: what
            each variant did, by name.
    """

    result: Result
    plan: SitePlan
    truth: Branches
    candidate: Branches
    others: Mapping[str, Branches]


def judge_stage(
    pair: StagePair,
    inputs: Mapping[str, Inputs],
    choice: tuple[str, tuple[str, ...]],
    model: str,
    failing: Failed,
    say: Say,
) -> Judged:
    """Run a stage on the same inputs on both sides and judge it.

    Args:
        inputs: by branch. choice: sites and values of this stage (`parity.hooks.sites.split_sites`).

    Raises:
        UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    name = pair.stage.name
    modules = tuple(pair.truth.modules)
    plan = plan_sites(["", *modules], choice[0], choice[1], trunk=pair.stage.trunk)
    variants = pair.variants()
    truth, theirs, others, sites = _compare(pair, variants, inputs, plan, say)
    pair.truth.reached.require()
    pair.candidate.reached.require()
    collected = Collected(sites=list(sites))
    result = conclude(collected, model=model, differing=(), preflight=(), failing=failing)
    result = dataclasses.replace(result, why=_why(result, name))
    suspect = None if result.origin is None or choice[0] != "blocks" else _suspect(result.origin.key.module, pair.stage)
    closer = None if suspect is None else children_plan(suspect, modules)
    if closer is not None:
        say(f"looking closer at {suspect}")
        _, _, _, inside = _compare(pair, variants, inputs, closer, say)
        inside = tuple(d for d in inside if d.key.module != LOOP)
        second = conclude(Collected(sites=list(inside)), model=model, differing=(), preflight=(), failing=failing)
        if second.origin is not None and second.origin.birth != "amplified":
            result = dataclasses.replace(result, origin=second.origin, why=_why(second, name))
        result = dataclasses.replace(result, closer=inside)
    return Judged(result, plan, truth, theirs, others)


def _compare(
    pair: StagePair, variants: list[Variant], inputs: Mapping[str, Inputs], plan: SitePlan, say: Say
) -> tuple[Branches, Branches, dict[str, Branches], tuple[SiteDiff, ...]]:
    name = pair.stage.name
    say(f"{name}: reference and its floors")
    truth = run_branches(pair.truth.run, inputs, plan)
    floors = Floors(records_of(truth))
    others: dict[str, Branches] = {}
    for variant in variants:
        seen = run_branches(variant.run, inputs, plan)
        floors.widen(records_of(seen))
        others[variant.name] = {branch: Seen(s.outputs, ()) for branch, s in seen.items()}
    say(f"{name}: candidate (tracing and compiling)")
    theirs = run_branches(pair.candidate.run, inputs, plan)
    return truth, theirs, others, Judge().step(floors.step(), StepRecords(STEP, records_of(theirs)))


def run_branches(run: Run, inputs: Mapping[str, Inputs], plan: SitePlan | None) -> dict[str, Seen]:
    """Run a stage once for each branch, in their order."""
    return {branch: run(given, plan, branch) for branch, given in inputs.items()}


def records_of(branches: Branches) -> tuple[Record, ...]:
    """The records of all branches, one branch after the other."""
    return tuple(r for seen in branches.values() for r in seen.records)


def _suspect(module: str, stage: Stage) -> str | None:
    """The block of the trunk that a module lies in (or the trunk's child); None for the stage's own ports."""
    inside = module.removeprefix(f"{stage.trunk}.")
    if inside == module or module == LOOP:
        return None
    head = ".".join(inside.split(".")[:2])
    return f"{stage.trunk}.{head if is_block(head) else inside.split('.')[0]}"


def _why(result: Result, name: str) -> Reason:
    """The reason of a stage: its outputs stand where the loop's would."""
    outputs = [d for d in result.sites if d.key.module == LOOP and not d.key.is_padding]
    worst = max(outputs, key=lambda d: d.distance.rel_l2, default=None)
    output = None if worst is None else Output(worst.key.port, worst.distance)
    return dataclasses.replace(result.why, stage=name, output=output, outputs_match=False)


def with_checks(result: Result, checks: tuple[Check, ...], stage: str) -> Result:
    """The result with these checks before it; the first that fails decides."""
    bad = next((c for c in checks if c.verdict == "fail"), None)
    result = dataclasses.replace(result, preflight=(*result.preflight, *checks))
    if bad is None or result.verdict == "fail":
        return result
    why = Reason(kind="preflight", check=bad.check, detail=bad.detail, stage=stage)
    return dataclasses.replace(result, verdict="fail", failed="preflight", why=why)
