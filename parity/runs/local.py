"""`--forcing module`: each module of a pair on the reference's inputs, and the descent by local errors.

Cost: one run of the reference more for each step, and for each level of the descent; see `parity.paths.local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity.compare.conclude import divergence
from parity.compare.judge import excuses
from parity.compare.local import BORN, Local, first_beyond, first_within, local_errors, suspect, with_local
from parity.compare.result import NAN, Birth, Distance, Origin, Result, SiteDiff, SiteVerdict
from parity.golden.records import Key, StepRecords
from parity.hooks.calls import Call
from parity.hooks.sites import SitePlan
from parity.models.patches import DTYPES
from parity.paths.local import Dtypes, children_of, local_calls, targets_of
from parity.paths.loop import State
from parity.runs.pairing import Pairing, Say
from parity.runs.port_local import Modules, local_modules


@dataclass
class LocalPass:
    """Runs the modules of a pair one at a time.

    Attributes:
        pairing: loaded. plan: whose modules are run. found: the local errors of the steps so far, in execution order.
    """

    pairing: Pairing
    plan: SitePlan
    say: Say
    found: dict[Key, Local] = field(default_factory=dict)
    _modules: Any = field(default=None)
    _parted: tuple[int, State, StepRecords] | None = field(default=None)

    def step(
        self,
        step: int,
        state: State,
        sites: Sequence[SiteDiff],
        candidate: StepRecords,
        only: Sequence[str] | None = None,
    ) -> tuple[SiteDiff, ...]:
        """The judged sites of a step with their local errors.

        Args:
            state: what the reference started the step from. candidate: its records, which tell its dtypes.
            only: the modules that are run; by default those of the plan.
        """
        excused = excuses(self.pairing.differing)
        targets = only or tuple(targets_of(self.plan, tuple(self.pairing.reference.side.modules)))
        found = self.look(step, state, targets, self._dtypes(candidate))
        self.found.update(found)
        judged = with_local(sites, found, excused)
        if self._parted is None and any(d.verdict == "fail" and d.birth in BORN for d in judged):
            self._parted = step, state, candidate
        return judged

    def look(self, step: int, state: State, targets: Sequence[str], dtypes: Dtypes) -> dict[Key, Local]:
        """The local errors of these modules in one step, in execution order."""
        if self._modules is None:
            self._modules = local_modules(self.pairing.candidate.side, self.pairing.reference.side)
        modules: Modules = self._modules
        found: dict[Key, Local] = {}

        def take(call: Call, truth: StepRecords) -> None:
            self.say(f"modules on the reference's inputs ({call.module})")
            found.update(local_errors(truth, modules.records(call, step)))

        both = [t for t in targets if modules.has(t)]
        local_calls(self.pairing.reference.side, step, state, both, take, dtypes)
        return found

    def descend(self, result: Result) -> Result:
        """Refine an origin that lies in a module with a local error: its children are run, then the failing child's."""
        origin = result.origin
        place = None if origin is None else suspect(origin.key, self.found)
        key = None if origin is None or place is None else first_beyond(self.found, (place,), origin.key)
        if origin is None or key is None or self._parted is None or self._parted[0] != key.step:
            return result
        step, state, candidate = self._parted
        modules = tuple(self.pairing.reference.side.modules)
        found, closer = dict(self.found), list[SiteDiff]()
        while children := children_of(key.module, modules):
            inside = self.found
            if not self.plan.modules.issuperset(children):
                self.say(f"looking closer at {key.module}")
                inside = self.look(step, state, children, self._dtypes(candidate))
                closer += [_alone(k, local) for k, local in inside.items()]
                found.update(inside)
            # A child is born before its parent ends: the first in execution order that differs on this branch.
            below = first_beyond(inside, children, key)
            if below is None:
                break
            key = below
        born = first_within((*result.sites, *result.closer), key, found) or _alone(key, found[key])
        result = replace(result, closer=(*result.closer, *closer))
        if born.key == origin.key:
            return result
        birth = born.birth or "module"
        why = divergence(born, birth, outputs_match=result.why.outputs_match)
        return replace(result, origin=Origin(born.key, birth), why=why)

    def _dtypes(self, candidate: StepRecords) -> Dtypes:
        ours, theirs = self.pairing.reference.side.backend.dtype, self.pairing.candidate.side.backend.dtype
        if ours == theirs:
            return {}
        return {r.key.site.split("@")[0]: DTYPES[r.dtype] for r in candidate.records if r.dtype in DTYPES}


def _alone(key: Key, local: Local) -> SiteDiff:
    """A site that was only run on the reference's inputs."""
    verdict: SiteVerdict = "fail" if local.beyond else "pass"
    born: Birth | None = "module" if local.beyond else None
    return SiteDiff(key, Distance(NAN, NAN, NAN), local=local.distance, birth=born, verdict=verdict, note=local.note)
