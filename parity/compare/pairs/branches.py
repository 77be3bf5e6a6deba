"""The guidance branches of recorded scripts, whose names nobody gave: calls are counted and batches taken apart.

One implementation asks for the prompt first, another for the negative one. What the model is given says which branch is
which, and what a side makes of its branches, the guided prediction, decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.comparable import of_script
from parity.golden.disk.part import Table
from parity.records import LOOP, Provenance, Record, StepRecords

NEARER = 0.1
"""How much nearer the inputs of another branch must be, of those of the same name, for the names to be crossed."""


def crossed(reference: StepRecords, candidate: StepRecords) -> Mapping[str, str]:
    """The candidate's branches -> the reference's, where another order of them is given the same; empty where not."""
    ours, theirs = _inputs(reference), _inputs(candidate)
    names = sorted(ours)
    if len(names) < 2 or len(names) > 3 or ours.keys() != theirs.keys():
        return {}
    orders = {order: _apart(ours, theirs, names, order) for order in itertools.permutations(names)}
    least = min(orders, key=lambda order: orders[order])
    if list(least) == names or not orders[least] <= NEARER * orders[tuple(names)]:
        return {}
    return dict(zip(least, names, strict=True))


def _inputs(step: StepRecords) -> dict[str, dict[tuple[str, int], Record]]:
    """What the model is given in each branch, of a step whose guided prediction is there to decide."""
    found: dict[str, dict[tuple[str, int], Record]] = {}
    guided = False
    records = step.records
    for r in records.where(_tells) if isinstance(records, Table) else filter(_tells, records):
        if not r.key.branch:
            guided = True
        elif r.sketch is not None:
            found.setdefault(r.key.branch, {})[r.key.site, r.key.call] = r
    return found if guided else {}


def _tells(r: Record) -> bool:
    """Whether it is what the model is given in a branch, or the guided prediction."""
    given = r.key.is_input and not r.key.module and not r.key.is_apart
    return given if r.key.branch else r.key.site == f"{LOOP}:noise_pred"


def _apart(
    ours: Mapping[str, Mapping[tuple[str, int], Record]],
    theirs: Mapping[str, Mapping[tuple[str, int], Record]],
    names: list[str],
    order: tuple[str, ...],
) -> float:
    """How far the candidate's branches in this order are from the reference's: the sum of relative distances over what
    every branch of both is given, so that no order gains by what is missing."""
    total = 0.0
    everywhere = set.intersection(*(set(branch) for branch in (*ours.values(), *theirs.values())))
    for own, other in zip(names, order, strict=True):
        for site in everywhere:
            r, s = ours[own][site], theirs[other][site]
            if s.sketch is not None and r.sketch is not None and r.frame == s.frame:
                size = float(np.linalg.norm(r.sketch))
                total += float(np.linalg.norm(s.sketch - r.sketch)) / size if size else 0.0
    return total if np.isfinite(total) else np.inf


@dataclass
class Branches:
    """Renames the candidate's branches, as its first step with several shows them.

    Attributes:
        unnamed: whether a side's branches have no names of their own. names: the candidate's -> the reference's; None
            until they are known.
    """

    unnamed: bool
    names: Mapping[str, str] | None = None

    @classmethod
    def of(cls, reference: Provenance, candidate: Provenance) -> Branches:
        """Those of two recordings."""
        return cls(of_script(reference) or of_script(candidate))

    def step(self, reference: StepRecords, candidate: StepRecords) -> StepRecords:
        """The candidate's step under the reference's names."""
        if not self.unnamed:
            return candidate
        if self.names is None and len(_inputs(reference)) > 1:
            self.names = crossed(reference, candidate)
        names = self.names or {}
        return (
            candidate.renamed(lambda key: replace(key, branch=names.get(key.branch, key.branch)))
            if names
            else candidate
        )

    @property
    def note(self) -> str:
        """A sentence on other names; empty where there are none."""
        if not self.names:
            return ""
        pairs = ", ".join(
            f"its {own} is the reference's {theirs}" for own, theirs in self.names.items() if own != theirs
        )
        return f"the candidate's guidance branches are in another order: {pairs}, by what the model is given"
