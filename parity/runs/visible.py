"""Which kinds of faults a model and its inputs can show: each is planted into the reference, and judged as a run is.

Problem. `pass` says that nothing differs that these inputs exercise. Made inputs and random weights leave kinds of
faults invisible: no padding, no mask to drop; no guidance embedding, none to lose.

How. The reference's first step is run once with its floors, then once under each kind (`parity.hooks.plant`). A kind
is shown where any module's output or noise_pred is beyond its floor, by the rule of every run. The candidate is not
needed. Cost: a run's reference with its floors, and a step of it for each kind. Imports neither torch nor jax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parity.compare.judge import Judge
from parity.compare.result import UNKNOWN, Distance, SiteDiff
from parity.golden.records import LOOP, StepRecords
from parity.hooks.sites import plan_sites
from parity.paths.plan import DEFAULT_KINDS, PLANTED, Changes, Plan
from parity.paths.side import Side
from parity.paths.worker.openers import Openers
from parity.runs.request import Request, Say
from parity.runs.sides import modules_of, reference_spec

Sight = Literal["shown", "hidden", "absent"]
KERNEL = "attention.kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of one kind.

    Attributes:
        kind, meaning: of `parity.hooks.plant.KINDS`. sight: `shown`; `hidden`: planted, and every output is within its
            floor; `absent`: nothing of the kind is in this model's calls. changed: how much it changed.
        noise_pred: how far it moves. site: the first output beyond its floor; empty for none.
    """

    kind: str
    meaning: str
    sight: Sight
    changed: int = 0
    noise_pred: Distance = UNKNOWN
    site: str = ""


def visible(request: Request, openers: Openers, say: Say, kinds: tuple[tuple[str, str], ...]) -> tuple[Seen, ...]:
    """Each kind in turn.

    Args:
        request: its model, inputs, seed and the reference's settings count. kinds: names and meanings.

    Raises:
        UsageError: bad input, or a reference that does not run in torch.
    """
    side = openers.of("reference").open(reference_spec(request))
    try:
        facts = side.facts()
        if KERNEL not in facts.lacks and request.ports.reference is None:
            # torch's own attention, which takes its mask and scale as arguments that a port can lose.
            side.close()
            side = side.patched(Changes(settings={KERNEL: "sdpa"}))
        sites = plan_sites(["", *modules_of(facts)], "all")
        say("the reference and its floors")
        truth = next(iter(side.observe(Plan(sites=sites, floors=DEFAULT_KINDS), steps=(0, 1))))
        found = []
        for number, (kind, meaning) in enumerate(kinds, 1):
            say(f"planting {number} of {len(kinds)}: {kind}")
            found.append(_seen(side, Plan(sites=sites, plant=kind), truth, meaning))
        return tuple(found)
    finally:
        side.close()


def _seen(side: Side, plan: Plan, truth: StepRecords, meaning: str) -> Seen:
    step = next(iter(side.observe(plan, steps=(0, 1))))
    counted = next(r for r in step.records if r.key.site == f"{LOOP}:{PLANTED}")
    changed = round(float(str(counted.value)))
    if not changed:
        return Seen(kind=plan.plant, meaning=meaning, sight="absent")
    rest = StepRecords(step.step, tuple(r for r in step.records if r is not counted))
    sites = Judge().step(truth, rest)
    beyond = [d for d in sites if d.verdict == "fail" and _is_output(d)]
    end = next(d for d in sites if d.key.site == f"{LOOP}:noise_pred" and d.key.branch == "")
    return Seen(
        kind=plan.plant,
        meaning=meaning,
        sight="shown" if beyond else "hidden",
        changed=changed,
        noise_pred=end.distance,
        site=beyond[0].key.site if beyond else "",
    )


def _is_output(d: SiteDiff) -> bool:
    return not d.key.is_input and (d.key.module != LOOP or d.key.port == "noise_pred")
