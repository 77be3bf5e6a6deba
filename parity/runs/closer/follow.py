"""The look that ends a check: the reference on the candidate's own values, module by module.

Where all agreed it finds what is within the floors of the free run, which hold what one ulp of an elementary function
grows to; where something failed, what lies behind it (`parity.paths.closer.follow`). No module of the candidate is
called: it works for ports. Cost: five runs of a step of the reference, seven in 16 bits; where something failed, a run
of the candidate's too, which is compiled for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import excuses
from parity.compare.conclude import divergence
from parity.compare.follow import followed_errors, with_followed
from parity.compare.independent import code_of, place_of
from parity.compare.local import BORN, Local
from parity.compare.result import Cause, Origin, Result, SiteDiff, Witness
from parity.compare.sites import FAILED, Sites, among
from parity.hooks.sites import EVERYTHING, OUTPUTS, WHOLE, SitePlan
from parity.paths.plan import DEFAULT_KINDS, Array, Plan, State, name_of
from parity.paths.side import Side
from parity.records import LOOP, Key, StepRecords
from parity.runs.request import Request, Say
from parity.runs.sides import Ready
from parity.runs.stream import state_of
from parity.settings import LAYOUT


def follows(request: Request) -> bool:
    """Whether the reference follows: no sites in particular were asked for, and no module is run alone."""
    return request.sites in ("blocks", "all") and request.isolate != "modules"


def holding(plan: SitePlan, request: Request) -> SitePlan:
    """The candidate's plan, which holds outputs where the reference follows them."""
    return replace(plan, whole=OUTPUTS) if follows(request) else plan


def without_held(step: StepRecords) -> tuple[StepRecords, dict[str, Array]]:
    """A candidate's step without the values that were held, and these by `name_of`; an empty array of bools for None,
    of floats for what could not be handed out."""
    records, held = [], dict[str, Array]()
    for r in step.records:
        if not r.key.port.startswith(f"{WHOLE}."):
            records.append(r)
            continue
        name = name_of(replace(r.key, step=0, site=f"{r.key.module}:{r.key.port.removeprefix(f'{WHOLE}.')}"))
        if r.kind == "tensor":
            held[name] = Array(np.asarray(r.value), r.dtype)
        elif r.kind == "none":
            held[name] = Array(np.zeros(0, bool), "bool")
        else:
            held[name] = held.get(f"{r.key.branch} {r.value}", Array(np.zeros(0, np.float32), "float32"))
    return (replace(step, records=tuple(records)) if held else step), held


def behind(result: Result, pair: Ready, side: Side, state: State, request: Request, say: Say) -> Result:
    """A failing result with all that differs by itself in the step of its origin, also behind the first divergence.

    Args:
        side: see `Following.settle`. state: what the reference started that step from.
    """
    origin = result.origin
    if origin is None or not follows(request):
        return result
    step = origin.key.step
    of_step = [d for d in result.sites if d.key.step == step]
    if not any(d.verdict == "fail" and d.key.stage == origin.key.stage and d.key.module != LOOP for d in of_step):
        return result
    say("the reference on the candidate's own values, behind the first divergence")
    steps = (step, step + 1)
    everything = Plan(sites=SitePlan("none", (), frozenset(), EVERYTHING))
    held = without_held(next(pair.sides.candidate.observe(everything, start=state, steps=steps)))[1]
    own_order = pair.port or any(d.setting in LAYOUT for d in pair.differing)
    plan = Plan(follow=held, far=True, own_order=own_order, floors=DEFAULT_KINDS)
    known = followed_errors(next(side.observe(plan, start=state, steps=steps)))
    if not any(local.beyond for local in known.values()):
        return result
    result = replace(result, sites=Sites.of(_settled(result.sites, step, known, pair)))
    return replace(result, causes=(*result.causes, *_named(result, known)))


def placed(result: Result) -> Result:
    """A result whose origin following has shown to be propagated, with the first divergence that stands."""
    origin = result.origin
    if origin is None:
        return result
    failing = [d for d in among(result.sites, verdicts=FAILED, step=origin.key.step) if d.key.module != LOOP]
    first = next((d for d in failing if d.birth in BORN), None)
    stands = not any(d.key == origin.key and d.birth == "propagated" for d in failing)
    if first is None or first.birth is None or stands:
        return result
    why = divergence(first, first.birth, outputs_match=result.why.outputs_match, sites=result.sites)
    return replace(result, origin=Origin(first.key, first.birth), why=replace(why, fed="candidate"))


def _named(result: Result, known: Mapping[Key, Local]) -> Iterator[Cause]:
    """What was done to the values that differ by themselves, where that is known: once for each difference."""
    said = {code_of(cause.at) for cause in result.causes if cause.at}
    for key, local in known.items():
        if local.beyond and local.note and code_of(key.site) not in said:
            said.add(code_of(key.site))
            far = f"made of the candidate's own values before it; relative L2 {local.distance.rel_l2:.2e}"
            evidence = Witness("measured", local.distance.rel_l2, far)
            yield Cause(f"{place_of(key.site)}: {local.note}", "", "", "", evidence=(evidence,), at=key.site)


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
    return any(d.verdict == "fail" and (d.birth in BORN or d.key.module == LOOP) for d in sites)


@dataclass
class Following:
    """What the first step left to follow.

    Attributes:
        step: its index. state: what the reference started it from. outputs: the candidate's.
        known: the local errors, once it was followed.
    """

    step: int
    state: State
    outputs: Mapping[str, Array]
    known: Mapping[Key, Local] = field(default_factory=dict)

    @classmethod
    def of(cls, reference: StepRecords, outputs: Mapping[str, Array]) -> Following | None:
        """None where nothing was held."""
        return cls(reference.step, state_of(reference, "before"), outputs) if outputs else None

    def settle(self, pair: Ready, side: Side, sites: Sequence[SiteDiff], say: Say) -> list[SiteDiff]:
        """All judged sites, none of them beyond its limits, with those that differ by themselves.

        Args:
            side: the reference, or the one in the candidate's working dtype.
        """
        say("the reference on the candidate's own values")
        plan = Plan(follow=self.outputs, floors=DEFAULT_KINDS)
        steps = (self.step, self.step + 1)
        self.known = followed_errors(next(side.observe(plan, start=self.state, steps=steps)))
        return _settled(sites, self.step, self.known, pair)

    @property
    def failing(self) -> bool:
        """Whether any output differs by itself."""
        return any(local.beyond for local in self.known.values())

    @property
    def modules(self) -> set[str]:
        """The modules that were followed."""
        return {key.module for key in self.known}
