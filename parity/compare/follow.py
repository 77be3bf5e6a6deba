"""Local errors of a step in which the reference followed the candidate, and the divergences that they decide.

At each value the reference computed its own from the candidate's values before it, so that nothing is inherited: what
differs at an output is the module's own code, at an input its caller's. Where inputs are not handed out, an output may
be its caller's code as well. numpy only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from parity.compare.births import BIN_LIMIT, L2_LIMIT, ONE_SIDED, Excuse, above, excused, is_mask_given
from parity.compare.local import BORN, Local
from parity.compare.metrics import ratio
from parity.compare.result import UNKNOWN, Birth, Distance, SiteDiff, SiteVerdict
from parity.records import LOOP, Key, StepRecords


def followed_errors(step: StepRecords) -> dict[Key, Local]:
    """The local errors of a followed step, in execution order; its records hold norms of differences by row bin, or
    behind them a text that says how."""
    found: dict[Key, Local] = {}
    for record in step.records:
        if record.kind == "scalar":
            found[record.key] = replace(found[record.key], note=str(record.value))
            continue
        floor, moments = step.floors[record.key], record.moments
        apart = np.asarray(record.value, np.float64)
        scale = moments.l2 if moments is not None and moments.l2 > 0 else 1.0
        far = float(np.sqrt((apart**2).sum()))
        distance = Distance(far / scale, floor.l2 / scale, ratio(far, floor.l2))
        bins = [] if floor.bins is None else [ratio(float(v), float(f)) for v, f in zip(apart, floor.bins, strict=True)]
        inside = distance.ratio <= L2_LIMIT and not any(b > BIN_LIMIT for b in bins)
        found[record.key] = Local(distance, not inside)
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
    known = {d.key for d in sites}
    behind: dict[Key, list[SiteDiff]] = {}
    waiting: list[SiteDiff] = []
    for key, local in found.items():
        if key in known:
            behind[key], waiting = waiting, []
        elif local.beyond:
            waiting.append(
                SiteDiff(key, UNKNOWN, local=local.distance, birth=_birth(key), verdict=_verdict(key, local, excuses))
            )
    beyond = [key for key, local in found.items() if local.beyond]
    within = {module for key in beyond for module in above(key.module)}
    outer = {key.module for key in beyond if not key.is_input}
    judged: list[SiteDiff] = []
    for d in sites:
        judged += behind.get(d.key, ())
        if waiting and d.key.module == LOOP and d.key.port == "noise_pred":
            judged += waiting
            waiting = []
        mine = found.get(d.key)
        if mine is not None and mine.beyond and d.verdict in ("pass", "fail"):
            d = replace(d, local=mine.distance, birth=_birth(d.key), verdict=_verdict(d.key, mine, excuses))
        elif mine is not None and d.birth in BORN:
            d = replace(d, local=mine.distance, birth="propagated")
        elif _accounted_for(d, within, outer):
            d = replace(d, birth="propagated")
        judged.append(d)
    return (*judged, *waiting)


def _accounted_for(d: SiteDiff, within: Collection[str], outer: Collection[str]) -> bool:
    """Whether what was found by following explains a birth of the free run that it did not look at; in whichever
    branch, whose code is the same.

    Args:
        within: modules in which something was found. outer: those whose own code was.
    """
    if d.note == ONE_SIDED and any(module in outer for module in above(d.key.module)):
        return True  # whose code does not call it
    if d.birth == "module":
        return d.key.module in within
    return d.birth == "input" and bool(within) and bool(d.key.module) and not is_mask_given(d)


def _birth(key: Key) -> Birth:
    return "input" if key.is_input else "module"


def _verdict(key: Key, local: Local, excuses: Sequence[Excuse]) -> SiteVerdict:
    """An output inside a module that a declared difference changes is explained with it."""
    places = [key, *(replace(key, site=f"{module}:out") for module in above(key.module) if module)]
    return "harmless" if any(excused(place, local.distance.rel_l2, excuses) for place in places) else "fail"
