"""Preflight: everything that can be compared before a forward is, so that no hour is spent on a wrong schedule.

Pure functions from two sides' facts to checks. A difference that a declared differing setting accounts for is
`explained` and does not fail; a schedule that repeats or turns back, a scheduler that has already stepped, and
different initial noise always fail: nothing computed from them is comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from parity.compare.result import Check
from parity.golden.facts import Facts, Schedule
from parity.golden.fingerprint import fingerprint
from parity.settings import changed_by

TABLE_LIMIT = 1e-4
"""Relative L2 by which rotary tables may differ: libraries' sines differ by 5e-7 at 111,600 tokens (measured by
`parity.paths.perturb`), a table rounded to bfloat16 by 2e-3."""

ROUNDING_LIMIT = 1e-2
"""Relative L2 beyond which no dtype explains a difference; rounding to bfloat16 moves a tensor by 1.7e-3."""

EMBEDDING_LIMIT = 0.1
"""The same for prompt embeddings: an encoder of many layers, run in bfloat16, adds its roundings up."""

SCHEDULE_LIMIT = 2.0**-22
"""Relative difference by which timesteps and sigmas may differ: two roundings of float32."""


def preflight(reference: Facts, candidate: Facts, differing: Iterable[str]) -> tuple[Check, ...]:
    """Compare two sides before their first forward.

    Args:
        differing: names of the settings in which the two declare to differ.
    """
    declared = frozenset(differing)
    return (
        _weights(reference, candidate, declared),
        _dtypes(reference, candidate, declared),
        *_inputs(reference, candidate, declared),
        _noise(reference, candidate, declared),
        *_schedule(reference.schedule, candidate.schedule, declared),
        _tables(reference, candidate, declared),
        *([Check("sharding", "pass", candidate.placement)] if candidate.placement else []),
    )


def failed(checks: Sequence[Check]) -> Check | None:
    """The first check that fails."""
    return next((c for c in checks if c.verdict == "fail"), None)


def _explained(check: str, detail: str, settings: Iterable[str], declared: frozenset[str]) -> Check:
    """A difference: explained if one of the settings that bring it is declared."""
    by = [s for s in settings if s in declared]
    if by:
        return Check(check, "explained", f"{detail} (explained by {', '.join(by)})")
    return Check(check, "fail", detail)


def _weights(a: Facts, b: Facts, declared: frozenset[str]) -> Check:
    if (a.own or b.own) and set(a.weights) != set(b.weights):
        return Check("weights", "pass", "not compared: the port names its parameters otherwise")
    missing = sorted(set(a.weights) - set(b.weights))
    extra = sorted(set(b.weights) - set(a.weights))
    if missing or extra:
        what = f"{len(missing)} parameters only on the reference, {len(extra)} only on the candidate"
        return Check("weights", "fail", f"{what}; first: '{(missing + extra)[0]}'")
    shapes = [n for n, (shape, _) in a.weights.items() if shape != b.weights[n][0]]
    if shapes:
        n = shapes[0]
        return Check("weights", "fail", f"'{n}' has shape {a.weights[n][0]} against {b.weights[n][0]}")
    other = [n for n, w in a.weights.items() if w != b.weights[n]]
    if other:
        detail = f"{len(other)} of {len(a.weights)} parameters differ in value; first: '{other[0]}'"
        return _explained("weights", detail, changed_by("weights"), declared)
    return Check("weights", "pass", f"{len(a.weights)} parameters equal")


def _dtypes(a: Facts, b: Facts, declared: frozenset[str]) -> Check:
    other = [n for n, dtype in a.dtypes.items() if n in b.dtypes and b.dtypes[n] != dtype]
    if not other:
        return Check("parameter dtypes", "pass", ", ".join(sorted(set(a.dtypes.values()))))
    n = other[0]
    detail = f"{len(other)} parameters differ; first: '{n}' is {a.dtypes[n]} against {b.dtypes[n]}"
    return _explained("parameter dtypes", detail, changed_by("weights"), declared)


def _inputs(a: Facts, b: Facts, declared: frozenset[str]) -> list[Check]:
    return [_embeddings(a, b, declared), _masks(a, b)]


def _embeddings(a: Facts, b: Facts, declared: frozenset[str]) -> Check:
    title = "prompt embeddings"
    ours, theirs = ({n: x for n, x in f.inputs.items() if "attention_mask" not in n} for f in (a, b))
    if ours.keys() != theirs.keys():
        return Check(title, "fail", f"only one side has '{min(ours.keys() ^ theirs.keys())}'")
    apart = {n: relative(x, theirs[n]) for n, x in ours.items()}
    other = [n for n, r in apart.items() if r > 0]
    if not other:
        return Check(title, "pass", f"{len(ours)} tensors equal")
    worst = max(other, key=lambda n: apart[n])
    detail = f"{len(other)} of {len(ours)} differ, '{worst}' most, by {apart[worst]:.2e} relative L2"
    if a.encoded and b.encoded:
        return Check(title, "pass", f"each side's own, judged in the text stage: {detail}")
    settings = changed_by("embeddings") if apart[worst] <= EMBEDDING_LIMIT else ()
    return _explained(title, detail, settings, declared)


def _masks(a: Facts, b: Facts) -> Check:
    """Masks are zeros and ones in every dtype: no setting explains another."""
    ours, theirs = ({n: x for n, x in f.inputs.items() if "attention_mask" in n} for f in (a, b))
    if ours.keys() != theirs.keys():
        return Check("prompt masks", "fail", f"only one side has '{min(ours.keys() ^ theirs.keys())}'")
    for name, x in ours.items():
        if relative(x, theirs[name]) > 0:
            detail = f"'{name}' has {int((x > 0).sum())} valid tokens against {int((theirs[name] > 0).sum())}"
            return Check(
                "prompt masks", "fail", detail if x.shape == theirs[name].shape else f"'{name}' differs in shape"
            )
    valid = [f"{n.replace('encoder_attention_', '')} {int((x > 0).sum())} of {x.size}" for n, x in ours.items()]
    return Check("prompt masks", "pass", f"{len(ours)} tensors equal; valid tokens: {', '.join(valid)}")


def _noise(a: Facts, b: Facts, declared: frozenset[str]) -> Check:
    r = relative(a.noise, b.noise)
    if r == 0:
        return Check("initial noise", "pass", f"equal, fingerprint {fingerprint(a.noise)}")
    detail = f"differs by {r:.2e} relative L2"
    if r <= ROUNDING_LIMIT:
        return _explained("initial noise", detail, changed_by("noise"), declared)
    detail += ": this is other noise; give both sides the same seed and noise.device=cpu"
    return Check("initial noise", "fail", detail)


def _schedule(a: Schedule, b: Schedule, declared: frozenset[str]) -> list[Check]:
    checks = [_walkable("reference", a), _walkable("candidate", b)]
    for name, x, y in (("timesteps", a.timesteps, b.timesteps), ("sigmas", a.sigmas, b.sigmas)):
        if x.shape != y.shape:
            checks.append(Check(name, "fail", f"{x.size} against {y.size}"))
            continue
        apart = np.abs(x - y) / np.maximum(np.abs(x), 1e-12)
        at = int(np.argmax(apart))
        if apart[at] <= SCHEDULE_LIMIT:
            checks.append(Check(name, "pass", f"{x.size} equal, {x[0]:g} to {x[-1]:g}"))
        else:
            detail = f"differ most at {at}: {x[at]:g} against {y[at]:g}"
            checks.append(_explained(name, detail, changed_by("schedule"), declared))
    for side, schedule in (("reference", a), ("candidate", b)):
        if schedule.step_index not in (None, 0):
            detail = f"the {side}'s scheduler already stands at step {schedule.step_index} before step 0"
            checks.append(Check("scheduler state", "fail", detail + ": warm-up calls moved it; reset it after them"))
    if not any(c.check == "scheduler state" for c in checks):
        checks.append(Check("scheduler state", "pass", "both stand before step 0"))
    return checks


def _walkable(side: str, schedule: Schedule) -> Check:
    """Timesteps strictly fall, sigmas strictly fall, and the steps between them add up to their fall to the end."""
    name = f"{side} schedule"
    t, sigma = schedule.timesteps, schedule.sigmas
    if not (np.isfinite(t).all() and np.isfinite(sigma).all()):
        return Check(name, "fail", "timesteps or sigmas are not finite")
    repeats = _repeats(t)
    if repeats:
        return Check(name, "fail", f"timesteps repeat: {repeats}")
    rising = np.flatnonzero(np.diff(t) >= 0)
    if rising.size:
        i = int(rising[0])
        return Check(name, "fail", f"timesteps rise from {t[i]:g} to {t[i + 1]:g} at step {i + 1}")
    dt = np.diff(sigma)
    if (dt >= 0).any():
        i = int(np.flatnonzero(dt >= 0)[0])
        return Check(name, "fail", f"dt at step {i} is {dt[i]:g}: sigmas {sigma[i]:g} and {sigma[i + 1]:g}")
    total, expected = float(dt.sum()), float(schedule.end - sigma[0])
    if abs(total - expected) > 1e-5:
        return Check(name, "fail", f"the steps dt sum to {total:.6f}, not {expected:.6f}")
    return Check(name, "pass", f"{t.size} steps fall from {t[0]:g} to {t[-1]:g}; dt sums to {total:.6f}")


def _repeats(t: np.ndarray) -> str:
    """Which timesteps repeat: `1000 (steps 0, 1), 996 (steps 2, 3, 4)`, at most eight of them."""
    values, counts = np.unique(t, return_counts=True)
    many = sorted(values[counts > 1], reverse=True)
    shown = [f"{v:g} (steps {', '.join(str(i) for i in np.flatnonzero(t == v))})" for v in many[:8]]
    more = f", and {len(many) - 8} more" if len(many) > 8 else ""
    return ", ".join(shown) + more


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
    return _explained("rotary tables", detail, settings, declared)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """||b - a|| / ||a||, inf where shapes differ or a NaN is met, 0 for equal arrays (zeros included)."""
    if a.shape != b.shape:
        return float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    apart = float(np.linalg.norm(y - x))
    if apart == 0:
        return 0.0
    scale = float(np.linalg.norm(x))
    return apart / scale if scale > 0 and np.isfinite(apart) else float("inf")
