"""Local errors beside the propagated ones, the births they decide, and where an agreeing run needs one.

Where a module was run on the reference's own inputs, its local error against its local floor says whether its own
arithmetic differs: no other evidence is needed for a birth, and without it there is none in that module.

Floors of the free run hold what rounding grows to on its way through the network: on a tiny Wan one block's floor is
8e-6 where the block's own rounding is 2e-7, so an error of 1.5e-5, 60 times what it may be, is within three floors
there. A site above its floor, though not beyond its limits, and well above what came into its module, is `doubtful`:
its module's local error then decides, and doubt alone fails nothing. numpy only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parity.compare.births import (
    BIN_LIMIT,
    L2_LIMIT,
    ONE_SIDED,
    Excuse,
    above,
    call_of,
    excused,
    input_severities,
    severity,
)
from parity.compare.metrics import bin_ratios, distance, measure
from parity.compare.result import NAN, Birth, Distance, SiteDiff
from parity.records import LOOP, Key, Record, StepRecords

DOUBT = 1.0
"""Severity from which a site of an agreeing run is suspect: above its floor. Of innocent pairs in float32 hardly a site
is (benchmarks/results/fault-bench.md: the largest ratio of all variants is 1.04)."""

GROWTH = 3.0
"""How much above its inputs: a block that only hands on what it was given has a ratio like theirs."""

MOST = 4
"""Modules that are run at most in a second look; each costs the candidate a compilation."""

FARTHER = 2.0
"""How much farther than in the run a module run alone must be for the run to speak against it. What a module does wrong
is in its output in the run too, where inputs that differ add to it and now and then cancel a part: of the fault bench's
modules with a fault, in bfloat16, one is 3.2 times as far alone. So this opens a question and decides nothing."""

CONTRADICTED = "only its program compiled alone differs: the run agrees, and so does the module run eagerly"

BORN: tuple[Birth, ...] = ("input", "module")


@dataclass(frozen=True, slots=True)
class Local:
    """The local error at one output.

    Attributes:
        distance: of the candidate's output from the truth's, fed the same inputs. beyond: whether above its floor in
            L2 or in a row bin. note: what cannot be measured, such as another shape, or what was done to it.
    """

    distance: Distance
    beyond: bool
    note: str = ""


def local_errors(truth: StepRecords, candidate: Sequence[Record]) -> dict[Key, Local]:
    """The local errors of one module call; padded rows never decide."""
    theirs = {r.key: r for r in candidate}
    found: dict[Key, Local] = {}
    for record in truth.records:
        if record.kind != "tensor" or record.key.is_apart:
            continue
        other = theirs.get(record.key)
        measured = None if other is None or other.kind != "tensor" else measure(record, other)
        if measured is None:
            found[record.key] = Local(Distance(NAN, NAN, float("inf")), True, "it cannot be compared")
            continue
        floor = truth.floors.get(record.key)
        far = distance(measured, floor)
        bins = bin_ratios(measured, floor)
        inside = far.ratio <= L2_LIMIT and not any(b > BIN_LIMIT for b in bins)
        found[record.key] = Local(far, not inside)
    return found


def contradicted(sites: Iterable[SiteDiff], found: Mapping[Key, Local]) -> frozenset[Key]:
    """The outputs beyond their local floors that agree in the run itself, and are far nearer there."""
    near = {d.key: d.distance.rel_l2 for d in sites if d.verdict == "pass" and d.distance.rel_l2 == d.distance.rel_l2}
    return frozenset(
        key
        for key, local in found.items()
        if local.beyond and key in near and local.distance.rel_l2 > FARTHER * near[key]
    )


def believed(found: Mapping[Key, Local], against: Collection[Key], eagerly: Mapping[Key, Local]) -> dict[Key, Local]:
    """Local errors without those that two witnesses speak against: the run itself, and the module run eagerly.

    A program compiled for a module alone may be another than the run's (XLA on a CPU fuses CogView4's rotary update
    wrongly in such a program), and then tells nothing of the run. A fault in the module's code is in it run eagerly
    too; one that only compiling brings is in the run.

    Args:
        found: of the module compiled alone. against: `contradicted`. eagerly: its local errors run eagerly.
    """
    kept = dict(found)
    for key in against:
        if key in eagerly and not eagerly[key].beyond:
            kept[key] = replace(found[key], beyond=False, note=CONTRADICTED)
    return kept


def with_local(
    sites: Sequence[SiteDiff], found: Mapping[Key, Local], excuses: Sequence[Excuse] = ()
) -> tuple[SiteDiff, ...]:
    """The judged sites of a step with their local errors, which decide where anything was run alone.

    An output of a module that was run alone is born where its local error is beyond its floor, and only there. Inside
    such a module the births of the free run stand where its own error is beyond and no module run alone inside it
    accounts for that: they then say where in the module's own code. Where it agrees by itself, what differs at an input
    came in; a call that cannot be run alone (attention) and whose inputs agree still tells of itself, since what is
    around it dilutes its error. What no module run alone covers (the top module's own code, the loop) stays as the free
    run has it, and so does what one side never called, of which a call of its own says nothing.

    Args:
        sites: in execution order; a site lies in the call of a module that ends next behind it.
    """
    around = _around(sites, found)
    failing = {_call(key) for key, local in found.items() if local.beyond}
    explained = {
        call
        for d, calls in zip(sites, around, strict=True)
        if _decided(d, found) and found[d.key].beyond
        for call in calls
    }
    judged = []
    for d, calls in zip(sites, around, strict=True):
        if _decided(d, found):
            d = _site(d, found[d.key], excuses)
        elif d.birth in BORN and calls:
            own = d.birth == "module" and d.note != ONE_SIDED
            stands = calls[0] not in explained if calls[0] in failing else own
            d = d if stands else replace(d, birth="propagated")
        judged.append(d)
    return tuple(judged)


def suspect(origin: Key, found: Mapping[Key, Local]) -> str | None:
    """The module whose own error is beyond its floor that an origin is an output of or lies in; None for none."""
    run = {k.module for k in found if (k.step, k.branch) == (origin.step, origin.branch)}
    place = _place(origin, run)
    return place if place is not None and first_beyond(found, (place,), origin) is not None else None


def first_beyond(found: Mapping[Key, Local], modules: Collection[str], like: Key) -> Key | None:
    """The first output beyond its local floor of these modules, in the step and branch of `like`."""
    where = (like.step, like.branch)
    outputs = (k for k, local in found.items() if local.beyond and (k.step, k.branch) == where)
    return next((k for k in outputs if k.module in modules), None)


def first_within(sites: Iterable[SiteDiff], failing: Key, found: Mapping[Key, Local]) -> SiteDiff | None:
    """The first birth in the own code of a module: in it, and in no module inside it that was run alone.

    Args:
        failing: an output of the module, whose step and branch count.
    """
    run = {k.module for k in found if (k.step, k.branch) == (failing.step, failing.branch)}
    for d in sites:
        same = (d.key.step, d.key.branch) == (failing.step, failing.branch)
        if same and d.verdict == "fail" and d.birth in BORN and _place(d.key, run) == failing.module:
            return d
    return None


def _site(d: SiteDiff, local: Local, excuses: Sequence[Excuse]) -> SiteDiff:
    d = replace(d, local=local.distance, note=d.note or local.note)
    if local.beyond:
        return replace(
            d, birth="module", verdict="harmless" if excused(d.key, local.distance.rel_l2, excuses) else "fail"
        )
    # Its own arithmetic agrees: what differs in the free run came in with its inputs.
    return replace(d, birth="propagated") if d.birth == "module" else d


def _decided(d: SiteDiff, found: Mapping[Key, Local]) -> bool:
    return d.key in found and d.note != ONE_SIDED


def _around(sites: Sequence[SiteDiff], found: Mapping[Key, Local]) -> list[list[_Call]]:
    """The calls of modules run alone that each site lies in, the innermost first; a call's outputs not in itself."""
    ends: dict[tuple[str, str], _Call] = {}
    around = []
    for d in reversed(sites):
        branch = d.key.branch
        around.append([ends[branch, m] for m in above(d.key.module) if (branch, m) in ends])
        if d.key in found:
            ends[branch, d.key.module] = _call(d.key)
    return around[::-1]


def _place(key: Key, run: Collection[str]) -> str | None:
    """The module run alone that a site is an output of, else the nearest around it."""
    inside = () if key.is_input else (key.module,)
    return next((m for m in (*inside, *above(key.module)) if m in run), None)


_Call = tuple[str, str, int]


def _call(key: Key) -> _Call:
    return key.branch, key.module, key.call


def doubtful(sites: Sequence[SiteDiff], modules: Collection[str]) -> tuple[str, ...]:
    """The modules, of those that can be run alone, whose own error should be measured; in execution order.

    Args:
        sites: of one step, judged, none of them beyond its limits. modules: by path, without the top one.
    """
    inputs = input_severities(sites)
    seen: dict[str, float] = {}
    found: list[str] = []
    for d in sites:
        if d.key.is_apart or d.key.module == LOOP or d.verdict != "pass":
            continue
        mine = severity(d)
        before = max(seen.get(d.key.branch, 0.0), seen.get("", 0.0))
        given = before if d.key.is_input else inputs.get(call_of(d.key), before)
        seen[d.key.branch] = max(before, mine)
        if mine <= DOUBT or mine <= GROWTH * given:
            continue
        inner = d.key.module.rpartition(".")[0] if d.key.is_input else d.key.module
        module = _nearest(inner, modules)
        if module and module not in found:
            found.append(module)
    return tuple(found[:MOST])


def _nearest(module: str, modules: Collection[str]) -> str:
    """This module or the nearest above it that can be run alone; an attention call's is the module that makes it."""
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return module
