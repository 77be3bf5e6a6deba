"""A second opinion on an agreeing structure round: the doubtful modules are run on the reference's own inputs.

Cost: nothing where no site is doubtful (`parity.compare.local`), as between innocent pairs; else one run of the
reference's step and, for each of a few modules, a compilation of the candidate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.compare.local import doubtful
from parity.compare.result import SiteDiff
from parity.golden.records import StepRecords
from parity.paths.loop import State, state_of
from parity.runs.local import LocalPass
from parity.runs.pairing import Pairing


@dataclass(frozen=True, slots=True)
class Doubt:
    """The first step that leaves doubt.

    Attributes:
        step: its index. state: what the reference started it from. candidate: the candidate's records of it.
        modules: those in doubt, in execution order.
    """

    step: int
    state: State
    candidate: StepRecords
    modules: tuple[str, ...]


def doubt_of(
    pairing: Pairing, reference: StepRecords, candidate: StepRecords, sites: Sequence[SiteDiff]
) -> Doubt | None:
    """What a judged step leaves in doubt; None for nothing, or where the sides call other modules by design."""
    if not pairing.strict or any(d.setting == "cache" for d in pairing.differing):
        return None
    modules = doubtful(sites, [m for m in pairing.reference.side.modules if m])
    return Doubt(reference.step, state_of(reference, "before"), candidate, modules) if modules else None


def settled(doubt: Doubt, sites: Sequence[SiteDiff], local: LocalPass) -> list[SiteDiff]:
    """All judged sites, those of the doubtful modules with their local errors, which decide."""
    of_step = [d for d in sites if d.key.step == doubt.step]
    known = {d.key: d for d in local.step(doubt.step, doubt.state, of_step, doubt.candidate, doubt.modules)}
    return [known.get(d.key, d) for d in sites]
