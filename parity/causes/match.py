"""The fault match: an error that is that of a known fault. numpy only.

Sketches are linear, so the sketch of an error is the difference of two sketches, and inner products between errors are
those between their sketches (`parity.sketch`). An error vector holds the errors of many sites of one step, each
relative to the norm of what the reference has there, so that no site counts for its size.

The known faults are run on this machine, those of a decoder by `parity.causes.stages`. Of a script's recording none can
be run: its values alone are measured (`parity.causes.values`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.causes.evidence import Evidence, known_faults
from parity.causes.values import working_dtype
from parity.compare.metrics import comparable_shapes
from parity.compare.reason import Note
from parity.compare.result import Cause, Witness
from parity.errors import ParityError
from parity.floors import L2_LIMIT
from parity.records import AFTER, LOOP, Key, Record, StepRecords
from parity.settings import BITS, NEUTRAL, remedy, sentence
from parity.sketch import Geometry, norm as norm_of, of_the_whole
from parity.transforms import norm

BROKEN = 1e6
"""The relative error that a value with NaN or Inf counts as: more than any other, and a number."""

LOOP_OUTPUTS = ("noise_pred", "latents.after")

Faults = frozenset[str]
"""`setting=value` of those that a run had."""
Vector = np.ndarray
"""float64 [counters]: the errors of several sites, one after another."""


def common_keys(*steps: StepRecords) -> tuple[Key, ...]:
    """The outputs that all of these steps hold sketches of, in execution order: modules' and the loop's."""
    held = [{r.key for r in step.records if _counts(r)} for step in steps]
    return tuple(r.key for r in steps[0].records if all(r.key in keys for keys in held))


def _counts(record: Record) -> bool:
    if record.kind != "tensor" or record.sketch is None or record.key.is_apart or record.key.is_input:
        return False
    return record.key.module != LOOP or record.key.port in LOOP_OUTPUTS


def as_read(step: StepRecords) -> StepRecords:
    """The step with what a picture shows of frames in their place, where that is held."""
    read = {r.key: r for r in step.records if r.key.is_read and r.key.stage == AFTER}
    held = [(r, read.get(r.key.read)) for r in step.records if r.key not in read]
    records = tuple(r if other is None else replace(other, key=r.key) for r, other in held)
    known = {r.key: step.floors[other.key] for r, other in held if other is not None and other.key in step.floors}
    return StepRecords(step.step, records, {**step.floors, **known})


def error_vector(reference: StepRecords, other: StepRecords, keys: Sequence[Key]) -> Vector:
    """The errors of `other` at these sites; one that is absent or of another shape counts as zero, one that is not
    finite as `BROKEN`."""
    ours, theirs = ({r.key: r for r in step.records} for step in (reference, other))
    return np.concatenate([_error(ours[key], theirs.get(key)) for key in keys]) if keys else np.zeros(0)


def _error(a: Record, b: Record | None) -> Vector:
    assert a.sketch is not None
    g = Geometry(*a.frame)
    own = of_the_whole(a.sketch, g)
    scale = norm(own)
    if b is None or b.sketch is None or not comparable_shapes(a, b) or not math.isfinite(scale) or scale == 0.0:
        return np.zeros(own.size)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = (of_the_whole(b.sketch, g) - own) / scale
    return apart if np.isfinite(apart).all() else np.full(own.size, BROKEN / math.sqrt(own.size))


def scale_of(record: Record) -> float:
    """The norm of a tensor, by its sketch."""
    assert record.sketch is not None
    return norm_of(record.sketch, Geometry(*record.frame))


def noise_norm(reference: StepRecords, keys: Sequence[Key]) -> float:
    """The norm that rounding alone gives an error vector of these sites: their floors, relative, added in squares."""
    scales = {r.key: scale_of(r) for r in reference.records if r.sketch is not None}
    relative = [reference.floors[k].l2 / scales[k] for k in keys if k in reference.floors and scales.get(k)]
    return math.sqrt(sum(x * x for x in relative))


# --- the error of a known fault

UNKNOWN = 0.3
"""An error of which a known fault leaves more than this share of its norm is not that fault's."""
ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be distinguished."""
ROUNDED = 0.4
"""R2 above which an error is that of a setting that only rounds: an unknown one has a few percent."""
AS_LARGE = (0.6, 1.4)
"""And its coefficient. Two programs that round in 16 bits share what rounding does to what both compute, not the order
in which each adds up: with a common part s and parts of their own of equal size, R2 is r^2 and the coefficient
r = |s|^2 / |known|^2."""
NEAR = 0.5
"""The least R2 of a fault that is worth a look; a smaller one sends the reader to look where nothing is."""


@dataclass(frozen=True, slots=True)
class Known:
    """An error, and what is known around it.

    Attributes:
        error: the candidate's. noise: norm that rounding alone gives. told: the reference's settings as text.
        confirm: the command that confirms a fault; empty where nothing can be run.
        enough: share of the error's norm that a fault may leave which has it.
    """

    error: Vector
    noise: float
    told: Mapping[str, str]
    confirm: Callable[[str], str]
    enough: float = UNKNOWN

    @property
    def is_rounding(self) -> bool:
        """Whether rounding can be all of it."""
        return not norm(self.error) > L2_LIMIT * self.noise


WITHIN = Note("unknown: the outputs in which known faults show are, together, within what rounding gives")
"""The note where there is no error to look for."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """A known error beside the unknown one.

    Attributes:
        left: norm of what it leaves, over the error's. r2: share of the error's square that its best multiple explains.
        coefficient: that multiple.
    """

    left: float
    r2: float
    coefficient: float


def matched(known: Known, errors: Mapping[Faults, Vector]) -> Iterator[Cause | Note]:
    """Causes for the known fault that has this error; a note where none has.

    Args:
        errors: of the known faults, one each or several together.
    """
    fits = {faults: _fit(known.error, vector) for faults, vector in errors.items()}
    within = L2_LIMIT * known.noise / norm(known.error)
    least = min((fit.left for fit in fits.values()), default=1.0)
    same = [faults for faults, fit in fits.items() if fit.left <= least + within]
    best = min(same, key=lambda faults: (len(faults), fits[faults].left), default=Faults())
    if best and fits[best].left <= known.enough:
        said = f"the reference with {' and '.join(sorted(best))} has this error, but for {fits[best].left:.1%} of it"
    else:
        rounding = {f: fit for f, fit in fits.items() if _rounded_alike(f, fit)}
        if not rounding:
            yield Note(_unknown(fits))
            return
        best = max(rounding, key=lambda faults: rounding[faults].r2)
        fit = fits[best]
        said = (
            f"with {', '.join(best)} the reference rounds like this: its error, {fit.coefficient:.2g} times, explains "
            f"{fit.r2:.0%} of the square"
        )
    share = 1.0 - min(1.0, fits[best].left)
    alike = _alike(best, known, errors) if len(best) == 1 else ()
    yield from (_named(name, alike, share, said, known) for name in sorted(best))


def _fit(error: Vector, known: Vector) -> _Fit:
    square, whole, product = float(known @ known), float(error @ error), float(known @ error)
    if square == 0.0 or whole == 0.0:
        return _Fit(1.0, 0.0, 0.0)
    return _Fit(norm(error - known) / norm(error), product**2 / (square * whole), product / square)


def _rounded_alike(faults: Faults, fit: _Fit) -> bool:
    """Whether an error that is not given again to the last bit is that of settings that only round."""
    least, most = AS_LARGE
    rounds = all(name.partition("=")[0] in NEUTRAL for name in faults)
    return rounds and fit.r2 >= ROUNDED and least <= fit.coefficient <= most


def _unknown(fits: Mapping[Faults, _Fit]) -> str:
    text = "unknown: no known fault has this error"
    faults, fit = max(fits.items(), key=lambda found: found[1].r2, default=(Faults(), _Fit(1.0, 0.0, 0.0)))
    if fit.r2 < NEAR:
        return text
    name = ", ".join(sorted(faults))
    return f"{text}; the nearest, {name}, {fit.coefficient:.2g} times, explains {fit.r2:.0%} of its square"


def _alike(faults: Faults, known: Known, errors: Mapping[Faults, Vector]) -> tuple[str, ...]:
    """The other known faults whose errors cannot be told from this one's."""
    own = errors[faults]
    near = max(ALIKE * norm(own), L2_LIMIT * known.noise)
    others = (other for other, v in errors.items() if len(other) == 1 and norm(v - own) <= near)
    return tuple(name for other in others for name in other - faults)


def _named(name: str, alike: tuple[str, ...], share: float, detail: str, known: Known) -> Cause:
    setting, _, value = name.partition("=")
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    witness = Witness("fault", share, detail, known.confirm(name))
    told = known.told.get(setting, "")
    text = f"{sentence(setting, value)}{group}"
    return Cause(text, setting, told, value, share, (witness,), alike, remedy(setting))


# --- of a step of the loop


def signatures(evidence: Evidence) -> Iterator[Cause | Note]:
    """Causes from the candidate's records alone, whatever it says of its settings."""
    if evidence.model is None:
        return
    machine, ours, theirs, step = evidence.model, evidence.ours, evidence.theirs, evidence.ours.step
    base = machine.with_fault("", step)
    keys = common_keys(ours, theirs, base)
    if not keys:
        yield Note("signatures are skipped: the goldens share no outputs with this machine's reference")
        return
    confirm = functools.partial(evidence.request.with_fault, golden=evidence.reference)
    told = machine.request.reference.as_text()
    known = Known(error_vector(ours, theirs, keys), noise_norm(ours, keys), told, confirm)
    if known.is_rounding:
        yield WITHIN
        return
    drift = norm(error_vector(ours, base, keys))
    if drift > L2_LIMIT * known.noise:
        yield Note(
            f"signatures are uncertain: this machine's reference is {drift / max(known.noise, 1e-300):.0f} x the floor "
            "from the golden's"
        )
    errors: dict[str, Vector] = {}
    left = evidence.reference.steps - step - 1
    faults = list(known_faults(machine.request.reference, machine.facts, machine.request.ports.reference, left))
    for i, name in enumerate(faults):
        try:
            run = machine.with_fault(name, step, f"{i + 1} of {len(faults)}")
        except ParityError as refused:
            yield Note(f"known fault {name} could not be run: {refused}")
        else:
            errors[name] = error_vector(base, run, keys)
    coarse = _coarse(ours, theirs, errors)
    if coarse is not None:
        noise = max(known.noise, norm(errors[coarse]))
        left_over = L2_LIMIT * noise / norm(known.error)
        known = replace(known, noise=noise, enough=max(UNKNOWN, left_over))
        errors = {name: v for name, v in errors.items() if not name.startswith("dtype=")}
        if left_over >= 1.0:
            yield Note(f"signatures: the outputs of step {step} are within what {coarse} costs the reference itself")
            return
    yield from matched(known, {frozenset({name}): vector for name, vector in errors.items()})


def _coarse(ours: StepRecords, theirs: StepRecords, singles: Mapping[str, np.ndarray]) -> str | None:
    """The known fault of a coarser working dtype, where the records have one.

    What two programs round in 16 bits is no one error: they share but a part of it. So it is known by its size, and is
    the floor that everything else must be beyond.
    """
    found = working_dtype(ours.records, theirs.records)
    name = f"dtype={found[1]}" if found is not None and BITS[found[1]] < BITS[found[0]] else ""
    return name if name in singles else None
