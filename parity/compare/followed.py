"""Local errors: a step in which the reference followed the candidate.

At each value the reference computed its own from the candidate's values before it, so that nothing is inherited. What
differs at an output is the module's own code, at an input its caller's. Where inputs are not handed out, an output may
be its caller's code as well. What following found decides where a divergence starts; the free run does where it did not
look. numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.births import Excuse, call_of, excused, input_severities, is_mask_given
from parity.compare.metrics import ONE_SIDED, distance, ratios
from parity.compare.result import UNKNOWN, Birth, Distance, SiteDiff, SiteVerdict
from parity.compare.sites import severity
from parity.floors import L2_LIMIT, LINF_LIMIT
from parity.records import ATTENTION, LOOP, Key, StepRecords, above

DOUBT = 1.0
"""Severity from which a site of an agreeing run is suspect: above its floor. Of innocent pairs in float32 hardly a site
is (benchmarks/results/fault-bench.md: the largest ratio of all variants is 1.04)."""

HANDED_ON = 3.0
"""How much above its inputs: a block that only hands on what it was given has a ratio like theirs."""

OWN = 0.5
"""Share of a value's difference in the free run: if more than this is left when the value is made of the candidate's
own, it was not inherited, and the free run's verdict stands."""

MOST = 4
"""Modules in doubt that are looked at: those in which the others' doubts began, as a rule."""


@dataclass(frozen=True, slots=True)
class Local:
    """The local error at one value.

    Attributes:
        distance: of the candidate's value from the reference's, made of the same values. beyond: whether above its
            floor in L2 or in a row bin. note: what was done to it, where that is known.
    """

    distance: Distance
    beyond: bool
    note: str = ""


def followed_errors(step: StepRecords) -> dict[Key, Local]:
    """The local errors of a followed step, in execution order; its records hold norms of differences by row bin, or
    behind them a text that says how."""
    found: dict[Key, Local] = {}
    for record in step.records:
        if record.kind == "scalar":
            if record.key in found:  # else it is in doubt
                found[record.key] = replace(found[record.key], note=str(record.value))
            continue
        floor, moments = step.floors[record.key], record.moments
        apart = np.asarray(record.value, np.float64)
        scale = 0.0 if moments is None else moments.l2  # `distance` divides by no zero
        far = distance(float(np.sqrt((apart**2).sum())), scale, floor.l2)
        bins = () if floor.bins is None else ratios(apart, floor.bins.astype(np.float64))
        inside = far.ratio <= L2_LIMIT and not any(b > LINF_LIMIT for b in bins)
        found[record.key] = Local(far, not inside)
    return found


def with_followed(
    sites: Sequence[SiteDiff], found: Mapping[Key, Local], excuses: Sequence[Excuse] = ()
) -> tuple[SiteDiff, ...]:
    """The judged sites of a step, with those that differ by themselves, each in its place.

    Args:
        sites: in execution order. found: in that order too, of more sites or of fewer; what it says of a site decides
            whether a divergence starts there. Of a site that it does not have, the free run does, unless what was
            found accounts for it: inside the module, or anywhere before an input.
    """
    position = {d.key: i for i, d in enumerate(sites)}
    last, unplaced = -1, len(sites)  # the last site before the first difference that is found beside the sites
    behind: dict[Key, list[SiteDiff]] = {}
    waiting: list[SiteDiff] = []
    for key, local in found.items():
        if key in position:
            behind[key], waiting, last = waiting, [], max(last, position[key])
        elif local.beyond:
            unplaced = min(unplaced, last)
            waiting.append(
                SiteDiff(key, UNKNOWN, local=local.distance, birth=_born(key), verdict=_verdict(key, local, excuses))
            )
    beyond = [key for key, local in found.items() if local.beyond]
    within = {module for key in beyond for module in above(key.module)}
    outer = {key.module for key in beyond if not key.is_input}
    inputs, differing = input_severities(sites), set[str]()
    judged: list[SiteDiff] = []
    for i, d in enumerate(sites):
        judged += behind.get(d.key, ())
        differing |= {other.key.branch for other in behind.get(d.key, ())}
        if waiting and d.key.module == LOOP and d.key.port == "noise_pred":
            judged += waiting
            waiting = []
        mine = found.get(d.key)
        unlike = d.verdict == "not compared" and math.isnan(d.distance.rel_l2)  # what following could line up
        if mine is not None and mine.beyond and (d.verdict in ("pass", "fail") or unlike):
            note, verdict = "" if unlike else d.note, _verdict(d.key, mine, excuses)
            d = replace(d, local=mine.distance, birth=_born(d.key), verdict=verdict, note=note)
            differing.add(d.key.branch)
        elif mine is not None and d.introduced and not mine.distance.rel_l2 > OWN * d.distance.rel_l2:
            d = replace(d, local=mine.distance, birth="propagated")
        elif _accounted_for(d, within, outer, before=bool(differing) or i > unplaced):
            d = replace(d, birth="propagated")
        elif d.birth == "module" and d.key.branch in differing and d.key.module != LOOP:
            # Where nothing is known of its inputs, it may hand on what differs before it.
            d = d if call_of(d.key) in inputs else replace(d, birth="propagated")
        judged.append(d)
    return (*judged, *waiting)


def _accounted_for(d: SiteDiff, within: Collection[str], outer: Collection[str], *, before: bool) -> bool:
    """Whether what was found by following explains a birth of the free run that it did not look at; in whichever
    branch, whose code is the same.

    Args:
        within: modules in which something was found. outer: those whose own code was. before: whether something was
            found before it.
    """
    if d.note == ONE_SIDED and any(module in outer for module in above(d.key.module)):
        return True  # whose code does not call it
    if d.birth == "module":
        return d.key.module in within
    return d.birth == "input" and before and bool(d.key.module) and not is_mask_given(d)


def _born(key: Key) -> Birth:
    return "input" if key.is_input else "module"


def _verdict(key: Key, local: Local, excuses: Sequence[Excuse]) -> SiteVerdict:
    """What a module that a declared difference changes hands on is explained with it, and so is what the code around an
    attention call does, which is no module that is followed."""
    around = [module for module in above(key.module) if module]
    places = [key, *(replace(key, site=f"{module}{of}:out") for module in around for of in ("", f".{ATTENTION}"))]
    return "harmless" if any(excused(place, local.distance.rel_l2, excuses) for place in places) else "fail"


def doubtful(sites: Sequence[SiteDiff], modules: Collection[str]) -> tuple[str, ...]:
    """The modules whose own error should be measured; in execution order.

    Args:
        sites: of one step, judged, none of them beyond its limits. modules: by path, without the top one.
    """
    inputs = input_severities(sites)
    seen: dict[str, float] = {}
    found: list[str] = []
    for d in sites:
        if d.key.is_apart or d.key.module == LOOP or d.verdict != "pass":
            continue
        mine = severity(d)
        before = max(seen.get(d.key.branch, 0.0), seen.get("", 0.0))
        given = before if d.key.is_input else inputs.get(call_of(d.key), before)
        seen[d.key.branch] = max(before, mine)
        if mine <= DOUBT or mine <= HANDED_ON * given:
            continue
        # The module itself or the nearest above it; an attention call's is the module that makes it.
        around = above(d.key.module) if d.key.is_input else (d.key.module, *above(d.key.module))
        module = next((m for m in around if m in modules), "")
        if module and module not in found:
            found.append(module)
    return tuple(found[:MOST])
