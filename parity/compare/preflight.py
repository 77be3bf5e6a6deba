"""Preflight: everything that can be compared before a forward is, so that no hour is spent on a wrong schedule.

Pure functions from two sides' facts to checks. A difference that a declared differing setting accounts for is
`explained` and does not fail; a schedule that repeats or turns back, a scheduler that has already stepped, and
different initial noise always fail: nothing computed from them is comparable. Weights and inputs are compared alike
whether two sides are about to run or two goldens lie on disk, of which fingerprints alone are known
(`parity.compare.comparable`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import starmap
from typing import Literal

import numpy as np

from parity.compare.metrics import compare_values
from parity.compare.result import Cause, Check, Group, measured
from parity.errors import shown
from parity.floors import LINF_LIMIT, SCHEDULE_ROUNDING
from parity.golden.fingerprint import ALIKE, WeightPrint
from parity.records import BLOCK, Facts, Schedule, above, any_block
from parity.settings import Difference, Input, changed_by, remedy, sentence
from parity.transforms import CASTS, as_factor, done

TABLE_LIMIT = 1e-4
"""Relative L2 by which rotary tables may differ: libraries' sines differ by 5e-7 at 111,600 tokens (measured by
`parity.hooks.perturb`), a table rounded to bfloat16 by 2e-3."""

ROUNDING_LIMIT = 1e-2
"""Relative L2 beyond which no dtype explains a difference; rounding to bfloat16 moves a tensor by 1.7e-3."""

EMBEDDING_LIMIT = 0.1
"""The same for prompt embeddings: an encoder of many layers, run in bfloat16, adds its roundings up."""

SCHEDULE_LIMIT = LINF_LIMIT * SCHEDULE_ROUNDING
"""By which timesteps and sigmas may differ, relative to the largest, as the largest element of recorded ones may."""


Known = np.ndarray | str
"""A tensor, or the fingerprint of one whose values are not at hand."""


def preflight(reference: Facts, candidate: Facts, differing: Iterable[str]) -> tuple[Check, ...]:
    """Compare two sides before their first forward.

    Args:
        differing: names of the settings in which the two declare to differ.
    """
    declared = frozenset(differing)
    own = reference.own or candidate.own
    other = _other_dtypes(reference, candidate)
    return (
        compare_weights(reference.weights, candidate.weights, declared, own=own, rounded=other if own else ()),
        _dtypes(reference, candidate, other, declared, own=own),
        *_inputs(reference, candidate, declared),
        *_schedule(reference.schedule, candidate.schedule, declared),
        _tables(reference, candidate, declared),
        *([Check("sharding", "pass", candidate.placement)] if candidate.placement else []),
    )


MANY = 1024
"""Values of a parameter from which rounding moves so many that all counters of its fingerprint show it."""

FEW_LIMIT = 1e-4
"""Relative L2 up to which a few values may differ: those next to zero that float16 cannot hold are far below."""

WEIGHTS = "weights"
"""Name of the check of parameters."""


def failed(checks: Sequence[Check]) -> Check | None:
    """The first check that fails."""
    return next((c for c in checks if c.verdict == "fail"), None)


def explained(check: str, detail: str, settings: Iterable[Iterable[str]], declared: Collection[str]) -> Check:
    """A difference: explained if for each part of it one of the settings that bring it is declared."""
    by = [next((s for s in each if s in declared), None) for each in settings]
    if not by or None in by:
        return Check(check, "fail", detail)
    names = ", ".join(dict.fromkeys(str(name) for name in by))
    return Check(check, "explained", f"{detail} (explained by {names})")


Weights = Mapping[str, tuple[tuple[int, ...], str]]
"""Parameter -> (shape, `weight_print`); the shape is () where it is not known."""


def compare_weights(
    a: Weights,
    b: Weights,
    declared: Collection[str],
    *,
    mapped: bool = False,
    own: bool = False,
    rounded: Collection[str] = (),
) -> Check:
    """Compare two sides' parameters.

    Args:
        mapped: whether the two are mapped onto each other, so that one may fuse or split parameters of the other.
        own: whether a side is a port, which may do so too, and hold a parameter in another layout. rounded: those that
            it holds in another dtype: rounded and in another layout they cannot be told from others, and are not
            compared.
    """
    if not a or not b:
        return Check(WEIGHTS, "explained", _unknown("weights were", a, b))
    mapped = mapped or own
    b = {_as_torch(name, x, a, b): x for name, x in b.items()} if own else b
    one_sided, both = a.keys() ^ b.keys(), a.keys() & b.keys()
    prints = {n: (WeightPrint.parse(a[n][1]), WeightPrint.parse(b[n][1])) for n in both}
    unlike = {n for n in both if a[n][0] != b[n][0] and not (own and prints[n][0].same_values(prints[n][1]))}
    if unlike and not mapped:
        first = min(unlike)
        return Check(WEIGHTS, "fail", f"'{first}' has shape {a[first][0]} against {b[first][0]}")
    one_sided, both = one_sided | unlike, both - unlike  # of one name, but another thing
    differ = (n for n in a if n in both and prints[n][0].digits != prints[n][1].digits)  # in their order
    other = [n for n in differ if n not in rounded]
    broken = [n for n in other if prints[n][1].broken and not prints[n][0].broken]
    if broken:
        detail = f"{len(broken)} of {len(a)} parameters hold NaN or infinities in the candidate alone: {few(broken)}"
        return Check(WEIGHTS, "fail", detail, computed=True, at=tuple(broken))
    if not (one_sided or other or rounded):
        return Check(WEIGHTS, "pass", f"{len(a)} parameters equal")
    digits = [Counter((shape, WeightPrint.parse(text).digits) for shape, text in side.values()) for side in (a, b)]
    if not other and digits[0] == digits[1]:
        return Check(WEIGHTS, "explained", f"{len(a)} parameters equal, under other names")
    alone = [Group("", how, tuple(n)) for how, n in ((ONE_SIDED, one_sided), ("of another dtype", rounded)) if n]
    if other and (mapped or not one_sided):
        groups = _grouped({n: prints[n] for n in other}, a, b, own=own)
        if groups is not None:
            if own and one_sided:  # a port may have folded those into these: the sites decide
                groups = [group if group.kind == OTHERS else replace(group, firm=False) for group in groups]
            # A port that has a layout of its own has it in each block.
            laid_out = {n for group in groups if group.kind == LAYOUT for n in group.names}
            far = (group.names for group in groups if group.kind not in NEAR)
            usual = {any_block(n) for n in both.difference(*far)}
            at = tuple(n for n in other if n not in laid_out or any_block(n) in usual)
            check = Check(WEIGHTS, "fail", "", at=at, near=NEAR.get(groups[0].kind, ""), of=len(a))
            return grouped(check, (*groups, *alone))
    values = f"{len(other)} of {len(a)} parameters differ in value: {few(other)}" if other else f"{len(both)} equal"
    detail = "; ".join([values, *(sentence_of(group, "") for group in alone)])
    if one_sided and not mapped:
        return Check(WEIGHTS, "fail", detail)
    if not other:
        return Check(WEIGHTS, "explained", detail)
    return explained(WEIGHTS, detail, [changed_by("weights")], declared)


ONE_SIDED = "parameters on one side only"


def grouped(check: Check, groups: Sequence[Group]) -> Check:
    """A check of parameters that are not equal, which says of each group how."""
    of = ["" if not group.kind else " more" if i else f" of {check.of} parameters" for i, group in enumerate(groups)]
    said = "; ".join(starmap(sentence_of, zip(groups, of, strict=True)))
    firm = any(group.firm for group in groups)
    verdict: Literal["fail", "explained"] = "fail" if firm else "explained"
    return replace(check, verdict=verdict, detail=said, computed=firm, groups=tuple(groups))


def sentence_of(group: Group, of: str) -> str:
    """What a group of parameters is; `of`: what is to stand behind their number."""
    note = f", {shown(group.names[0])} {group.notes[0]}" if group.notes else ""
    return f"{len(group.names)}{of} {group.how}{note}: {few(group.names)}"


def _as_torch(name: str, held: tuple[tuple[int, ...], str], a: Weights, b: Weights) -> str:
    """The name of a parameter that a norm of JAX's calls its scale, where it holds a weight of the reference's, or the
    ones that it was made with: others may be something else, as one more or less than it."""
    module, _, own = name.rpartition(".")
    weight = f"{module}.weight"
    if own != "scale" or name in a or weight in b or weight not in a:
        return name
    ours, theirs = WeightPrint.parse(a[weight][1]), WeightPrint.parse(held[1])
    same = ours.apart(theirs) <= ROUNDING_LIMIT or any(text.startswith(theirs.digits) for _, text in a.values())
    return weight if same or set(theirs.extrema) == {1.0} else name


LAYOUT, VALUES, OTHERS = "another layout", "other values", "of others"


def _grouped(
    other: Mapping[str, tuple[WeightPrint, WeightPrint]], a: Weights, b: Weights, *, own: bool
) -> list[Group] | None:
    """Parameters that are not equal to the bit, by what their numbers say of them, the most wrong first; None where
    these are not known of all.

    Args:
        other: these parameters. a, b, own: see `compare_weights`.
    """
    apart = {n: x.apart(y) for n, (x, y) in other.items()}
    if any(map(math.isnan, apart.values())):
        return None
    named = {WeightPrint.parse(text).digits: n for n, (_, text) in a.items()}
    usual = {any_block(n) for n in a.keys() & b.keys() - other.keys()}
    everywhere = {n for n in other if any_block(n) != n and any_block(n) not in usual}
    found = defaultdict[tuple[bool, str, str], dict[str, str]](dict)
    near: list[str] = []
    for n in sorted(other):
        (x, y), many = other[n], apart[n] > FEW_LIMIT and math.prod(a[n][0]) >= MANY
        few_places, taken, gain = many and x.in_few(y), named.get(y.digits), x.gain(y)
        # Equal numbers of another fingerprint are of another shape, which a golden does not name.
        if not (few_places or a[n][0] != b[n][0] or apart[n] > ROUNDING_LIMIT or apart[n] == 0.0):
            near.append(n)
        elif own and x.same_values(y):
            found[False, LAYOUT, "hold the reference's values in another layout"][n] = ""
        elif gain == 0.0:
            found[True, "zeros", "are zeros"][n] = ""
        elif taken and np.ptp(y.extrema):  # as norms are made with, many are
            found[True, OTHERS, "hold others of the reference's"][n] = f"those of '{taken}'"
        elif x.same_values(y):
            found[True, "another order", "hold the reference's values in another order"][n] = ""
        elif not math.isnan(gain):
            found[not own, "a factor", f"are the reference's times {as_factor(gain)}"][n] = ""
        else:
            found[True, VALUES, "have other values"][n] = f"by {apart[n]:.1%}" + " in a few places" * few_places
    groups = []
    for (firm, kind, how), each in sorted(found.items(), key=lambda item: not item[0][0]):
        names = sorted(each, key=lambda n: -apart[n] if kind == VALUES else 0.0)
        alike = tuple(n for n in names if kind == VALUES and n in everywhere)
        groups.append(Group(kind, how, tuple(names), tuple(each[n] for n in names if each[n]), firm, alike))
    if near:
        most = max(apart[n] for n in near)
        to = _rounded_to(other[n] for n in near) or (ROUNDING if most <= ALIKE else VALUES)
        kind = next(kind for kind, known in NEAR.items() if known == to)
        what = f"the reference's {kind}" if to in CASTS else kind
        how = f"are {what}, {most:.1e} relative apart at most"
        groups.append(Group(kind, how, tuple(near)))
    return groups


ROUNDING = "rounding"
NEAR = {
    "nearly equal": ROUNDING,
    "nearly equal, by no cast to 16 bits": VALUES,
    **{f"rounded to {dtype}": dtype for dtype in CASTS},
}
"""Kind of a group of parameters that are nearly the reference's -> `Check.near`, where all are."""


def _rounded_to(other: Iterable[tuple[WeightPrint, WeightPrint]]) -> str:
    """The dtype in which the candidate's extrema are the reference's, of all parameters; empty for none."""
    ours, theirs = (np.array([x.extrema for x in side]) for side in zip(*other, strict=True))
    moved = not np.array_equal(ours, theirs)
    return next((dtype for dtype, cast in CASTS.items() if moved and np.array_equal(cast(ours), theirs)), "")


Factors = Mapping[str, frozenset[float]]
"""Module -> what its parameters are multiplied by, 1 where they stand in another order. A parameter of a block that has
modules inside, as its table, is as a module beside those: the list of blocks has no code that hands values on."""


def laid_out(a: Weights, b: Weights) -> Factors:
    """The modules whose parameters a port holds in another order, or times a factor: what they make is so too."""
    found: dict[str, set[float]] = {}
    around = {outer for name in a for outer in above(name.rpartition(".")[0])}
    for name in (n for n in a.keys() & b.keys() if a[n][1] != b[n][1]):
        ours, theirs = WeightPrint.parse(a[name][1]), WeightPrint.parse(b[name][1])
        if ours.digits == theirs.digits or (a[name][0] == b[name][0] and not ours.apart(theirs) > ROUNDING_LIMIT):
            continue
        factor = 1.0 if ours.same_values(theirs) else ours.gain(theirs)
        if factor and not math.isnan(factor):
            module = name.rpartition(".")[0]
            of_block = module in around and re.search(f"{BLOCK}$", module) is not None
            found.setdefault(name if of_block else module, set()).add(factor)
    return {module: frozenset(factors) for module, factors in found.items()}


def factors_at(module: str, factors: Factors) -> frozenset[float]:
    """The factors that may be in the values of a module: those of its own parameters, and 1 or those of a module beside
    or around it, whose values the code of the module around both hands on."""
    found = set(factors.get(module, ()))
    for other, own in factors.items():
        around = other.rpartition(".")[0]
        if around and module.startswith(f"{around}."):
            found |= {1.0, *own}
    return frozenset(found)


def _how(name: str, x: Known, y: Known, apart: float) -> str:
    if isinstance(x, str) and isinstance(y, str):
        return f"({x} against {y})"
    if "mask" in name and not isinstance(x, str) and not isinstance(y, str):
        valid = [f"{int((mask > 0).sum())} of {mask.size}" for mask in (x, y)]
        if valid[0] != valid[1]:
            return f"({valid[0]} valid tokens against {valid[1]})"
    return f"by {apart:.2e} relative L2"


ABSENT = "not recorded"
"""What stands for a setting or an input that one golden does not name."""


def _apart(x: Known | None, y: Known | None) -> float:
    """Relative L2; NaN where two fingerprints differ, so that nobody knows how far; inf where a side lacks a tensor."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return relative(x, y)
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return math.inf
    return 0.0 if x == y else math.nan


def _unknown(what: str, ours: Sized, theirs: Sized) -> str:
    """The sentence for what one side has no fingerprints of."""
    sides = [side for side, prints in (("reference", ours), ("candidate", theirs)) if not prints]
    return f"{what} not fingerprinted on the {' and the '.join(sides)}: taken for equal"


def few(names: Iterable[str]) -> str:
    """The first three names, in order; empty for none."""
    names = sorted(names)
    return ", ".join(map(shown, names[:3])) + (", ..." if len(names) > 3 else "")


def _other_dtypes(a: Facts, b: Facts) -> list[str]:
    return [n for n, dtype in a.dtypes.items() if n in b.dtypes and _kind_of(b.dtypes[n]) != _kind_of(dtype)]


def _dtypes(a: Facts, b: Facts, other: Sequence[str], declared: frozenset[str], *, own: bool) -> Check:
    """Compare the dtypes of parameters; those of a port are its own, and the sites decide.

    Args:
        other: the parameters that have another.
    """
    if not other:
        return Check("parameter dtypes", "pass", ", ".join(sorted(set(a.dtypes.values()))))
    n = other[0]
    detail = f"{len(other)} parameters differ; first: '{n}' is {a.dtypes[n]} against {b.dtypes[n]}"
    if own:
        return Check("parameter dtypes", "explained", f"{detail}: the sites decide")
    return explained("parameter dtypes", detail, [changed_by("weights")], declared)


def _kind_of(dtype: str) -> str:
    """A dtype; of whole numbers, whose values are compared, any width: JAX has none of 64 bits by default."""
    return "integers" if re.fullmatch(r"u?int\d+", dtype) else dtype


EMBEDDINGS = "prompt embeddings"
_CHANGES = {"hidden_states": changed_by("embeddings"), "image_embeds": changed_by("image embeddings")}
_KINDS: tuple[tuple[str, Mapping[str, tuple[str, ...]], float], ...] = (
    (EMBEDDINGS, _CHANGES, EMBEDDING_LIMIT),
    ("prompt masks", {"attention_mask": changed_by("masks")}, 0.0),  # ones and zeros in every dtype
    ("prompt tokens", {"input_ids": ()}, math.inf),
    ("initial noise", {"noise": changed_by("noise")}, ROUNDING_LIMIT),
    ("other inputs", {"": ()}, math.inf),
)
"""Name of a kind of inputs, part of an input's name -> the settings that may change it, and the relative L2 that these
can explain. An input is of the first kind that fits."""


def compare_inputs(a: Mapping[str, Known], b: Mapping[str, Known], declared: Collection[str]) -> Iterator[Check]:
    """Compare two sides' inputs, kind by kind."""
    if not a or not b:
        yield Check("inputs", "explained", _unknown("inputs were", a, b))
        return
    names = dict.fromkeys((*a, *b))
    for check, kind, most in _KINDS:
        changes = {n: settings for n in names for part, settings in kind.items() if part in n}
        names = {n: None for n in names if n not in changes}
        ours, theirs = ({n: side[n] for n in changes if n in side} for side in (a, b))
        apart = {n: _apart(ours.get(n), theirs.get(n)) for n in changes}
        other = [n for n in changes if apart[n] != 0.0]
        prints = [sorted(x for x in side.values() if isinstance(x, str)) for side in (ours, theirs)]
        if changes and not other:
            yield Check(check, "pass", f"{len(ours)} equal")
        elif ours.keys() != theirs.keys() and len(prints[0]) == len(ours) and prints[0] == prints[1]:
            yield Check(check, "explained", f"{len(ours)} tensors equal under other names; first: {shown(min(other))}")
        elif changes:
            worst = max(other, key=lambda n: -1.0 if math.isnan(apart[n]) else apart[n])
            x, y = (side.get(worst, ABSENT) for side in (ours, theirs))
            detail = f"{shown(worst)} differs {_how(worst, x, y, apart[worst])}"
            if len(changes) > 1:
                detail = f"{len(other)} of {len(changes)} differ: {few(other)}; {detail}"
            # What no number is known of may be any rounding; a value that one side lacks is none.
            yield explained(check, detail, [() if apart[n] > most else changes[n] for n in other], declared)


def _inputs(a: Facts, b: Facts, declared: frozenset[str]) -> Iterator[Check]:
    ours, theirs = ({**{n: x.values for n, x in s.inputs.items()}, "noise": s.noise} for s in (a, b))
    for check in compare_inputs(ours, theirs, declared):
        judged = check.check == EMBEDDINGS and a.encoded and b.encoded and a.inputs.keys() == b.inputs.keys()
        if judged and check.verdict != "pass":
            check = Check(check.check, "pass", f"each side's own, judged in the text stage: {check.detail}")
        yield check


def _schedule(a: Schedule, b: Schedule, declared: frozenset[str]) -> list[Check]:
    sides = (("reference", a), ("candidate", b))
    checks = [_walkable(side, schedule) for side, schedule in sides]
    for name, x, y in (("timesteps", a.timesteps, b.timesteps), ("sigmas", a.sigmas, b.sigmas)):
        if x.shape != y.shape:
            checks.append(Check(name, "fail", f"{x.size} against {y.size}"))
            continue
        apart = np.abs(x - y) / max(np.abs(x).max(initial=0.0), 1e-12)
        at = int(np.argmax(apart))
        if apart[at] <= SCHEDULE_LIMIT:
            checks.append(Check(name, "pass", f"{x.size} equal, {x[0]:g} to {x[-1]:g}"))
        else:
            made = done(x, y)
            detail = f"differ most at {at}: {x[at]:g} against {y[at]:g}" + (f"; {made}" if made else "")
            checks.append(explained(name, detail, [changed_by("schedule")], declared))
    state: Input = "scheduler state"
    moved = [(side, schedule.step_index) for side, schedule in sides if schedule.step_index not in (None, 0)]
    why = "warm-up calls moved it or equal first timesteps, of which diffusers' schedulers begin at the second"
    for side, at in moved:
        detail = f"the {side}'s scheduler already stands at step {at} before step 0: {why}; set_begin_index(0)"
        checks.append(Check(state, "fail", detail, by=_settings_of(side, state)))
    return checks if moved else [*checks, Check(state, "pass", "both stand before step 0")]


def _settings_of(side: str, what: Input) -> tuple[str, ...]:
    """The settings that a side's own failure may come from: a cause is the candidate's."""
    return changed_by(what) if side == "candidate" else ()


def _walkable(side: str, schedule: Schedule) -> Check:
    """Timesteps strictly fall, sigmas strictly fall, and the steps between them add up to their fall to the end."""
    name = f"{side} schedule"
    t, sigma = schedule.timesteps, schedule.sigmas
    if not (np.isfinite(t).all() and np.isfinite(sigma).all()):
        return Check(name, "fail", "timesteps or sigmas are not finite")
    if repeats := _repeats(t):
        return Check(name, "fail", f"timesteps repeat: {repeats}", by=_settings_of(side, "schedule"))
    for what, x in (("timesteps", t), ("sigmas", sigma)):
        if (rising := np.flatnonzero(np.diff(x) >= 0)).size:
            i = int(rising[0])
            return Check(name, "fail", f"{what} do not fall from {x[i]:g} to {x[i + 1]:g} at step {i + 1}")
    total, expected = float(np.diff(sigma).sum()), float(schedule.end - sigma[0])
    if abs(total - expected) > 1e-5:
        return Check(name, "fail", f"the steps dt sum to {total:.6f}, not {expected:.6f}")
    return Check(name, "pass", f"{t.size} timesteps, {t[0]:g} to {t[-1]:g}; dt sums to {total:.6f}")


def _repeats(t: np.ndarray) -> str:
    """Which timesteps repeat: `1000 (steps 0, 1), 996 (steps 2, 3, 4)`, and so on."""
    values, counts = np.unique(t, return_counts=True)
    many = sorted(values[counts > 1], reverse=True)
    each = [f"{v:g} (steps {', '.join(map(str, np.flatnonzero(t == v)))})" for v in many[:8]]
    return ", ".join(each) + ", ..." * (len(many) > 8)


def causes_of(check: Check, differing: Iterable[Difference]) -> Iterator[Cause]:
    """The declared settings that a failing check comes from."""
    for d in (d for d in differing if d.setting in check.by):
        text, fix = sentence(d.setting, d.candidate), remedy(d.setting)
        yield measured(text, d.setting, d.reference, d.candidate, detail=check.detail, fix=fix)


def _tables(a: Facts, b: Facts, declared: frozenset[str]) -> Check:
    if a.own or b.own:
        return Check("rotary tables", "pass", "not compared: a port's are inside its call")
    if a.tables.keys() != b.tables.keys():
        return Check("rotary tables", "fail", f"only one side has '{min(a.tables.keys() ^ b.tables.keys())}'")
    if not a.tables:
        return Check("rotary tables", "pass", "the model has none outside its forward")
    apart = {n: relative(x, b.tables[n]) for n, x in a.tables.items()}
    name, worst = max(apart.items(), key=lambda item: item[1])
    if worst <= TABLE_LIMIT:
        return Check("rotary tables", "pass", f"differ by {worst:.1e} at most")
    detail = f"'{name}' differs by {worst:.2e} relative L2"
    settings = changed_by("rotary tables") if worst <= ROUNDING_LIMIT else ()
    return explained("rotary tables", detail, [settings], declared)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """||b - a|| / ||a||, inf where shapes differ or one is not finite where the other is, 0 for equal arrays (zeros
    and NaNs included)."""
    if a.shape != b.shape:
        return float("inf")
    far, scale, *_ = compare_values(a, b)
    if far == 0.0:
        return 0.0
    return far / scale if scale > 0 and math.isfinite(far) else math.inf
