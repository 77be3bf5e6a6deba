"""Which of a candidate's generations are compared, where it made more than the reference.

A TPU's script generates once to compile, with few steps or another seed, and what ran out of memory is tried again: the
recording then holds generations that the reference has nothing of. The recorder holds the schedule where one begins.
Those are compared that have as many steps as the reference's; of several such, those whose initial noise is nearest,
and the last of these.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from parity.compare.births import SCHEDULE
from parity.compare.metrics import far_apart
from parity.compare.values import START
from parity.golden import Golden
from parity.golden.disk.part import chosen, named
from parity.records import Record


def matching(reference: Golden, candidate: Golden) -> Golden:
    """The candidate as far as it has a counterpart, where it holds more generations than the reference.

    Raises:
        UsageError: a part is damaged.
    """
    if not reference.complete or not candidate.complete or len(reference.loop) >= len(candidate.loop):
        return candidate
    wanted, lengths = _generations(reference), _generations(candidate)
    if not wanted or len(wanted) >= len(lengths):
        return candidate
    every = range(len(lengths) - len(wanted), -1, -1)
    fits = [i for i in every if lengths[i : i + len(wanted)] == wanted] or every[:1]
    noise = _noise(reference, 0)
    nearest = min(fits, key=lambda i: far_apart(noise, _noise(candidate, sum(lengths[:i]))))
    first, count = sum(lengths[:nearest]), sum(lengths[nearest : nearest + len(wanted)])
    return replace(candidate, first=first, count=count)


def _generations(golden: Golden) -> list[int]:
    """How many steps each has; none where the first step does not begin one."""
    held = {step: {r.key.module for r in named(golden.read_step(step).records)} for step in golden.loop}
    begins = [step for step, modules in held.items() if SCHEDULE in modules]
    if begins[:1] != [0]:
        return []
    return [end - begin for begin, end in itertools.pairwise([*begins, len(golden.loop)])]


def _noise(golden: Golden, step: int) -> Record | None:
    return next(chosen(golden.read_step(step).records, _is_start), None)


def _is_start(r: Record) -> bool:
    return r.key.site == START
