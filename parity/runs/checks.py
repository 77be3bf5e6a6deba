"""The two checks: two sides judged two ways, against the reference and its float32 floors (logic), and as given, judged
three ways, against the float32 truth (precision).

Cost: both sides once, the reference's runs beside it that measure its floors, and the truth's records of all steps,
which the precision check is judged against (8 KB a site and step). There both sides run once again; where the candidate
works in a coarser dtype than the reference, so does the reference in that dtype. The truth comes from the logic check,
or is made.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parity.compare.births import Births, excuses
from parity.compare.conclude import Collected, conclude, widest_of
from parity.compare.detectors import Detectors
from parity.compare.judge import Judge
from parity.compare.result import Check, Failed, Result, SiteDiff
from parity.compare.sites import AllSites, how_many, picked
from parity.floors import Floors
from parity.hooks.implementations import sentence
from parity.paths.plan import Ends, Forced, Pair, Plan, Side, State, state_of
from parity.records import ATTENTION, LOOP, LOOP_STAGE, Key, StepRecords, any_block
from parity.runs.follow import Following, behind, causes_of_followed, descend, holding, listed, unobserved, without_held
from parity.runs.sides import Ready, Sink, counted
from parity.settings import NEUTRAL, Difference, Reached

REACHED = "settings reached"
"""Name of the check that says which settings proved that their code ran."""


@dataclass
class Truth:
    """The float32 reference's records of all steps, with their float32 floors.

    Attributes:
        steps: all of them. ends: what it came to. unlike: the sites that the logic check did not compare, and why; None
            where there was none.
    """

    steps: list[StepRecords]
    ends: Ends
    unlike: Mapping[Key, str] | None = None


def logic(pair: Ready, sink: Sink) -> tuple[Result, Truth]:
    """Judge a pair two ways, against the reference and its float32 floors; returns what the reference computed too."""
    judged, request, reference = Judged(pair, "logic", sink), pair.request, pair.sides.reference
    pair.say("preparing the floors")
    steps = counted(reference.observe(_measured(pair)), "reference and its floors", request.steps, pair.say)
    start = judged.states.get if request.isolate == "steps" else None
    truth = Truth([*judged.steps(steps, (), start)], reference.ends(judged.leave))
    ends = judged.end(truth.ends, reference)

    def concluded() -> Result:
        result = judged.conclude(pair.differing, widest_of(pair.chip))
        result = result.noted(*(_unmatched(pair, ends.names) if pair.port else ()), *attention(truth.ends, ends))
        return _require_common(result, pair, ends).resting_on((*truth.ends.idle, *ends.idle))

    result = judged.closer(concluded(), ends.names)
    truth = replace(truth, unlike={d.key: d.note for d in picked(result.sites, "not compared")})
    return behind(result, pair, reference, judged.states, judged.collected, concluded), truth


@dataclass
class Judged:
    """A check as it comes along: what was judged, and what is to be looked at closer.

    Attributes:
        name: of the check. unlike: see `Judge`. plan: the sites. leave: the folder in which the sides leave their stage
            files.
        states: what the reference started each step from.
    """

    pair: Ready
    name: Failed
    sink: Sink
    unlike: Mapping[Key, str] | None = None
    collected: Collected = field(default_factory=Collected)
    states: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leave = self.sink.begin(self.pair.facts, self.name)
        self.plan = self.pair.plan()
        births, lies = Births(excuses(self.pair.differing)), self.pair.laid_out
        self.judge = Judge(births, port=self.pair.port, laid_out=lies, unlike=self.unlike)
        self.following = Following(self.pair)
        asked = self.pair.request
        self.detectors = Detectors((asked.reference.as_text(), asked.candidate.as_text()))

    def steps(
        self, true: Iterable[StepRecords], references: Sequence[Side], start: Forced | None
    ) -> Iterator[StepRecords]:
        """Judge the candidate step by step; the steps that it is judged against.

        Args:
            true: what the candidate is judged against, with floors. references: those as given, which count too; none
                where `true` is the reference itself. start: what both sides start each step from; None for their own.
        """
        say, total = self.pair.say, self.pair.request.steps
        runs = [side.observe(Plan(sites=self.plan), start=start) for side in references]
        plan = Plan(sites=holding(self.plan, self.pair.request))
        candidate = self.pair.sides.candidate.observe(plan, start=start)
        for truth in true:
            if runs:
                say("reference in its working dtype", truth.step, total)
            given = [next(run) for run in runs] or [truth]
            self.states[truth.step] = state_of(given[0], "before")
            compiles = truth.step == 0 and self.pair.request.candidate.backend == "torchax"
            say(f"candidate{' (tracing and compiling)' * compiles}", truth.step, total)
            theirs, outputs = without_held(next(candidate))
            truth = _three_ways(truth, given, theirs) if runs else truth
            self.sink.step(replace(given[0], floors=truth.floors), theirs)
            sites = self.judge.step(truth, theirs)
            self.following.add(given[0], outputs, sites)
            self.collected.add(truth, theirs, sites)
            self.detectors.add(given[0], theirs, differs=how_many(sites, "fail") > 0, begun=self.collected.begun)
            yield truth

    def end(self, reference: Ends, side: Side) -> Ends:
        """What the candidate came to, once all steps are judged; where all agreed the reference follows its values.

        Args:
            reference: what the reference came to. side: see `Following.settle`.
        """
        ends = self.pair.sides.candidate.ends(self.leave)
        if (settled := self.following.settle(side, self.collected.sites)) is not self.collected.sites:
            self.collected.sites = AllSites([settled])
        self.sink.ends[self.name] = Pair(reference, ends)
        self.sink.finish()
        return ends

    def conclude(self, differing: Sequence[Difference], widest: float = math.inf) -> Result:
        """The verdict of the check; see `parity.compare.conclude.conclude`."""
        pair = self.pair
        result = conclude(
            self.collected,
            model=pair.request.model,
            differing=differing,
            preflight=(*pair.checks, reached(pair)),
            failing=self.name,
            grid=pair.facts.reference.grid,
            widest=widest,
            seen=self.judge.seen if pair.port else None,
        )
        result = result.noted(*self.following.lost)
        if result.verdict != "fail":
            return result
        result = result.told(self.detectors.told)
        return result.told(causes_of_followed(result, self.following.known))

    def closer(self, result: Result, named: Sequence[str]) -> Result:
        """A failing result with its origin placed inside the block in which it lies.

        Args:
            named: the modules that the candidate named; they are looked at where none of the chosen ones met its.
        """
        origin = result.origin
        placed = self.following.known or self.pair.request.sites != "blocks"  # as closely as modules can be
        if origin is None or placed or not how_many(result.sites, "fail"):
            return result
        in_blocks = any(d.key.module in self.plan.modules and _module_met(d) for d in result.sites)
        unseen = frozenset[str]() if in_blocks else frozenset(named).intersection(self.pair.modules) - self.plan.modules
        return descend(result, origin.key, self.pair, self.states[origin.key.step], self.sink, unseen)


def reached(pair: Ready) -> Check:
    """One line that says which settings proved that their code ran; a side whose code did not has refused to go on."""
    both = (("reference", pair.request.reference), ("candidate", pair.request.candidate))
    said = [f"{side}: {', '.join(Reached(settings).expected) or 'none given'}" for side, settings in both]
    return Check(REACHED, "pass", f"code replaced by settings ran ({'; '.join(said)})")


def attention(reference: Ends, candidate: Ends) -> Iterator[str]:
    """What computed the attention of each side: a verdict may be about that."""
    for side, ends in (("reference", reference), ("candidate", candidate)):
        if ran := sentence(ends.ran):
            yield f"attention of the {side}: {ran}"


def _unmatched(pair: Ready, names: Sequence[str]) -> tuple[str, ...]:
    """The names that a port gave to values and that no module of the reference has, with the nearest; names that differ
    in their block alone are one, `blocks.*.norm`."""
    known = {*pair.modules, ATTENTION, *(f"{module}.{ATTENTION}" for module in pair.modules)}
    alone = [name for name in names if name and name not in known]
    if not alone or len(alone) == len(names):  # where none meets any, nothing is judged, as the note says
        return ()
    shown, kinds = list[str](), defaultdict[str, list[str]](list)
    for name in alone:
        kinds[any_block(name)].append(name)
    for own in kinds.values():
        found = [own[0], *difflib.get_close_matches(own[0], pair.modules, n=1, cutoff=0.3)]
        name, *near = map(any_block, found) if len(own) > 1 else found
        shown.append(f"'{name}'" + "".join(f" (nearest: '{x}')" for x in near))
    some = listed(shown, 6)
    text = f"{len(alone)} of the port's {len(names)} names meet no module of the reference: {some}"
    return (f"{text}; nothing was compared there",)


ENDS_ALONE = "only noise_pred and latents were compared"
"""Said where no module was."""


def _require_common(result: Result, pair: Ready, ends: Ends) -> Result:
    """A port's result, inconclusive where it passed although none of what it named is a site of the reference's."""
    if not pair.port or result.verdict != "pass" or any(map(_module_met, result.sites)):
        return result
    if pair.request.sites == "none":
        return result.noted(f"--sites none: {ENDS_ALONE}")
    if not any(pair.modules):
        return result.noted(f"the reference has no modules: {ENDS_ALONE}")
    if not ends.names:
        return result.noted(f"the port names no site: {ENDS_ALONE} (parity.port.tap names more)")
    alike = [name for name in pair.modules if name in ends.names]
    if alike and pair.plan().modules.isdisjoint(alike):
        how = "named by the port and not observed (--sites all observes them)"
        return result.noted(f"{listed(alike)} {how}: {ENDS_ALONE}")
    detail = (
        f"it has {', '.join(alike[:4])} and calls none of them (`forward` by its name?): call them as modules, or "
        "choose other sites (--sites all)"
        if alike
        else f"it names {', '.join(ends.names[:4])}, the reference {', '.join(pair.modules[:4])}; map its names with "
        "Port(rename=...)"
    )
    return result.unjudged("no_site", detail)


def _module_met(d: SiteDiff) -> bool:
    return d.key.module not in ("", LOOP) and all(d.dtypes) and bool(d.dtypes)


def truth_alone(pair: Ready) -> Truth:
    """The truth where no logic check has made it: the reference in float32, with its floors."""
    request, say = pair.request, pair.say
    say("loading the float32 truth")
    side = pair.reference(request.reference.neutral, pair.facts.reference, "float32")
    steps = counted(side.observe(_measured(pair)), "truth and its floors", request.steps, say)
    truth = Truth([*steps], side.ends())
    side.close()
    return truth


def _measured(pair: Ready) -> Plan:
    """What is observed of the reference with its floors, which start as the candidate does: each step by itself, or a
    stage outside the loop."""
    forced = pair.request.isolate == "steps" or pair.request.stage != LOOP_STAGE
    return Plan(sites=pair.plan(), floors=True, chip=pair.chip, forced=forced)


def precision(pair: Ready, truth: Truth, sink: Sink) -> Result:
    """Judge a pair as given, three ways."""
    check, request = Judged(pair, "precision", sink, truth.unlike), pair.request
    starts = {step.step: state_of(step, "before") for step in truth.steps}
    extra = _coarse(pair)
    references = [pair.sides.reference, *([] if extra is None else [extra])]
    steps = check.steps(truth.steps, references, starts.get if request.isolate == "steps" else None)
    begun = next(steps)
    for _ in steps:
        continue
    own, coarse = pair.sides.reference.ends(check.leave), Ends() if extra is None else extra.ends()
    beside = {"float32": truth.ends.own} | ({} if extra is None else {"coarse": coarse.own})
    if request.stage != LOOP_STAGE:
        beside = {**truth.ends.beside, **coarse.beside, **beside}
    ends = check.end(replace(own, runs={**own.runs, **beside}), references[-1])
    only = tuple(d for d in pair.differing if d.setting in NEUTRAL)

    def concluded() -> Result:
        return check.conclude(only).resting_on((*own.idle, *ends.idle))

    result = behind(concluded(), pair, references[-1], check.states, check.collected, concluded)
    if extra is not None:
        extra.close()
    return unobserved(result, pair, begun, "precision")


def _three_ways(true: StepRecords, references: Sequence[StepRecords], candidate: StepRecords) -> StepRecords:
    """The truth's numbers with the floors of this check, under the dtypes that the reference has as given.

    What overflows in the reference as given and in the candidate alike stands as the reference has it, without a floor:
    nobody can say how far apart the two may be.
    """
    floors = Floors(true.records, true.floors)
    for other in references:
        floors.add(other.records)
    given = {r.key: r for r in references[0].records}
    theirs = {r.key for r in candidate.records if r.nonfinite}
    over = {r.key for r in true.records if r.key in theirs and not r.nonfinite and given.get(r.key, r).nonfinite}
    records = (given[r.key] if r.key in over else replace(r, dtype=given.get(r.key, r).dtype) for r in true.records)
    return StepRecords(true.step, tuple(records), {k: floor for k, floor in floors.done().items() if k not in over})


def _coarse(pair: Ready) -> Side | None:
    """The reference in the candidate's working dtype, where that is the coarser one."""
    ours, theirs = pair.request.reference, pair.request.candidate
    if theirs.working_bits >= ours.working_bits:
        return None
    coarse = ours.with_({name: theirs[name] for name in ("dtype", "matmul_precision", "text.byt5_dtype")})
    # The candidate's own embeddings would hide what its encoders did; the reference has some in that dtype too.
    return pair.reference(coarse, pair.facts.candidate, "coarse")
