"""The one comparison: two sides, judged step by step in two rounds, and looked at closer where they fail.

The structure round gives both sides float32 and the highest matmul precision, every dtype setting neutralised: what is
left to differ is logic. The precision round runs everything as given and judges it three ways, against the float32
truth of the first round: a site's floor is the largest of the float32 floor and of how far the reference itself, as
given, is from the truth; where the candidate works in a coarser dtype than the reference, the reference is run once
more in that dtype and its distance counts too. Where nothing is there to neutralise the two rounds are the same, and
one is run.

Nothing is kept but the comparison; a sink takes both sides' records while they are made. Imports neither torch nor jax.
Cost: each side's run, and the reference's beside it that measure its floors; the truth's records of all steps are held
where there are two rounds (8 KB a site and step).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from parity.compare.conclude import Collected, conclude
from parity.compare.findings import Grid
from parity.compare.judge import Judge, excuses
from parity.compare.preflight import failed
from parity.compare.reason import Note, Reason
from parity.compare.result import Check, Failed, Result, Round, SiteDiff
from parity.errors import UsageError
from parity.golden.floors import level, widen
from parity.golden.records import LOOP, Floor, Key, StepRecords
from parity.hooks.sites import SitePlan, plan_sites
from parity.paths.plan import Changes, Plan, State
from parity.paths.side import Pair, Side
from parity.reached import Reached
from parity.runs.request import Request, Say
from parity.runs.sides import Openers, Own, Ready, Workers, given_of, ready
from parity.runs.sink import NoSink, Sink
from parity.runs.stream import Ends, state_of, until_end
from parity.runs.suspects import FLOORS, LocalPass, SecondLook, descend, operations
from parity.settings import BITS, NEUTRAL, Settings

REACHED = "settings reached"
"""Name of the check that says which settings proved that their code ran."""


@dataclass
class Truth:
    """The float32 reference's records of all steps, with their float32 floors.

    Attributes:
        steps: so far. ends: what it came to.
    """

    steps: list[StepRecords] = field(default_factory=list)
    ends: Ends = field(default_factory=Ends)


Encodings = Mapping[str, Pair[Own]]
"""Round -> each side's own embeddings, where the text stage has made them."""


def run(
    request: Request,
    say: Say,
    sink: Sink | None = None,
    own: Encodings = MappingProxyType({}),
    openers: Openers | None = None,
) -> Result:
    """Run both paths and compare them.

    Args:
        openers: who loads the sides; by default each in a process of its own, for this comparison alone.

    Raises:
        UsageError: bad input, or a side failed. UnjudgedError: a chosen site never fired, or a setting was ignored.
    """
    with contextlib.ExitStack() as stack:
        openers = openers or request.ports.openers or stack.enter_context(Workers())
        return compare(request, openers, say, sink or NoSink(), own)


def compare(
    request: Request,
    openers: Openers,
    say: Say,
    sink: Sink,
    own: Encodings = MappingProxyType({}),
    *,
    past_preflight: bool = False,
) -> Result:
    """See `run`.

    Args:
        past_preflight: whether a failing check, which decides, does not end the comparison: its numbers are wanted too.
    """
    result, problem = _compared(request, openers, say, sink, own, past_preflight)
    if problem is None or result.failed == "preflight":
        return result
    return replace(result, verdict="fail", failed="preflight", why=_of_check(problem))


def _of_check(problem: Check) -> Reason:
    return Reason(kind="preflight", check=problem.check, detail=problem.detail)


def _compared(
    request: Request, openers: Openers, say: Say, sink: Sink, own: Encodings, past_preflight: bool
) -> tuple[Result, Check | None]:
    """The result, and the check that failed before anything ran."""
    exact = replace(request, reference=request.reference.neutral, candidate=request.candidate.neutral)
    given = own.get("precision") or own.get("structure")
    with ready(request, openers, say, given) as pair:
        checks, differing = pair.checks, pair.differing
        problem = failed(checks)
        if problem is not None and not past_preflight:
            return Result("fail", "preflight", _of_check(problem), request.model, differing, checks), problem
        if request.forcing == "module" and pair.facts.candidate.cannot_call:
            raise UsageError(pair.facts.candidate.cannot_call)
        plan_sites(["", *pair.modules], request.sites, request.values)  # refuses before anything runs
        if exact == request:
            result, _ = structure(pair, request, sink, say)
            if request.rounds == "precision":
                result = replace(result, failed="precision" if result.failed else None)
            return _with_rounds(result, checks, request.rounds), problem
        if request.rounds == "precision":
            truth = truth_alone(pair, request, say)
            return _with_rounds(precision(pair, request, truth, sink, say), checks, "precision"), problem
    # The pair as given makes room for the exact one, and is loaded again: weights can be large.
    with ready(exact, openers, say, own.get("structure")) as pair:
        first, truth = structure(pair, request, sink, say)
    first = replace(first, differing_settings=differing)
    if request.rounds == "structure" or first.verdict != "pass":
        return _with_rounds(first, checks, "structure"), problem
    with ready(request, openers, say, own.get("precision")) as pair:
        second = precision(pair, request, truth, sink, say)
    return _with_rounds(second, checks, "precision", first), problem


def structure(pair: Ready, request: Request, sink: Sink, say: Say) -> tuple[Result, Truth]:
    """Judge a pair two ways, against the reference and its float32 floors; returns what the reference computed too."""
    leave = sink.begin(pair.facts, "structure")
    plan = plan_sites(["", *pair.modules], request.sites, request.values)
    say("preparing the floors")
    truth, ends = Truth(), Ends()
    judged = _Judged(pair, request, plan, sink, say)
    forced = request.forcing == "step"
    states: dict[int, State] = {}
    ours = Plan(sites=plan, floors=FLOORS, forced=forced, ends=True, leave=leave)
    first = until_end(pair.sides.reference.observe(ours), truth.ends)
    theirs = Plan(sites=plan, ends=True, leave=leave)
    second = until_end(pair.sides.candidate.observe(theirs, start=states.get if forced else None), ends)
    for reference in _counted(first, "reference and its floors", request.steps, say):
        states[reference.step] = state_of(reference, "before")
        compiling = " (tracing and compiling)" if reference.step == 0 else ""
        say(f"candidate{compiling}", reference.step, request.steps)
        judged.add(reference, next(second))
        truth.steps.append(reference)
    _exhaust(second)
    judged.look_again()
    sink.finish(Pair(truth.ends, ends))
    result = judged.conclude(request.model, pair.differing)
    result = _require_common(result, pair, ends)
    return judged.closer(result, request), truth


@dataclass
class _Judged:
    """A structure round as it comes along: what was judged, and what is to be looked at closer."""

    pair: Ready
    request: Request
    plan: SitePlan
    sink: Sink
    say: Say
    collected: Collected = field(default_factory=Collected)
    failing: State | None = None
    again: SecondLook | None = None

    def __post_init__(self) -> None:
        self.judge = Judge(excuses(self.pair.differing), strict_sites=self.pair.strict)
        alone = self.request.forcing == "module"
        self.local = LocalPass(self.pair, self.plan, self.say) if alone else None

    def add(self, reference: StepRecords, candidate: StepRecords) -> None:
        """Judge one step of both sides."""
        self.sink.step(reference, candidate)
        sites = self.judge.step(reference, candidate)
        before = state_of(reference, "before")
        if self.local is not None:
            sites = self.local.step(reference.step, before, sites, candidate)
        if self.failing is None and any(d.verdict == "fail" for d in sites):
            self.failing = before
        if self.failing is None and self.again is None and self.local is None:
            self.again = SecondLook.of(self.pair, reference, candidate, sites)
        self.collected.add(reference, candidate, sites)

    def look_again(self) -> None:
        """Where all agreed and some modules are in doubt, run these on the reference's own inputs."""
        if self.again is not None and self.failing is None:
            self.local, self.failing = LocalPass(self.pair, self.plan, self.say), self.again.state
            self.collected.sites = self.again.settle(self.collected.sites, self.local)

    def conclude(self, model: str, differing: Sequence[object]) -> Result:
        """The verdict of the round."""
        pair = self.pair
        checks = (*pair.checks, reached(pair))
        return conclude(self.collected, model=model, differing=pair.differing, preflight=checks, grid=_grid(pair))

    def closer(self, result: Result, request: Request) -> Result:
        """A failing result with its origin placed inside the block in which it lies."""
        if self.failing is None or request.sites != "blocks" or result.verdict != "fail":
            return result
        result = descend(result, self.pair, self.failing, self.say)
        if self.local is not None:
            result = self.local.descend(result)
        return operations(result, self.pair, self.failing, self.say) if self.pair.strict else result


def truth_alone(pair: Ready, request: Request, say: Say) -> Truth:
    """The truth where no structure round has made it: the reference in float32, with its floors."""
    say("loading the float32 truth")
    neutral = pair.settings.reference.neutral.as_text()
    side = pair.sides.reference.patched(Changes(settings=neutral, inputs=given_of(pair.facts.reference), run="float32"))
    truth = Truth()
    plan = Plan(sites=plan_sites(["", *pair.modules], request.sites, request.values), floors=FLOORS, ends=True)
    for step in _counted(until_end(side.observe(plan), truth.ends), "truth and its floors", request.steps, say):
        truth.steps.append(step)
    side.close()
    return truth


def precision(pair: Ready, request: Request, truth: Truth, sink: Sink, say: Say, coarse: Side | None = None) -> Result:
    """Judge a pair as given, three ways.

    Args:
        coarse: the reference in the candidate's working dtype, where that is the coarser one and loaded already.
    """
    leave = sink.begin(pair.facts, "precision")
    plan = plan_sites(["", *pair.modules], request.sites, request.values)
    judge = Judge(excuses(pair.differing), strict_sites=pair.strict)
    collected, ends = Collected(), [Ends() for _ in range(3)]
    local = LocalPass(pair, plan, say) if request.forcing == "module" else None
    starts = {step.step: state_of(step, "before") for step in truth.steps}
    start = starts.get if request.forcing == "step" else None
    extra = coarse or _coarse(pair)
    references = [pair.sides.reference, *([] if extra is None else [extra])]
    whole = Plan(sites=plan, ends=True, leave=leave)
    runs = [
        until_end(side.observe(whole if i == 0 else Plan(sites=plan, ends=True), start=start), ends[i])
        for i, side in enumerate(references)
    ]
    candidate = until_end(pair.sides.candidate.observe(whole, start=start), ends[2])
    for true in truth.steps:
        say("reference in its working dtype", true.step, request.steps)
        given = [next(run) for run in runs]
        judged = _three_ways(true, given)
        say("candidate" + (" (tracing and compiling)" if true.step == 0 else ""), true.step, request.steps)
        theirs = next(candidate)
        sink.step(StepRecords(true.step, given[0].records, judged.floors), theirs)
        sites: tuple[SiteDiff, ...] = judge.step(judged, theirs)
        if local is not None:
            sites = local.step(true.step, state_of(given[0], "before"), sites, theirs)
        collected.add(judged, theirs, sites)
    for run in (*runs, candidate):
        _exhaust(run)
    beside = {"float32": truth.ends.own} | ({} if extra is None else {"coarse": ends[1].own})
    sink.finish(Pair(Ends({**ends[0].latents, **beside}, ends[0].names), ends[2]))
    if extra is not None and coarse is None:
        extra.close()
    only = tuple(d for d in pair.differing if d.setting in NEUTRAL)
    checks = (*pair.checks, reached(pair))
    failing: Failed = "precision"
    result = conclude(
        collected, model=request.model, differing=only, preflight=checks, failing=failing, grid=_grid(pair)
    )
    if local is not None and result.verdict == "fail":
        result = local.descend(result)
    return replace(result, differing_settings=pair.differing)


def _three_ways(true: StepRecords, references: Sequence[StepRecords]) -> StepRecords:
    """The truth's numbers with the floors of this round, under the dtypes that the reference has as given."""
    floors: dict[Key, Floor] = dict(true.floors)
    for other in references:
        widen(floors, true.records, other.records)
    level(floors, true.records)
    dtypes = {r.key: r.dtype for r in references[0].records}
    return StepRecords(true.step, tuple(replace(r, dtype=dtypes.get(r.key, r.dtype)) for r in true.records), floors)


def _coarse(pair: Ready) -> Side | None:
    """The reference in the candidate's working dtype, where that is the coarser one."""
    ours, theirs = pair.settings.reference, pair.settings.candidate
    if theirs.working_bits >= ours.working_bits:
        return None
    settings = coarse_settings(ours, theirs).as_text()
    # The candidate's own embeddings would hide what its encoders did; the reference has some in that dtype too.
    return pair.sides.reference.patched(Changes(settings=settings, inputs=given_of(pair.facts.candidate), run="coarse"))


def coarse_settings(reference: Settings, candidate: Settings) -> Settings:
    """The reference's settings with the candidate's working dtype; one encoder in bfloat16 makes it that throughout."""
    same = reference.replace(dtype=candidate["dtype"], matmul_precision=candidate["matmul_precision"])
    if same.working_bits <= candidate.working_bits:
        return same
    coarse = next(name for name, bits in BITS.items() if bits == candidate.working_bits)
    return same.replace(dtype=coarse)


def reached(pair: Ready) -> Check:
    """One line that says which settings proved that their code ran; a side whose code did not has refused to go on."""

    def names(settings: Settings) -> str:
        return ", ".join(Reached(settings).expected) or "none given"

    detail = f"reference: {names(pair.settings.reference)}; candidate: {names(pair.settings.candidate)}"
    return Check(REACHED, "pass", f"code replaced by settings ran ({detail})")


def _grid(pair: Ready) -> Grid | None:
    return None if pair.grid is None else Grid(*pair.grid)


def _counted(steps: Iterable[StepRecords], text: str, total: int, say: Say) -> Iterator[StepRecords]:
    """The steps, with a line for each once it is there."""
    for step in steps:
        say(text, step.step, total)
        yield step


def _exhaust(steps: Iterator[StepRecords]) -> None:
    """Take what follows the last step."""
    for _ in steps:
        continue


def _require_common(result: Result, pair: Ready, ends: Ends) -> Result:
    """A port's result, unjudged where it passed although none of what it named is a site of the reference's."""
    if not pair.port or result.verdict != "pass" or any(map(_module_met, result.sites)):
        return result
    if not ends.names:
        note = "the port names no site: only noise_pred and latents were compared (parity.port.tap names more)"
        return replace(result, notes=(*result.notes, Note(note)))
    detail = f"it names {', '.join(ends.names[:4])}, the reference {', '.join(pair.modules[:4])}"
    return replace(result, verdict="unjudged", why=Reason(kind="unjudged", problem="no_site", detail=detail))


def _module_met(d: SiteDiff) -> bool:
    return d.key.module not in ("", LOOP) and all(d.dtypes) and bool(d.dtypes)


def _with_rounds(result: Result, checks: tuple[Check, ...], last: str, first: Result | None = None) -> Result:
    """The result of the last round, with what each round came to and the preflight of the sides as given."""
    preflight = (*checks, *(c for c in result.preflight if c.check == REACHED))
    both = [("structure", first)] if first is not None else []
    both += [(name, result) for name in (["structure", "precision"] if last == "both" else [last])]
    rounds = tuple(Round(name, r.verdict, r.why, r.steps, r.origin) for name, r in both)  # type: ignore[arg-type]
    if first is None:
        return replace(result, preflight=preflight, rounds=rounds)
    why = replace(result.why, precision=True)
    return replace(result, preflight=preflight, rounds=rounds, why=why, notes=(*first.notes, *result.notes))
