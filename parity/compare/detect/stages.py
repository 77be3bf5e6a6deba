"""What one step hands to the next: its latents, and what the scheduler remembers of earlier predictions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.detect.held import SAME, Seen, apart, bfloat16, differ, named
from parity.compare.result import Cause
from parity.records import LOOP

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
    yield named(text, "loop.latents", "" if theirs else "carried over", "carried over" if theirs else "", value)


def _carried(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether latents are those of the step before, perhaps cast to the dtype that a side works in."""
    with np.errstate(over="ignore"):
        casts = (before, bfloat16(before), before.astype(np.float16).astype(np.float64))
        return any(apart(cast, now) <= SAME for cast in casts)


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
    yield named(text, "scheduler.history", float(ours), float(theirs), float(theirs))
