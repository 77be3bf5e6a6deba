"""The look that follows an agreeing check: the reference on the candidate's own values, module by module.

The floors of the free run hold what one ulp of an elementary function grows to behind it; these do not
(`parity.paths.closer.follow`), and nothing of the candidate is called: it works for ports. Cost: five runs of the
reference's first step; nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.births import excuses
from parity.compare.follow import followed_errors, with_followed
from parity.compare.local import BORN, Local
from parity.compare.result import SiteDiff
from parity.hooks.sites import WHOLE, SitePlan
from parity.paths.plan import DEFAULT_KINDS, Array, Plan, State, name_of
from parity.records import LOOP, Key, StepRecords
from parity.runs.request import Request, Say
from parity.runs.sides import Ready
from parity.runs.stream import state_of

ALIKE = frozenset({"jit"})
"""Settings that may differ where the reference follows. Others change values or the order of tokens by design (another
kernel's softmax, a mesh's sums), and what that rounds to at each module's own code was not measured."""


def holding(pair: Ready, plan: SitePlan, request: Request) -> SitePlan:
    """The candidate's plan, which holds outputs where the reference can follow them: the sides declare no difference
    that could change values (`ALIKE`), no sites in particular were asked for, and it is the loop that is compared."""
    if request.sites not in ("blocks", "all") or not pair.settings.reference.exact or request.by_itself:
        return plan
    return replace(plan, whole=ALIKE.issuperset(d.setting for d in pair.differing))


def without_outputs(step: StepRecords) -> tuple[StepRecords, dict[str, Array]]:
    """A candidate's step without the outputs that were held, and these by `name_of`."""
    records, outputs = [], {}
    for r in step.records:
        if r.key.port.startswith(f"{WHOLE}."):
            key = replace(r.key, step=0, site=f"{r.key.module}:{r.key.port.removeprefix(f'{WHOLE}.')}")
            outputs[name_of(key)] = Array(np.asarray(r.value), r.dtype)
        else:
            records.append(r)
    return (replace(step, records=tuple(records)) if outputs else step), outputs


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

    def settle(self, pair: Ready, sites: Sequence[SiteDiff], say: Say) -> list[SiteDiff]:
        """All judged sites, none of them beyond its limits, with those that differ by themselves."""
        say("the reference on the candidate's own values")
        plan = Plan(follow=self.outputs, floors=DEFAULT_KINDS)
        steps = (self.step, self.step + 1)
        self.known = followed_errors(next(pair.sides.reference.observe(plan, start=self.state, steps=steps)))
        of_step = [d for d in sites if d.key.step == self.step]
        judged = with_followed(of_step, self.known, excuses(pair.differing))
        first = next((i for i, d in enumerate(sites) if d.key.step == self.step), 0)
        rest = [d for d in sites if d.key.step != self.step]
        return [*rest[:first], *judged, *rest[first:]]

    @property
    def failing(self) -> bool:
        """Whether any output differs by itself."""
        return any(local.beyond for local in self.known.values())

    @property
    def modules(self) -> set[str]:
        """The modules that were followed."""
        return {key.module for key in self.known}
