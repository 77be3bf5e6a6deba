"""Which of a candidate's generations are compared, where it made more than the reference.

A TPU's script generates once to compile, with few steps or another seed, and what ran out of memory is tried again: the
recording then holds generations that the reference has nothing of. The recorder holds the schedule where one begins.
Those are compared that have as many steps as the reference's; of several such, those that begin from the nearest noise,
and of one noise those whose model is given most nearly the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

from parity.compare.metrics import far_apart
from parity.compare.pairs import SAME_LATENTS
from parity.compare.values import START
from parity.golden import Golden
from parity.golden.disk.part import chosen
from parity.records import SCHEDULE, Record, StepRecords


def matching(reference: Golden, candidate: Golden) -> Golden:
    """The candidate as far as it has a counterpart, where it holds more generations than the reference.

    Raises:
        UsageError: a part is damaged.
    """
    if not reference.complete or (candidate.complete and len(reference.loop) >= len(candidate.loop)):
        return candidate
    wanted, lengths = reference.generations, candidate.generations
    if not wanted or len(wanted) >= len(lengths):
        return candidate
    every = range(len(lengths) - len(wanted) + 1)
    fits = [i for i in every if lengths[i : i + len(wanted)] == wanted]
    if not fits or (not candidate.complete and lengths[-1] < wanted[-1]):
        fits.append(every[-1])
    begins = reference.read_step(0)
    nearest = min(fits, key=lambda i: _far(begins, candidate.read_step(sum(lengths[:i])).at(0)))
    first, count = sum(lengths[:nearest]), sum(lengths[nearest : nearest + len(wanted)])
    schedule = next(chosen(candidate.read_step(first).records, _is_schedule), None)
    scheduled = 0 if schedule is None or schedule.moments is None else schedule.moments.count
    return replace(candidate, first=first, count=count, scheduled=scheduled)


def _far(reference: StepRecords, candidate: StepRecords) -> tuple[float, float]:
    """How far the noise is from which two generations begin, 0 for one; how far all is together that the model is given
    first."""
    ours, theirs = ({r.key: r for r in chosen(side.records, _begins)} for side in (reference, candidate))
    far = {key: far_apart(r, theirs[key]) for key, r in ours.items() if key in theirs and r.kind == "tensor"}
    noise = max((x for key, x in far.items() if key.site == START), default=math.inf)
    return noise if noise > SAME_LATENTS else 0.0, sum(x for x in far.values() if math.isfinite(x))


def _begins(r: Record) -> bool:
    return r.key.site == START or (r.key.is_input and r.key.module == "" and not r.key.is_apart)


def _is_schedule(r: Record) -> bool:
    return r.key.site == f"{SCHEDULE}:timesteps"
