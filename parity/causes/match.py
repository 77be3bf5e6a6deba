"""The fault match: an error that is that of a known fault.

Who runs the known faults, and on what, is another's business: a step of the loop (`causes.witnesses.signatures`), a
decoder by itself (`causes.decoding`), or a recording that kept them (`causes.witnesses.recorded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from parity.causes.errors import Vector, norm
from parity.compare.births import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause, Witness
from parity.settings import NEUTRAL, remedy, sentence

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

Faults = frozenset[str]
"""`setting=value` of those that a run had, one but for what a recording kept together."""


def _no_command(fault: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An error, and those of the known faults at the same sites.

    Attributes:
        error: the candidate's. faults: their own. noise: norm that rounding alone gives.
        told: the reference's settings as text. confirm: the command that confirms a fault; empty where nothing can be
            run. coarse: the known fault of a coarser working dtype that the candidate has; empty for none.
        alone: before a sentence that finds nothing, where another witness has found something.
    """

    error: Vector
    faults: Mapping[Faults, Vector]
    noise: float
    told: Mapping[str, str]
    confirm: Callable[[str], str] = _no_command
    coarse: str = ""
    alone: str = ""


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


def matched(known: Known) -> Iterator[Cause | Note]:
    """Causes for the known fault that has this error; a note where none has."""
    fits = {faults: _fit(known.error, vector) for faults, vector in known.faults.items()}
    size = norm(known.error)
    within = L2_LIMIT * known.noise / size if size else 0.0
    least = min((fit.left for fit in fits.values()), default=1.0)
    same = [faults for faults, fit in fits.items() if fit.left <= least + within]
    best = min(same, key=lambda faults: (len(faults), fits[faults].left), default=Faults())
    enough = max(UNKNOWN, within) if known.coarse else UNKNOWN
    if best and fits[best].left <= enough:
        said = f"the reference with {' and '.join(sorted(best))} has this error, but for {fits[best].left:.1%} of it"
    else:
        rounding = {f: fit for f, fit in fits.items() if _only_rounds(f) and _rounded_alike(fit)}
        if not rounding:
            yield Note(f"{known.alone}{_unknown(fits)}")
            return
        best = max(rounding, key=lambda faults: rounding[faults].r2)
        fit = fits[best]
        said = (
            f"with {', '.join(best)} the reference rounds like this: its error, {fit.coefficient:.2g} times, explains "
            f"{fit.r2:.0%} of the square"
        )
    share = 1.0 - min(1.0, fits[best].left)
    yield from (_named(name, best, share, said, known) for name in sorted(best))
    if known.coarse:
        left = fits[best].left * size / known.noise
        yield coarse_cause(known.coarse, left, known.told, known.confirm(known.coarse))


def coarse_cause(name: str, ratio: float, told: Mapping[str, str], confirm: str) -> Cause:
    """The cause of a coarser working dtype.

    Args:
        ratio: what no other known fault explains, over what the dtype costs the reference. confirm: see `Witness`.
    """
    setting, _, value = name.partition("=")
    detail = f"what no other known fault explains is {ratio:.2g} x what {value} costs the reference itself"
    evidence = (Witness("fault", ratio, detail, confirm),)
    return Cause(sentence(setting, value), setting, told[setting], value, evidence=evidence, fix=remedy(setting))


def _fit(error: Vector, known: Vector) -> _Fit:
    square, whole, product = float(known @ known), float(error @ error), float(known @ error)
    if square == 0.0 or whole == 0.0:
        return _Fit(1.0, 0.0, 0.0)
    return _Fit(norm(error - known) / norm(error), product**2 / (square * whole), product / square)


def _only_rounds(faults: Faults) -> bool:
    return all(name.partition("=")[0] in NEUTRAL for name in faults)


def _rounded_alike(fit: _Fit) -> bool:
    """Whether an error that is not given again to the last bit is that of a setting that only rounds."""
    least, most = AS_LARGE
    return fit.r2 >= ROUNDED and least <= fit.coefficient <= most


def _unknown(fits: Mapping[Faults, _Fit]) -> str:
    text = "unknown: no known fault has this error"
    near = {faults: fit for faults, fit in fits.items() if fit.r2 >= NEAR}
    if not near:
        return text
    faults = max(near, key=lambda faults: near[faults].r2)
    fit, name = near[faults], ", ".join(sorted(faults))
    return f"{text}; the nearest, {name}, {fit.coefficient:.2g} times, explains {fit.r2:.0%} of its square"


def _alike(faults: Faults, known: Known) -> tuple[str, ...]:
    """The other known faults whose errors cannot be told from this one's."""
    own = known.faults[faults]
    near = max(ALIKE * norm(own), L2_LIMIT * known.noise)
    others = (other for other, v in known.faults.items() if len(other) == 1 and norm(v - own) <= near)
    return tuple(name for other in others for name in other - faults)


def _named(name: str, faults: Faults, share: float, detail: str, known: Known) -> Cause:
    setting, _, value = name.partition("=")
    alike = _alike(faults, known) if len(faults) == 1 else ()
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    witness = Witness("fault", share, detail, known.confirm(name))
    told = known.told.get(setting, "")
    text = f"{sentence(setting, value)}{group}"
    return Cause(text, setting, told, value, share, (witness,), alike, remedy(setting))
