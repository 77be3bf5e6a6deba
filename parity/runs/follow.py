"""Closer looks at what was judged: the reference on the candidate's own values, module by module; into the block in
which a divergence starts; and at a port that passed, with nothing observed.

The first ends a check. Where all agreed it finds what is within the floors of the free run, which hold what one ulp of
an elementary function grows to; where something failed, what lies behind it (`parity.paths.follow`). No module of the
candidate is called: it works for ports. On a model of production size most values are too large to be held beside all
others: then the modules in doubt, or where something failed some blocks after the others, are held in a pass of their
own. Cost: five runs of a step of the reference, seven in 16 bits, and where something failed one more for each known
fault that is tried; then, and for each pass, a run of the candidate's too, which is compiled for it.

In the block (`descend`) both sides are observed module by module. Cost: one step of the reference with its floors, and
of the candidate, which is compiled for it.

A compiled port that passed is run once more with nothing observed (`unobserved`). What is observed of a compiled call
is an output of its program, and a compiler makes another program of that: one that it makes wrongly may be right with
every module's output kept. On a CPU, XLA compiles a tiny CogVideoX-1.5 through torchax so that noise_pred is 6 % off,
and with its blocks observed 4e-6. So the first step runs again from the reference's state with no site, and what the
loop takes from it is judged by the floors of the same step. It is done in the check of the pair as given, the last one:
that program is the user's. Parity's own candidate is not run again: its program is not. Cost: one compilation of the
candidate and one step, of a port that passed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import Births, excuses
from parity.compare.conclude import Collected, begun, conclude
from parity.compare.findings import without_trace
from parity.compare.followed import Local, doubtful, followed_errors, with_followed
from parity.compare.independent import OF_WEIGHTS, other_weights, settled
from parity.compare.judge import Judge, is_sharp
from parity.compare.left_out import OTHER_UNIT
from parity.compare.places import code_of, place_of, within
from parity.compare.preflight import factors_at
from parity.compare.result import Cause, Failed, Result, SiteDiff, measured
from parity.compare.sites import AllSites, introduced
from parity.errors import ParityError
from parity.hooks.sites import EVERYTHING, OUTPUTS, WHOLE, Held, SitePlan, block_of
from parity.paths.plan import DOUBT, LEFT_ALONE, TURNED, UNREAD, Array, Plan, Side, State, state_of
from parity.paths.worker.process import RemoteError
from parity.records import LOOP, LOOP_STAGE, Key, Record, StepRecords, above, any_block
from parity.runs.request import Request
from parity.runs.sides import Ready, Sink
from parity.settings import LAYOUT, remedy
from parity.transforms import OTHERWISE

ROOM, PASSES = 1 << 32, 4
"""Bytes that the candidate holds in a pass of some modules alone, and passes at most: each is a compilation."""


def follows(request: Request) -> bool:
    """Whether the reference follows: no sites in particular were asked for."""
    return request.sites in ("blocks", "all")


def holding(plan: SitePlan, request: Request) -> SitePlan:
    """The candidate's plan, which holds outputs where the reference follows them."""
    return replace(plan, whole=OUTPUTS) if follows(request) else plan


def without_held(step: StepRecords) -> tuple[StepRecords, dict[Key, Array]]:
    """A candidate's step without the values that were held, and these as `Plan.follow` has them; an empty array of
    bools for None, of floats for what could not be handed out."""
    records, held = [], dict[Key, Array]()
    for r in step.records:
        if not r.key.port.startswith(f"{WHOLE}."):
            records.append(r)
            continue
        site = f"{r.key.module}:{r.key.port.removeprefix(f'{WHOLE}.')}"
        key = replace(r.key, stage=LOOP_STAGE, step=0, site=site)
        if r.kind == "tensor":
            held[key] = Array(np.asarray(r.value), r.dtype)
        elif r.kind == "none":
            held[key] = Array(np.zeros(0, bool), "bool")
        else:
            first, _, call = str(r.value).rpartition(" ")
            same = replace(key, site=first, call=int(call or 0))
            held[key] = held.get(same, Array(np.zeros(0, np.float32), "float32"))
    return (replace(step, records=tuple(records)) if held else step), held


@dataclass(frozen=True, slots=True)
class At:
    """A step, and what the reference started it from."""

    step: int
    state: State

    def held(self, pair: Ready, what: Held) -> dict[Key, Array]:
        """What the candidate hands out of the step."""
        plan = Plan(sites=SitePlan("none", (), frozenset(), what))
        steps = pair.sides.candidate.observe(plan, start=self.state, steps=(self.step, self.step + 1))
        return without_held(next(steps))[1]

    def followed(
        self,
        pair: Ready,
        side: Side,
        held: Mapping[Key, Array],
        *,
        far: bool,
        own_order: bool = False,
        weighed: Collection[str] = (),
    ) -> StepRecords:
        """A pair's reference `side`, which follows these values; see `parity.paths.plan.Plan`."""
        factors = pair.laid_out if far else {}
        at = {module: tuple(factors_at(module, factors)) for module in dict.fromkeys(key.module for key in held)}
        lies = {module: found for module, found in at.items() if found}
        plan = Plan(
            follow=held,
            far=far,
            lies=lies,
            own_order=own_order,
            weighed=frozenset(weighed),
            floors=True,
            chip=pair.chip,
        )
        return next(side.observe(plan, start=self.state, steps=(self.step, self.step + 1)))


def behind(
    result: Result,
    pair: Ready,
    side: Side,
    states: Mapping[int, State],
    collected: Collected,
    concluded: Callable[[], Result],
) -> Result:
    """A failing result with all that differs by itself in the step of its origin, also behind the first divergence.

    Args:
        side: see `Following.settle`. states: what the reference started each step from. collected: what was judged,
            which is concluded anew where all that failed is another thing by its name.
    """
    origin = result.origin
    if origin is None or not follows(pair.request):
        return result
    at = At(origin.key.step, states[origin.key.step])
    of_step = [d for d in result.sites if d.key.step == at.step]
    if not any(d.verdict == "fail" and d.key.stage == origin.key.stage and d.key.module != LOOP for d in of_step):
        return result
    broken = [d for d in (*of_step, *result.closer) if d.nonfinite[1] > d.nonfinite[0]]
    here = [d for d in broken if d.key == origin.key]
    ends = any(d.key.module == LOOP for d in broken)
    if any(ends or d.nonfinite[1] > math.prod(d.shapes[1]) for d in here):
        return result  # nothing behind it is finite either
    pair.say("the reference on the candidate's own values, behind the first divergence")
    own_order = pair.port or any(d.setting in LAYOUT for d in pair.differing)
    found: list[StepRecords] = []
    weighed = {name.rpartition(".")[0] for check in other_weights(settled(result)) for name in check.at}

    def look(what: Held) -> Mapping[Key, Array]:
        held = _as_paired(at.held(pair, what), [*of_step, *result.closer])
        found.append(at.followed(pair, side, held, far=True, own_order=own_order, weighed=weighed))
        return held

    passes: list[list[str]] = []
    try:
        passes = _passes(of_step, look(EVERYTHING), pair.modules)
        for modules in passes[:PASSES]:
            pair.say(f"the reference on the candidate's own values, {modules[0]} to {modules[-1]}")
            look(Held(EVERYTHING.ports, frozenset(modules), ROOM, ROOM))
    except LOST as error:
        result = result.noted(_lost(error))
    known = {key: local for step in found for key, local in followed_errors(step).items()}
    result = replace(result, shown=tuple(sorted({*result.shown, *_agreeing(found, known)})))
    rest = [module for modules in passes[PASSES:] for module in modules]
    if rest:
        result = result.noted(f"too large to be looked at by themselves: {listed(rest)}")
    result = result.noted(*_unjudged(of_step, found, known))
    result = _by_weights(result, found, weighed)
    sites, closer = (_left_out(each, at.step, found, known) for each in (result.sites, result.closer))
    if not any(local.beyond for local in known.values()):
        if sites is result.sites or born(sites):
            return result
        collected.sites = AllSites([sites])
        return concluded()
    result = replace(result, sites=_settled(sites, at.step, known, pair), closer=tuple(closer))
    judged = [*(key for key, local in known.items() if local.beyond), *(d.key for d in introduced(result))]
    result = result.noted(*_in_doubt(found, judged, weighed))
    return _placed(replace(result, causes=(*result.causes, *causes_of_followed(result, known))), origin.key, known)


def _agreeing(found: Iterable[StepRecords], known: Mapping[Key, Local]) -> set[str]:
    """The modules that agree by themselves, with all inside them, within floors in which no other weights hide."""
    outputs = [(key.module, local) for key, local in known.items() if not key.is_input]
    off = {module for module, local in outputs if local.beyond}
    beyond = (key for key, local in known.items() if local.beyond)
    off |= {outer for key in (*beyond, *(r.key for r in _marked(found, DOUBT))) for outer in above(key.module)}
    return {module for module, local in outputs if is_sharp(local.distance.floor, ())} - off


def _by_weights(result: Result, found: Iterable[StepRecords], weighed: set[str]) -> Result:
    """A result that says of what differs beside what it is made of: values of modules whose weights differ."""
    sites = {r.key.site for r in _marked(found, DOUBT) if weighed.issuperset(str(r.value).split(", "))}

    def one(d: SiteDiff) -> SiteDiff:
        return replace(d, note=OF_WEIGHTS) if d.introduced and d.key.site in sites else d

    return replace(result, sites=[*map(one, result.sites)], closer=(*map(one, result.closer),)) if sites else result


def _in_doubt(found: Iterable[StepRecords], known: Iterable[Key], weighed: Collection[str]) -> Iterator[str]:
    """A sentence on what differs and may do so by what differs before it, and what would tell.

    Args:
        known: what differs by itself. weighed: modules whose weights differ, which is why.
    """
    places, shared = dict[str, None](), dict[str, None]()
    judged = {any_block(key.site) for key in known}
    for r in _marked(found, DOUBT):
        by_weights = any(within(module, r.key.module) for module in weighed)
        if (site := any_block(r.key.site)) not in judged and not by_weights:
            places[place_of(site)] = None
            shared |= dict.fromkeys(str(r.value).split(", "))
    if places:
        outer = [name for name in shared if not any(name.startswith(f"{other}.") for other in shared if other)]
        of = ", ".join(name or "the model's own code" for name in outer[:MANY])
        also = f"also {listed([*places], MANY)} differ{'s' * (len(places) == 1)}, perhaps by what differs before"
        yield f"{also}: of values inside {of} that the candidate does not hand out; naming these (a tap) tells"


MANY = 4
"""Names in a sentence."""


def listed(names: Sequence[str], most: int = 1) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _unjudged(sites: Iterable[SiteDiff], found: Sequence[StepRecords], known: Collection[Key]) -> Iterator[str]:
    """A sentence on modules that differ and of which following says nothing, as what they are given does not line up.

    Args:
        sites: of the step. known: what is judged.
    """
    left = {r.key.site for r in _marked(found, LEFT_ALONE)} - {key.site for key in known}
    names = dict.fromkeys(d.key.module for d in sites if d.verdict == "fail" and d.key.site in left)
    if names:
        yield f"not judged by itself, as what it is given does not line up, or is not finite: {listed([*names])}"


LOST = (ParityError, RemoteError)
"""What a side may raise whose own code is given what it was not written for."""


def _lost(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return f"the reference could not be run on the candidate's own values: {first}"


def _as_paired(held: Mapping[Key, Array], sites: Sequence[SiteDiff]) -> dict[Key, Array]:
    """What the candidate hands out under the reference's names, in whichever block: one that Flax scans gives
    `(x, None)`, and its layers call what they are given `inputs`. What may be another thing keeps its own, and the
    reference keeps a timestep that the candidate takes in another unit."""
    renamed = [d for d in sites if d.called]
    ports = {(any_block(d.key.module), d.called): d.key.port for d in renamed if d.verdict != "not compared"}
    loose = {(d.key.module, d.called) for d in renamed if d.verdict == "not compared"}

    def named(key: Key) -> Key:
        port = ports.get((any_block(key.module), key.port), key.port)
        other = replace(key, site=f"{key.module}:{port}")
        return key if other in held or (key.module, key.port) in loose else other

    timed = {(d.key.branch, d.key.site) for d in sites if d.note == OTHER_UNIT}
    return {named(key): x for key, x in held.items() if (key.branch, key.site) not in timed}


def _passes(sites: Sequence[SiteDiff], held: Mapping[Key, Array], modules: Sequence[str]) -> list[list[str]]:
    """The modules beyond their limits of which something could not be held beside all others, as many at a time as fit.

    Args:
        sites: of a step, in execution order. modules: that can be held.
    """
    large = {key.module for key, x in held.items() if _is_missing(x)}
    failing = {d.key.module for d in sites if d.verdict == "fail"} & large & set(modules)
    sizes = Counter[str]()
    for d in sites:
        if d.key.module in failing and not d.key.is_apart:
            sizes[d.key.module] += 4 * math.prod(d.shapes[0])
    passes: list[list[str]] = []
    room = 0
    for module, size in sizes.items():
        if not passes or size > room:
            passes.append([])
            room = ROOM
        passes[-1].append(module)
        room -= size
    return passes


def _is_missing(x: Array) -> bool:
    """Whether a value could not be handed out, or its module was not asked for."""
    return x.values.size == 0 and x.values.dtype != bool


def _placed(result: Result, origin: Key, known: Collection[Key]) -> Result:
    """A result whose origin following has shown to be propagated, or to come after another divergence, with the first
    that stands.

    Args:
        known: the values that were followed, in execution order.
    """
    of_step = (d for d in result.sites if d.key.step == origin.step)
    failing = [d for d in of_step if d.verdict == "fail" and d.key.module != LOOP]
    introduced = {d.key: d for d in failing if d.introduced}
    left = any(d.key == origin and d.verdict == "not compared" for d in (*result.sites, *result.closer))
    judged = left or origin in known or any(d.key == origin for d in failing)
    # Beside one that stands, what is not followed has no place in the order of what is.
    order = known if origin in known and origin in introduced else introduced
    first = next((introduced[key] for key in order if key in introduced), None)
    if not judged or first is None or first.key == origin:
        return result
    if not left and _is_closer(result, origin, first.key, known):
        return result
    return begun(result, first, result.sites)


def _is_closer(result: Result, origin: Key, first: Key, known: Collection[Key]) -> bool:
    """Whether the closer look has seen the divergence begin before what following saw first, at a value that is not
    followed, as what an attention is given."""
    looked = [d.key for d in result.closer if d.key == origin or d.key.module == first.module]
    return origin not in known and origin in looked[:-1]


def causes_of_followed(result: Result, known: Mapping[Key, Local]) -> Iterator[Cause]:
    """What was done to the values that differ by themselves, where that is known: once for each difference."""
    said = {code_of(cause.at) for cause in result.causes if cause.at}
    for key, local in known.items():
        code = key.site if OTHERWISE in local.note else code_of(key.site)
        if local.beyond and local.note and code not in said:
            said.add(code)
            far = f"made of the candidate's own values before it; relative L2 {local.distance.rel_l2:.2e}"
            lost = "without its mask" in local.note or "zero where its mask" in local.note
            fix = remedy("attention.mask") if lost else ""
            text, value = f"{place_of(key.site)}: {local.note}", local.distance.rel_l2
            yield measured(text, value=value, detail=far, fix=fix, at=key.site)


def _left_out(
    sites: Sequence[SiteDiff], step: int, found: Sequence[StepRecords], known: Collection[Key]
) -> Sequence[SiteDiff]:
    """All judged sites, those not compared that are another thing by the same name, and of a step those that have the
    reference's values in another order with others beside them, where the module around them is judged."""
    judged = {key.module for key in known if not key.is_input}
    turned = {r.key.site for r in _marked(found, TURNED) if not judged.isdisjoint(above(r.key.module))}
    unread = {r.key.site for r in _marked(found, UNREAD)}

    def one(d: SiteDiff) -> SiteDiff:
        if d.verdict != "fail" or not (d.key.site in unread or (d.key.step == step and d.key.site in turned)):
            return d
        return replace(d, verdict="not compared", birth=None, note=IN_ORDER if d.key.site in turned else NOT_READ)

    return [one(d) for d in sites] if unread or turned else sites


IN_ORDER = "its values stand in another order than the reference's, as its neighbours' do"
NOT_READ = "another thing by that name: what comes next is made of the reference's value, not of it"
"""The note of a value that the candidate has otherwise, and its own code goes on without."""


def _marked(found: Iterable[StepRecords], mark: str) -> Iterator[Record]:
    """What following has put behind sites under a mark, with the keys of these sites."""
    marked = (r for step in found for r in step.records if r.key.port.endswith(f"@{mark}"))
    return (replace(r, key=replace(r.key, site=r.key.site.removesuffix(f"@{mark}"))) for r in marked)


def _settled(sites: Sequence[SiteDiff], step: int, known: Mapping[Key, Local], pair: Ready) -> list[SiteDiff]:
    """All judged sites, those of a step with what following says of them."""
    of_step = [d for d in sites if d.key.step == step]
    judged = with_followed(of_step, known, excuses(pair.differing))
    first = next((i for i, d in enumerate(sites) if d.key.step == step), 0)
    rest = [d for d in sites if d.key.step != step]
    return [*rest[:first], *judged, *rest[first:]]


def born(sites: Sequence[SiteDiff]) -> bool:
    """Whether a divergence starts at any of these sites, or reached what the loop computes: growth alone decides
    nothing."""
    return any(d.verdict == "fail" and (d.introduced or d.key.module == LOOP) for d in sites)


@dataclass
class Following:
    """What a run leaves to follow where all of it agreed: the candidate's outputs of the first step, and the first step
    whose sites leave doubt about modules that are not among them.

    Attributes:
        pair: whose run. at, outputs: the first step. doubt: the other, and the modules in execution order.
        known: what was found in the step in which an output differs by itself, once it was looked for; empty for none.
        lost: why it could not be looked for; empty where it was.
    """

    pair: Ready
    at: At | None = None
    outputs: Mapping[Key, Array] = field(default_factory=dict)
    doubt: tuple[At, Sequence[str]] | None = None
    known: Mapping[Key, Local] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def add(self, reference: StepRecords, outputs: Mapping[Key, Array], sites: Sequence[SiteDiff]) -> None:
        """Take in a judged step; `outputs`: the candidate's that were held."""
        at = At(reference.step, state_of(reference, "before"))
        if self.at is None and outputs:
            self.at, self.outputs = at, _as_paired(outputs, sites)
        # A feature cache calls other modules by design.
        cached = any(d.setting == "cache" for d in self.pair.differing)
        if self.at is None or self.doubt is not None or cached or born(sites):
            return
        held = {key.module for key, x in outputs.items() if not _is_missing(x)}
        modules = [m for m in doubtful(sites, self.pair.modules) if self.at != at or m not in held]
        if modules:
            self.doubt = at, modules

    def settle(self, side: Side, sites: Sequence[SiteDiff]) -> Sequence[SiteDiff]:
        """All judged sites, with those that differ by themselves where none was beyond its limits.

        Args:
            side: the reference, or the one in the candidate's working dtype.
        """
        if self.at is None or (born(sites) and not without_trace(sites)):
            return sites
        self.pair.say("the reference on the candidate's own values")
        try:
            if born(sites):
                own = self.at.followed(self.pair, side, self.outputs, far=True, own_order=self.pair.port)
                sites = _left_out(sites, self.at.step, [own], ())
                if born(sites):
                    return sites
            sites = self._look(side, self.at, self.outputs, sites)
            if not self.known and self.doubt is not None:
                at, modules = self.doubt
                self.pair.say(f"the reference on the candidate's own values, {', '.join(modules)}")
                some = Held(EVERYTHING.ports, frozenset(modules), ROOM, ROOM)
                sites = self._look(side, at, at.held(self.pair, some), sites)
        except LOST as error:
            self.lost = (_lost(error),)
        return sites

    def _look(self, side: Side, at: At, held: Mapping[Key, Array], sites: Sequence[SiteDiff]) -> Sequence[SiteDiff]:
        known = followed_errors(at.followed(self.pair, side, held, far=False))
        if any(local.beyond for local in known.values()):
            self.known = known
        return _settled(sites, at.step, known, self.pair)


def descend(result: Result, origin: Key, pair: Ready, state: State, sink: Sink, unseen: Collection[str]) -> Result:
    """Observe the block of a failing result's origin module by module, and place the origin there.

    Args:
        state: of the reference, before the step of the origin. sink: takes what is observed.
        unseen: modules that a port named and that were not compared so far: the origin may lie in them as well.
    """
    block = _block_of(origin.module, pair.facts.reference.trunk)
    inside = {origin.module, *unseen} if block is None else {m for m in pair.modules if within(m, block)}
    if len(inside) < 2:
        return result  # nothing that was not observed
    plan, step = SitePlan("all", (), frozenset(inside - {LOOP})), origin.step
    pair.say(f"verdict: {result.verdict} ({result.failed}), in {block or 'the model'} at step {step}; looking closer")
    steps = (step, step + 1)
    first = pair.sides.reference.observe(
        Plan(sites=plan, floors=True, chip=pair.chip, forced=True), start=state, steps=steps
    )
    second = pair.sides.candidate.observe(Plan(sites=plan), start=state, steps=steps)
    ours, theirs = next(first), next(second)
    sink.closer(ours, theirs)
    judge = Judge(Births(excuses(pair.differing)), port=pair.port, laid_out=pair.laid_out)
    sites = tuple(d for d in judge.step(ours, theirs) if d.key.module != LOOP)
    at = next((d for d in sites if d.verdict == "fail" and d.introduced and d.key.branch == origin.branch), None)
    of_step = (d for d in result.sites if d.key.step == step)
    before = itertools.takewhile(lambda d: not within(d.key.module, block or ""), of_step)
    result = replace(result, closer=sites)
    if at is None:
        return result
    handed = tuple(replace(d, birth="propagated") if _is_predicted(d, step) else d for d in result.sites)
    return begun(replace(result, sites=handed), at, (*before, *sites))


def _is_predicted(d: SiteDiff, step: int) -> bool:
    """Whether it is what the model predicts in a branch, which is no other code's than the model's."""
    return d.key.module == LOOP and bool(d.key.branch) and d.key.step == step and d.introduced


def _block_of(module: str, trunk: str) -> str | None:
    """The block (or child of the module that holds the blocks) in which a module lies; None for no module.

    Args:
        trunk: the child of the top module that holds its blocks; empty where the top module does.
    """
    before = f"{trunk}." if trunk else ""
    if module in ("", LOOP) or not module.startswith(before):  # the stage's own ports
        return None
    inside = module.removeprefix(before)
    return before + (block_of(inside) or inside.split(".")[0])


NOTE = (
    "with its modules observed the port agrees; compiled with nothing observed it is another program, and that one "
    "differs: --candidate jit=false runs the port as its code says"
)


def unobserved(result: Result, pair: Ready, truth: StepRecords, failing: Failed = "logic") -> Result:
    """A passing result, failed where the port's program gives something else when nothing is observed.

    Args:
        truth: the reference's first step, with the floors of the check that `failing` names.
    """
    compiled = pair.port and pair.facts.candidate.compiled
    if result.verdict != "pass" or pair.request.sites == "none" or not compiled:
        return result
    pair.say("the port's program with nothing observed", truth.step, truth.step + 1)
    start = state_of(truth, "before")
    steps = list(pair.sides.candidate.observe(Plan(), start=start, steps=(truth.step, truth.step + 1)))
    ours, theirs = (step.where(lambda key: key.module == LOOP) for step in (truth, steps[0]))
    judge, collected = Judge(Births(excuses(pair.differing)), port=True), Collected()
    collected.add(ours, theirs, judge.step(ours, theirs))
    found = conclude(
        collected, model=result.model, differing=result.differing_settings, preflight=result.preflight, failing=failing
    )
    if found.verdict != "fail":
        return result
    notes = (*result.notes, *found.notes)
    return replace(found, sites=(*result.sites, *found.sites), notes=notes).noted(NOTE)
