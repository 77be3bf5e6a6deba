"""What one step hands to the next: its latents, and what the scheduler remembers of earlier predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from parity.compare.detect.held import SAME, Seen, Values, apart, differ, named
from parity.compare.result import Cause
from parity.records import LOOP
from parity.transforms import bfloat16

LATENTS = f"{LOOP}:latents.after"
HISTORY = f"{LOOP}:history"
"""How many predictions of earlier steps a multistep scheduler holds before a step."""


def continued(seen: Seen) -> Iterator[Cause]:
    """Latents that are carried over on one side, and begun anew or changed between two steps on the other."""
    pair = seen.pair(f"{LOOP}:latents.before")
    if not differ(pair) or pair is None or seen.before is None:
        return
    if any(before.shape != now.shape for before, now in zip(seen.before, pair, strict=True)):
        return
    ours, theirs = (_carried(before, now) for before, now in zip(seen.before, pair, strict=True))
    if ours == theirs:
        return
    one, other = ("the candidate", "the reference") if theirs else ("the reference", "the candidate")
    text = (
        f"at step {seen.step} {one} goes on from the latents of the step before, {other} does not: latents of a stage "
        "or chunk that are drawn, scaled or injected between steps on one side alone (a name that two loops share)"
    )
    value = apart(seen.before[0], pair[0]) if theirs else apart(seen.before[1], pair[1])
    sides = ("", "carried over") if theirs else ("carried over", "")
    yield named(text, "loop.latents", *sides, value, at=f"{LOOP}:latents.before")


def _carried(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether latents are those of the step before, perhaps cast to the dtype that a side works in."""
    with np.errstate(over="ignore"):
        casts = (before, bfloat16(before), before.astype(np.float16).astype(np.float64))
        return any(apart(cast, now) <= SAME for cast in casts)


TOOK = 1e-2
"""Relative difference of a used dt from a schedule's that says they are not the same."""


def stepped(seen: Seen) -> Iterator[Cause]:
    """A scheduler that moves the latents by another multiple of the prediction than its own schedule says.

    Only if the reference makes an Euler step: latents.after = latents.before + dt noise_pred.
    """
    place = seen.pair(f"{LOOP}:step_index")
    if place is not None and not np.array_equal(*place):
        return  # which says it
    ours, theirs = _euler(seen.ours), _euler(seen.theirs)
    if ours is None or theirs is None:
        return
    (used, dt), (other, said) = ours, theirs
    if abs(used - dt) > TOOK * abs(dt) or abs(other - said) <= TOOK * abs(said):
        return
    text = f"the scheduler stepped by {other:.5g} where its schedule says {said:.5g}"
    fix = "reset its step index before the loop (warm-up calls move it), and check the sign and factor of its update"
    yield named(text, "scheduler.step", said, other, other, fix=fix, at=LATENTS)


def _euler(values: Values) -> tuple[float, float] | None:
    """The dt that a step used, and the schedule's; None where it moved otherwise, or the values are not held."""
    names = ("noise_pred", "latents.before", "latents.after", "dt")
    flow, before, after, dt = (values.get(("", f"{LOOP}:{name}")) for name in names)
    if flow is None or before is None or after is None or dt is None or dt.size != 1:
        return None
    if not flow.shape == before.shape == after.shape:
        return None
    moved, square = after - before, float(np.vdot(flow, flow))
    used = float(np.vdot(flow, moved)) / square if square else math.nan
    left = float(np.linalg.norm(moved - used * flow))
    return (used, float(dt.item())) if left <= TOOK * float(np.linalg.norm(moved)) else None


ORDER = "scheduler.solver_order"
"""What of a scheduler's config says how many predictions it remembers."""


def remembered(seen: Seen) -> Iterator[Cause]:
    """A multistep scheduler that enters a step with predictions of earlier ones that the other side has forgotten."""
    pair = seen.pair(HISTORY)
    if pair is None or pair[0].size != 1 or float(pair[0].item()) == float(pair[1].item()):
        return
    if len({settings.get(ORDER, "") for settings in seen.settings}) > 1:
        return  # a scheduler of another order remembers another number
    ours, theirs = (int(x.item()) for x in pair)
    text = (
        f"the scheduler enters step {seen.step} with {theirs} predictions of earlier steps, with {ours} on the "
        "reference: its state was not reset, or was lost, between stages"
    )
    yield named(text, "scheduler.history", float(ours), float(theirs), float(theirs), at=HISTORY)
