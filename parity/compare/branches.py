"""Names of guidance branches.

Those of recorded scripts nobody gave: calls are counted and batches taken apart. One implementation asks for the prompt
first, another for the negative one. What the model is given says which branch is which, and what a side makes of its
branches, the guided prediction, decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np

from parity.compare.comparable import of_script
from parity.compare.guidance import combined
from parity.compare.metrics import sketch_distance
from parity.compare.values import PREDICTED
from parity.golden.disk.part import chosen, named
from parity.records import LOOP, Provenance, Record, StepRecords

NEARER = 0.1
"""How much nearer another branch must be, than that of the same name, for the names to be crossed."""
MOST_BRANCHES = 6
"""Branches of which every order is tried: LTX-2 has four."""
TIED = 1e-2
"""Share of what branches are apart at most below which two orders are as near: rounding in 16 bits."""


def crossed(reference: StepRecords, candidate: StepRecords) -> Mapping[str, str]:
    """The candidate's branches -> the reference's, where another order of them is given the same; empty where not.

    Of branches that are given the same, as one that skips a layer, what they predict decides. Names that only one side
    has stand for each other.
    """
    (ours, made), (theirs, found) = _told(reference), _told(candidate)
    names = tuple(sorted(ours))
    if not 2 <= len(names) <= MOST_BRANCHES or len(ours) != len(theirs):
        return {}
    called = dict(zip(sorted(ours.keys() - theirs), sorted(theirs.keys() - ours), strict=True))
    own = tuple(called.get(name, name) for name in names)
    # What every branch of both is given, so that no order gains by what is missing.
    everywhere = set.intersection(*(set(branch) for branch in (*ours.values(), *theirs.values())))
    pairs = [*product(names, own)]
    far = ({(a, b): _apart(ours[a][site], theirs[b][site]) for a, b in pairs} for site in everywhere)
    # What is as far apart in all pairs, as latents of another seed, says nothing of the order.
    tells = [x for x in far if min(x.values()) < math.inf and max(x.values()) > (1 + TIED) * min(x.values())]
    apart = {pair: sum(x[pair] for x in tells) for pair in pairs}
    given = {order: sum(apart[pair] for pair in zip(names, order, strict=True)) for order in permutations(own)}
    tied = [order for order, x in given.items() if x <= min(given.values()) + TIED * max(given.values())]
    best = own if own in tied else min(given, key=given.__getitem__)
    # Where one branch is given something wrong, another that is given the same shows the order.
    alike = {pair for pair, x in apart.items() if x <= TIED * max(apart.values())}
    agree = {order: sum(pair in alike for pair in zip(names, order, strict=True)) for order in given}
    near = 1.0 if _exchanged(made, found) else NEARER
    if best != own and not agree[best] > agree[own] and not given[best] <= near * given[own]:
        best, tied = own, []
    if len(tied) > 1 and made.keys() >= set(names) and found.keys() >= set(own):
        predicted = {order: sum(_apart(made[a], found[b]) for a, b in zip(names, order, strict=True)) for order in tied}
        nearest = min(tied, key=predicted.__getitem__)
        best = nearest if predicted[nearest] <= NEARER * predicted[best] else best
    return {} if best == names else dict(zip(best, names, strict=True))


def _exchanged(*predicted: Mapping[str, Record]) -> bool:
    """Whether both sides guide alike, if the branches of one have each other's names."""
    values = ({(name, PREDICTED): np.asarray(r.value, np.float64) for name, r in side.items()} for side in predicted)
    first, second = map(combined, values)
    return first is not None and second is not None and first.turned(second)


def _apart(a: Record, b: Record) -> float:
    """How far two inputs are apart: infinitely where they do not line up, as text of another length in each branch, and
    as far as can be where one alone is zeros."""
    if a.frame != b.frame or a.sketch is None or b.sketch is None:
        return math.inf
    far = sketch_distance(a, b)
    return far if not math.isnan(far) else float(np.any(b.sketch))


_Inputs = dict[str, dict[tuple[str, int], Record]]


def _told(step: StepRecords) -> tuple[_Inputs, dict[str, Record]]:
    """What the model is given in each branch, of a step with a guided prediction to decide, and what it predicts."""
    given: _Inputs = {}
    predicted: dict[str, Record] = {}
    for r in chosen(step.records, _tells):
        if r.key.module == LOOP:
            predicted[r.key.branch] = r
        elif r.sketch is not None:
            given.setdefault(r.key.branch, {})[r.key.site, r.key.call] = r
    return (given if "" in predicted else {}), predicted


def _tells(r: Record) -> bool:
    """Whether it is what the model is given in a branch, or a prediction."""
    given = r.key.is_argument and not r.key.is_apart
    return r.key.site == f"{LOOP}:noise_pred" or (given and r.key.branch != "")


def _lone(ours: _Inputs, theirs: _Inputs) -> Mapping[str, str]:
    """The candidate's branches -> the reference's, where one side runs a branch alone, which then counts as cond,
    and is given what the other side's branch of another name is; empty elsewhere."""
    few, many = sorted((ours, theirs), key=len)
    if len(few) != 1 or len(many) < 2:
        return {}
    ((own, given),) = few.items()
    far = {name: sum(_apart(given[s], x[s]) for s in given.keys() & x.keys()) for name, x in many.items()}
    near = min(far, key=far.__getitem__)
    if own not in far or near == own or not (math.isfinite(far[near]) and far[near] <= NEARER * far[own]):
        return {}
    return {own: near} if few is theirs else {own: near, near: own}


@dataclass
class Branches:
    """Renames the candidate's branches, as its first step with several shows them.

    Attributes:
        names: the candidate's -> the reference's; None until they are known. Empty where they are the same.
        given: whether somebody gave them.
    """

    names: Mapping[str, str] | None
    given: bool = True

    @classmethod
    def of(cls, reference: Provenance, candidate: Provenance) -> Branches:
        """Those of two recordings: a script's have no names of their own."""
        counted = of_script(reference) or of_script(candidate)
        return cls(None if counted else {}, given=not counted)

    def step(self, reference: StepRecords, candidate: StepRecords) -> StepRecords:
        """The candidate's step under the reference's names; of one branch alone on each side there is no other."""
        if self.names is None and len(_told(reference)[0]) > 1:
            self.names = crossed(reference, candidate)
        lone = {} if self.given else _lone(_told(reference)[0], _told(candidate)[0])
        if self.names == {} and not lone:
            return candidate
        ours, theirs = ({r.key.branch for r in named(step.records)} - {""} for step in (reference, candidate))
        names = dict(zip(theirs, ours, strict=True)) if len(ours) == len(theirs) == 1 else lone or self.names or {}
        if all(own == other for own, other in names.items()):
            return candidate
        return candidate.renamed(lambda key: replace(key, branch=names.get(key.branch, key.branch)))

    @property
    def crossed(self) -> bool:
        """Whether a name of the reference stands for another of its branches on the candidate."""
        names = self.names or {}
        return any(own != theirs and own in names.values() for own, theirs in names.items())

    @property
    def note(self) -> str:
        """A sentence on other names; empty where there are none."""
        if not self.names:
            return ""
        pairs = ", ".join(
            f"its {own} is the reference's {theirs}" for own, theirs in self.names.items() if own != theirs
        )
        return f"the candidate's guidance branches are in another order: {pairs}, by what the model is given and gives"
