"""`--forcing module`: each module of a pair on the reference's inputs, and the descent by local errors.

Cost: one run of the reference more for each step, and for each level of the descent; see `parity.paths.local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parity.compare.excuses import excuses
from parity.compare.local import Local, local_errors, with_local
from parity.compare.result import NAN, Distance, Origin, Result, SiteDiff
from parity.diagnose.pairing import Pairing, Say
from parity.diagnose.port_local import Modules, local_modules
from parity.golden.records import LOOP, Key, StepRecords
from parity.hooks.calls import Call
from parity.hooks.sites import SitePlan
from parity.models.patches import DTYPES
from parity.paths.local import Dtypes, children_of, local_calls, targets_of
from parity.paths.loop import State


@dataclass
class LocalPass:
    """Runs the modules of a pair one at a time.

    Attributes:
        pairing: loaded. plan: whose modules are run.
    """

    pairing: Pairing
    plan: SitePlan
    say: Say
    _modules: Any = field(default=None)

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
        return with_local(sites, self.look(step, state, targets, self._dtypes(candidate)), excused)

    def look(self, step: int, state: State, targets: Sequence[str], dtypes: Dtypes) -> dict[Key, Local]:
        """The local errors of these modules in one step, in execution order."""
        if self._modules is None:
            self._modules = local_modules(self.pairing.candidate.side)
        modules: Modules = self._modules
        found: dict[Key, Local] = {}

        def take(call: Call, truth: StepRecords) -> None:
            self.say(f"modules on the reference's inputs ({call.module})")
            found.update(local_errors(truth, modules.records(call, step)))

        both = [t for t in targets if modules.has(t)]
        local_calls(self.pairing.reference.side, step, state, both, take, dtypes)
        return found

    def descend(self, result: Result, state: State, candidate: StepRecords) -> Result:
        """Refine an origin that a local error tells: the children of the suspect are run, then theirs.

        Args:
            state: what the reference started the origin's step from.
        """
        origin = result.origin
        if origin is None or origin.birth != "module" or origin.key.module in ("", LOOP):
            return result
        modules = tuple(self.pairing.reference.side.modules)
        closer: list[SiteDiff] = []
        while children := children_of(origin.key.module, modules):
            self.say(f"looking closer at {origin.key.module}")
            found = self.look(origin.key.step, state, children, self._dtypes(candidate))
            # A child is born before its parent ends: the first in execution order that differs on this branch.
            born = [key for key, local in found.items() if local.beyond and key.branch == origin.key.branch]
            closer += [_alone(key, local) for key, local in found.items()]
            if not born:
                break
            origin = Origin(born[0], "module")
        if not closer or origin == result.origin:
            return replace(result, closer=(*result.closer, *closer))
        at = next(d for d in closer if d.key == origin.key)
        number = f"local relative L2 {at.local.rel_l2:.2e}, {at.local.ratio:.0f} x its floor"
        reason = f"the paths part at {origin.key}: fed the reference's inputs its output differs ({number})"
        end = result.reason.partition("; noise_pred")
        return replace(result, origin=origin, closer=(*result.closer, *closer), reason=reason + "".join(end[1:]))

    def _dtypes(self, candidate: StepRecords) -> Dtypes:
        ours, theirs = self.pairing.reference.side.backend.dtype, self.pairing.candidate.side.backend.dtype
        if ours == theirs:
            return {}
        return {r.key.site.split("@")[0]: DTYPES[r.dtype] for r in candidate.records if r.dtype in DTYPES}


def _alone(key: Key, local: Local) -> SiteDiff:
    """A site that was only run on the reference's inputs."""
    verdict = "fail" if local.beyond else "pass"
    unknown = Distance(NAN, NAN, NAN)
    born = "module" if local.beyond else None
    return SiteDiff(key, unknown, local=local.distance, birth=born, verdict=verdict, note=local.note)  # type: ignore[arg-type]
