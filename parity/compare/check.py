"""One golden against what a test computed: the comparison behind the pytest plugin's `golden` fixture.

Problem. A test hands over arrays or records and wants one answer: as it was, or not, and where it starts. Unlike a
recording of a model, a test often has no floors.

How. Records become steps (`as_steps`); what is compared with what is decided by key, and a record of any kind that
only one side has is a difference. A site with a floor is judged as `parity diff` judges it. A site without one must
be bit-equal, or, where the test gives `rtol`, within that relative L2. Nothing to compare is no agreement.

Cost. Memory of the records; values up to `VALUES` elements are held, larger ones as sketches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.compare.collected import Collected
from parity.compare.conclude import conclude
from parity.compare.judge import L2_LIMIT, Judge
from parity.compare.metrics import measure
from parity.compare.result import Distance, Origin, SiteDiff
from parity.errors import UsageError
from parity.golden.records import Floor, Key, Record, StepRecords
from parity.golden.sketch import geometry, sketch
from parity.golden.values import moments_of

STAGE = "test"
"""Stage of the records made from a test's arrays."""

VALUES = 1 << 16
"""Elements of an array at most whose values are held: 256 KB of float32. Larger ones are held as sketches."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        reason: one sentence; empty where all agrees. origin: where the difference starts, None where unknown.
        worst: the sites that differ, largest ratio to their limit first.
        limits: by key, the relative L2 that was allowed at a site; NaN where the values are not comparable.
    """

    reason: str = ""
    origin: Origin | None = None
    worst: tuple[SiteDiff, ...] = ()
    limits: Mapping[Key, float] | None = None


def as_steps(
    given: StepRecords | Sequence[Record] | Mapping[str, Any],
    floors: Mapping[str | Key, Floor | float] | None = None,
) -> tuple[StepRecords, ...]:
    """What a test hands over, as steps of records.

    Args:
        given: one step; records of any steps; or arrays (and None, numbers, strings) by name.
        floors: by name or key, what rounding alone explains: a `Floor`, or its absolute L2 norm.

    Raises:
        UsageError: nothing was given; a value is neither; a floor names no record.
    """
    if isinstance(given, StepRecords):
        steps = [given]
    else:
        records = _from_mapping(given) if isinstance(given, Mapping) else list(given)
        unknown = next((r for r in records if not isinstance(r, Record)), None)
        if unknown is not None:
            raise UsageError(f"golden.check takes records or arrays by name, found a {type(unknown).__name__}")
        steps = [
            StepRecords(step, tuple(held))
            for step, held in itertools.groupby(sorted(records, key=lambda r: r.key.step), lambda r: r.key.step)
        ]
    if not any(step.records for step in steps):
        raise UsageError("golden.check was given nothing to compare")
    return tuple(_with_floors(steps, floors or {}))


def _from_mapping(given: Mapping[str, Any]) -> list[Record]:
    records = []
    for name, x in given.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"golden.check takes arrays by name, found the name {name!r}")
        site = name if ":" in name else f"{name}:value"
        key = Key(STAGE, 0, "", site)
        if key.is_apart:
            raise UsageError(
                f"the name '{name}' ends in @{key.port.rpartition('@')[2]}, which is never judged: name it otherwise"
            )
        records.append(_from_value(key, x))
    return records


def _from_value(key: Key, x: Any) -> Record:
    if x is None:
        return Record(key, "none")
    if isinstance(x, bool | int | str) and not isinstance(x, np.generic):
        return Record(key, "scalar", dtype=type(x).__name__, value=x)
    array, dtype = _as_array(key, x)
    g = geometry(array.shape)
    held = array if array.size <= VALUES else None
    return Record(key, "tensor", array.shape, dtype, "", (g.rows, g.channels), moments_of(array), sketch(array), held)


def _as_array(key: Key, x: Any) -> tuple[np.ndarray, str]:
    """Values and dtype; bfloat16 of torch or ml_dtypes as float32, which holds it exactly."""
    if hasattr(x, "detach"):  # torch: no gradients, on the host
        x = x.detach().cpu()
        if str(x.dtype) == "torch.bfloat16":
            return np.asarray(x.float()), "bfloat16"
    if not isinstance(x, float | np.generic) and not hasattr(x, "__array__"):
        raise UsageError(f"'{key.site}' is a {type(x).__name__}: golden.check takes arrays, numbers, strings and None")
    array = np.asarray(x)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32), "bfloat16"
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise UsageError(f"'{key.site}' has the dtype {array.dtype}, which a golden cannot hold; split or convert it")
    return array, array.dtype.name


def _with_floors(steps: Iterable[StepRecords], floors: Mapping[str | Key, Floor | float]) -> Iterable[StepRecords]:
    left = dict(floors)
    for step in steps:
        added = {}
        for record in step.records:
            for name in (record.key, record.key.site, record.key.module):
                if name in floors:
                    value = floors[name]
                    added[record.key] = value if isinstance(value, Floor) else Floor(float(value))
                    left.pop(name, None)
                    break
        yield replace(step, floors={**step.floors, **added})
    if left:
        raise UsageError(f"floors names {next(iter(left))!s}, which is not among the records")


def check(golden: Sequence[StepRecords], given: Sequence[StepRecords], *, rtol: float | None = None) -> Checked:
    """Compare what a test computed with its golden.

    Args:
        golden: with the floors it was made with. given: the same steps, today.
        rtol: relative L2 allowed where the golden holds no floor; None for bit equality there.

    Raises:
        UsageError: `rtol` is no positive number; equality is asked of what only a sketch is held of.
    """
    if rtol is not None and not (math.isfinite(rtol) and rtol > 0):
        raise UsageError(f"rtol must be a positive number, found {rtol}")
    require_values(golden, rtol)
    if one_sided := _one_sided(golden, given):
        return Checked(one_sided)
    collected, floors = Collected(), {key for step in golden for key in step.floors}
    judge = Judge()
    odd: list[SiteDiff] = []
    limits: dict[Key, float] = {}
    agreed = 0
    for ours, theirs in zip(golden, given, strict=True):
        left, theirs, unlike = _open(ours, theirs, exact=rtol is None)
        agreed += len(ours.records) - len(left.records) - len(unlike)
        odd += unlike
        filled = _filled(left, rtol or 0.0)
        sites = judge.step(filled, theirs)
        limits |= {d.key: L2_LIMIT * d.distance.floor for d in sites}
        collected.add(filled, theirs, sites)
    if all(d.verdict == "apart" for d in collected.sites) and not odd:
        return Checked("" if agreed else "there are padded rows alone, which never decide: nothing was compared")
    return _concluded(collected, odd, limits, floors, rtol)


def require_values(steps: Iterable[StepRecords], rtol: float | None) -> None:
    """Refuse what could not be judged: bit equality of a test's array of which only a sketch is held.

    Raises:
        UsageError: naming the array and the remedy.
    """
    for step in steps:
        for r in step.records:
            if rtol is None and r.key.stage == STAGE and r.key not in step.floors and math.prod(r.shape) > VALUES:
                raise UsageError(
                    f"'{r.key.site}' has {math.prod(r.shape)} elements, of which a golden holds a sketch, and a sketch "
                    "cannot prove bit equality: give golden.check an rtol, or a floor"
                )


def _one_sided(golden: Sequence[StepRecords], given: Sequence[StepRecords]) -> str:
    """What only one side has, as a sentence; empty where nothing is."""
    ours, theirs = (dict.fromkeys(r.key for step in side for r in step.records) for side in (golden, given))
    told = []
    for what, missing in (
        ("the golden holds and the test did not give", [key for key in ours if key not in theirs]),
        ("the test gave and the golden does not hold", [key for key in theirs if key not in ours]),
    ):
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            told.append(f"{what} {', '.join(map(str, missing[:3]))}{more}")
    return "; ".join(told)


def _open(ours: StepRecords, theirs: StepRecords, exact: bool) -> tuple[StepRecords, StepRecords, list[SiteDiff]]:
    """What is still to be judged: without the bit-equal sites, and without those that no number can tell apart."""
    if not exact:
        return ours, theirs, []
    others = {r.key: r for r in theirs.records}
    closed: set[Key] = set()
    unlike = []
    for record in ours.records:
        other = others[record.key]
        if record.key in ours.floors or record.key.is_apart:
            continue
        if _identical(record, other):
            closed.add(record.key)
        elif note := _unlike(record, other):
            closed.add(record.key)
            dtypes = (record.dtype, other.dtype)
            nothing = Distance(0.0, 0.0, math.inf)
            unlike.append(SiteDiff(record.key, nothing, dtypes=dtypes, birth="module", verdict="fail", note=note))
    kept = [tuple(r for r in side.records if r.key not in closed) for side in (ours, theirs)]
    return replace(ours, records=kept[0]), replace(theirs, records=kept[1]), unlike


def _identical(a: Record, b: Record) -> bool:
    """Bit equality of values where both are held, else of sketches, which are equal for equal tensors."""
    if (a.kind, a.dtype, a.shape, a.rows, a.frame) != (b.kind, b.dtype, b.shape, b.rows, b.frame):
        return False
    x, y = a.value, b.value
    if a.kind != "tensor":
        return type(x) is type(y) and repr(x) == repr(y)
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        x, y = a.sketch, b.sketch
    if x is None or y is None:
        return False
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _unlike(a: Record, b: Record) -> str:
    """How two records differ that are at no distance from each other; empty where a distance tells."""
    if a.kind != b.kind:
        return ""
    if a.kind != "tensor":
        return f"{a.value!r} against {b.value!r}" if a.dtype != b.dtype else ""
    found = measure(a, b)
    if found is None or found.l2 != 0.0:
        return ""
    return f"{a.dtype} against {b.dtype}" if a.dtype != b.dtype else "equal numbers, other bits"


def _filled(step: StepRecords, rtol: float) -> StepRecords:
    """With floors at every site: where there is none, one whose limit is `rtol`."""
    floors = {
        r.key: Floor(rtol * (r.moments.l2 if r.moments else 0.0) / L2_LIMIT) for r in step.records if r.kind == "tensor"
    }
    return replace(step, floors={**floors, **step.floors})


def _concluded(
    collected: Collected, odd: list[SiteDiff], limits: dict[Key, float], floors: set[Key], rtol: float | None
) -> Checked:
    result = conclude(collected, model="", differing=(), preflight=())
    failed = [d for d in collected.sites if d.verdict == "fail"]
    if result.verdict == "unjudged" and not failed and not odd:
        return Checked(result.reason)
    # What only grew cannot fail a model's run; but a limit that a test gave itself holds at each of its sites.
    strict = [d for d in failed if d.key not in floors]
    if result.verdict == "pass" and not strict and not odd:
        return Checked()
    first = (failed or odd)[0]
    origin = result.origin or Origin(first.key, first.birth or "amplified")
    worst = sorted([*failed, *odd], key=lambda d: -(math.inf if math.isnan(d.distance.ratio) else d.distance.ratio))
    if result.verdict == "fail" and any(d.key in floors for d in failed):
        return Checked(result.reason, origin, tuple(worst), limits)
    rule = "bit-equal" if rtol is None else f"within the relative L2 of {rtol:g} that the test allows"
    count = "1 site is" if len(worst) == 1 else f"{len(worst)} sites are"
    return Checked(f"{count} not {rule}", origin, tuple(worst), limits)
