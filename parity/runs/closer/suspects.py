"""Closer looks at a pair: modules run alone on the reference's inputs, the descent into a suspect, its operations.

A step of the reference is run again from its own state, and each call of the modules in question is handed to the
candidate, whose module of that name is run on the same inputs: its local error, against local floors. The block in
which a divergence starts is observed module by module on both sides; the module in which it starts, operation by
operation. Cost: one step of the reference with its floors for each look; for each module a compilation of the
candidate's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parity.compare.births import excuses
from parity.compare.conclude import divergence
from parity.compare.judge import Judge
from parity.compare.local import (
    BORN,
    Local,
    believed,
    contradicted,
    doubtful,
    first_beyond,
    first_within,
    local_errors,
    suspect,
    with_local,
)
from parity.compare.operations import Parting, Reduced, first_parting
from parity.compare.result import UNKNOWN, Birth, Origin, Result, SiteDiff, SiteVerdict
from parity.errors import ParityError
from parity.hooks.sites import SitePlan, block_of, children_of
from parity.paths.plan import DEFAULT_KINDS, OTHERS, CallRecords, ModuleCall, Plan, State
from parity.paths.worker.process import RemoteError
from parity.records import ATTENTION, LOOP, Key, StepRecords
from parity.runs.request import Say
from parity.runs.sides import Ready
from parity.runs.sink import Sink
from parity.runs.stream import state_of


@dataclass
class LocalPass:
    """Runs the modules of a pair one at a time.

    Attributes:
        pair: whose. plan: whose modules are run. known: the local errors of the steps so far, in execution order.
    """

    pair: Ready
    plan: SitePlan
    say: Say
    known: dict[Key, Local] = field(default_factory=dict)
    _failed: tuple[int, State, StepRecords] | None = None

    def step(
        self,
        step: int,
        state: State,
        sites: Sequence[SiteDiff],
        candidate: StepRecords,
        only: Sequence[str] | None = None,
    ) -> tuple[SiteDiff, ...]:
        """The judged sites of a step with their local errors.

        Args:
            state: what the reference started the step from. candidate: its records, which have its dtypes.
            only: the modules that are run; by default those of the plan.
        """
        targets = only or tuple(m for m in self.pair.modules if m in self.plan.modules)
        local = self.look(step, state, targets, self._dtypes(candidate), sites)
        self.known.update(local)
        judged = with_local(sites, local, excuses(self.pair.differing))
        if self._failed is None and any(d.verdict == "fail" and d.birth in BORN for d in judged):
            self._failed = step, state, candidate
        return judged

    def look(
        self,
        step: int,
        state: State,
        targets: Sequence[str],
        dtypes: Mapping[str, str],
        sites: Sequence[SiteDiff],
    ) -> dict[Key, Local]:
        """The local errors of these modules in one step, in execution order.

        Args:
            dtypes: see `Plan`. sites: of the run; where they contradict a module compiled alone, it is run eagerly too.
        """
        provenance = self.pair.facts.candidate.provenance
        theirs = {} if provenance is None else provenance.modules
        both = tuple(t for t in targets if t in theirs)
        if not both:
            return {}
        plan = Plan(calls=both, dtypes=dtypes)
        local: dict[Key, Local] = {}
        for truth in self.pair.sides.reference.observe(plan, start=state, steps=(step, step + 1)):
            assert isinstance(truth, CallRecords)
            self.say(f"modules on the reference's inputs ({truth.call.module})")
            found = local_errors(truth, self.pair.sides.candidate.call(truth.call, Plan()).records)
            if against := contradicted(sites, found):
                eager = self.pair.sides.candidate.call(truth.call, Plan(eager=True))
                found = believed(found, against, local_errors(truth, eager.records))
            local.update(found)
        return local

    def descend(self, result: Result) -> Result:
        """Refine an origin that lies in a module with a local error: its children are run, then the failing child's."""
        origin = result.origin
        place = None if origin is None else suspect(origin.key, self.known)
        key = None if origin is None or place is None else first_beyond(self.known, (place,), origin.key)
        if origin is None or key is None or self._failed is None or self._failed[0] != key.step:
            return result
        step, state, candidate = self._failed
        known, closer = dict(self.known), list[SiteDiff]()
        while children := children_of(key.module, self.pair.modules):
            inside = self.known
            if not self.plan.modules.issuperset(children):
                self.say(f"looking closer at {key.module}")
                inside = self.look(step, state, children, self._dtypes(candidate), result.sites)
                closer += [_alone(k, local) for k, local in inside.items()]
                known.update(inside)
            # A child is born before its parent ends: the first in execution order that differs on this branch.
            below = first_beyond(inside, children, key)
            if below is None:
                break
            key = below
        born = first_within((*result.sites, *result.closer), key, known) or _alone(key, known[key])
        result = replace(result, closer=(*result.closer, *closer))
        if born.key == origin.key:
            return result
        birth = born.birth or "module"
        seen = (*result.sites, *result.closer)
        why = divergence(born, birth, outputs_match=result.why.outputs_match, sites=seen)
        return replace(result, origin=Origin(born.key, birth), why=why)

    def _dtypes(self, candidate: StepRecords) -> dict[str, str]:
        """The dtypes of the candidate's inputs, where it works in another than the reference."""
        facts = self.pair.facts
        if facts.reference.dtype == facts.candidate.dtype:
            return {}
        return {r.key.site.split("@")[0]: r.dtype for r in candidate.records if r.dtype}


def _alone(key: Key, local: Local) -> SiteDiff:
    """A site that was only run on the reference's inputs."""
    verdict: SiteVerdict = "fail" if local.beyond else "pass"
    birth: Birth | None = "module" if local.beyond else None
    return SiteDiff(key, UNKNOWN, local=local.distance, birth=birth, verdict=verdict, note=local.note)


@dataclass(frozen=True, slots=True)
class SecondLook:
    """The first step whose sites agree and leave doubt: modules near their limits though their inputs are not.

    Attributes:
        step: its index. state: what the reference started it from. candidate: the candidate's records of it.
        modules: those in question, in execution order.
    """

    step: int
    state: State
    candidate: StepRecords
    modules: tuple[str, ...]

    @classmethod
    def of(
        cls, pair: Ready, reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]
    ) -> SecondLook | None:
        """What a judged step leaves open; None for nothing, or where the sides call other modules by design."""
        if pair.port or any(d.setting == "cache" for d in pair.differing):
            return None
        modules = doubtful(sites, pair.modules)
        return cls(reference.step, state_of(reference, "before"), candidate, modules) if modules else None

    def without(self, modules: Collection[str]) -> SecondLook | None:
        """What is left when these were looked at; None for nothing."""
        rest = tuple(m for m in self.modules if m not in modules)
        return replace(self, modules=rest) if rest else None

    def settle(self, sites: Sequence[SiteDiff], local: LocalPass) -> list[SiteDiff]:
        """All judged sites, those of the modules in question with their local errors, which decide."""
        of_step = [d for d in sites if d.key.step == self.step]
        judged = local.step(self.step, self.state, of_step, self.candidate, self.modules)
        known = {d.key: d for d in judged}
        return [known.get(d.key, d) for d in sites]


def descend(
    result: Result, pair: Ready, state: State, say: Say, sink: Sink, unseen: Collection[str] = frozenset()
) -> Result:
    """Observe the block of a failing result's origin module by module, and place the origin there.

    Args:
        state: of the reference, before the step of the origin. sink: takes what is observed.
        unseen: modules that a port named and that were not compared so far: the origin may lie in them as well.
    """
    block = block_of_origin(result, pair.facts.reference.trunk)
    plan = _inside(block, unseen, result, pair.modules)
    if plan is None or result.origin is None:
        return result
    step = result.origin.key.step
    say(f"verdict: {result.verdict} ({result.failed}), in {block or 'the model'} at step {step}; looking closer")
    steps = (step, step + 1)
    first = pair.sides.reference.observe(Plan(sites=plan, floors=DEFAULT_KINDS, forced=True), start=state, steps=steps)
    second = pair.sides.candidate.observe(Plan(sites=plan), start=state, steps=steps)
    ours, theirs = next(first), next(second)
    sink.closer(ours, theirs)
    judge = Judge(excuses(pair.differing), port=pair.port)
    sites = tuple(d for d in judge.step(ours, theirs) if d.key.module != LOOP)
    born = ("module", "input")
    branch = result.origin.key.branch
    at = next((d for d in sites if d.verdict == "fail" and d.birth in born and d.key.branch == branch), None)
    result = replace(result, closer=sites)
    if at is None:
        return result
    birth = at.birth or "module"
    why = divergence(at, birth, outputs_match=result.why.outputs_match, sites=sites)
    return replace(result, origin=Origin(at.key, birth), why=why)


def block_of_origin(result: Result, trunk: str = "") -> str | None:
    """The block (or child of the module that holds the blocks) in which the origin lies; None for no module.

    Args:
        trunk: the child of the top module that holds its blocks; empty where the top module does.
    """
    if result.failed != "logic" or result.origin is None or result.origin.key.module in ("", LOOP):
        return None
    before = f"{trunk}." if trunk else ""
    inside = result.origin.key.module.removeprefix(before)
    if before and inside == result.origin.key.module:
        return None  # the stage's own ports
    return before + (block_of(inside) or inside.split(".")[0])


def _inside(block: str | None, unseen: Collection[str], result: Result, modules: Sequence[str]) -> SitePlan | None:
    """What a descent observes: all of the block; without one, what a port named inside blocks that it did not name.
    None for nothing new."""
    if block is not None:
        return children_plan(block, modules)
    origin = result.origin
    if not unseen or result.failed != "logic" or origin is None or origin.key.module == LOOP:
        return None
    return SitePlan("all", (), frozenset({origin.key.module, *unseen}))


def children_plan(block: str, modules: Sequence[str]) -> SitePlan | None:
    """A plan of a module and all below it; None where there is nothing below."""
    inside = [m for m in modules if m == block or m.startswith(block + ".")]
    return SitePlan("all", (), frozenset(inside)) if len(inside) > 1 else None


def operations(result: Result, pair: Ready, state: State, say: Say) -> Result:
    """Add a note that names the first operation in which the origin's module parts; the result as it is where its
    origin is no module of its own, or where the operations cannot be compared.

    Args:
        state: what the reference started the origin's step from.
    """
    origin = result.origin
    if origin is None or origin.birth != "module" or origin.key.module in ("", LOOP):
        return result
    module = origin.key.module
    if module.rpartition(".")[2] == ATTENTION or not pair.settings.reference.exact:
        return result
    say(f"operations of {module}")
    call = _call_of(pair, origin.key, state)
    if call is None:
        return result
    plan = Plan(operations=True)
    try:
        runs = _runs(pair.sides.reference.call(call, plan))
        theirs = _runs(pair.sides.candidate.call(call, plan)).get("", [])
    except (ParityError, RemoteError) as error:  # a side's own code, run in a way it was not written for
        note = f"the operations of {module} could not be compared: {error}"
        return result.noted(note.splitlines()[0])
    ours = runs.get("", [])
    parting = first_parting(ours, [runs.get(name, []) for name in OTHERS], theirs) if ours else None
    if parting is None:
        note = f"{module}: run eagerly, each of its {len(ours)} operations agrees: it is how they are compiled"
    else:
        note = _operation_note(module, parting, len(ours))
    return result.noted(note)


def _call_of(pair: Ready, key: Key, state: State) -> ModuleCall | None:
    """The reference's call of a site, where the candidate has its module too."""
    provenance = pair.facts.candidate.provenance
    if provenance is None or key.module not in provenance.modules:
        return None
    plan = Plan(calls=(key.module,))
    for records in pair.sides.reference.observe(plan, start=state, steps=(key.step, key.step + 1)):
        assert isinstance(records, CallRecords)
        if records.call.number == key.call and key.branch in records.call.branches:
            return records.call
    return None


def _runs(step: StepRecords) -> dict[str, list[Reduced]]:
    """The operations of each run of a call, in order."""
    runs: dict[str, list[Reduced]] = {}
    for r in step.records:
        assert r.sketch is not None
        name = r.key.port.split(".", 2)[2]
        runs.setdefault(r.key.branch, []).append(Reduced(name, r.shape, r.sketch))
    return runs


def _operation_note(module: str, parting: Parting, count: int) -> str:
    where = f"operation {parting.index + 1} of {count} of {module}, {parting.name} {list(parting.shape)}"
    if parting.other or math.isnan(parting.ratio):
        return f"{where}: the candidate calls {parting.other} there"
    return f"{where}, is the first to differ: relative L2 {parting.rel_l2:.2e}, {parting.ratio:.0f} x its floor"
