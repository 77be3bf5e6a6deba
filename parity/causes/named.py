"""An error named: which of the errors of known faults it is, several of them together, or none.

Who runs the known faults, and on what, is another's business: a step of the loop (`causes.evidence.signatures`),
a decoder by itself (`causes.decoding`), or a recording that kept them (`causes.evidence.recorded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.causes.decompose import Part, decompose, subsets
from parity.causes.regress import UNKNOWN, Explained, Vector, search
from parity.compare.judge import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import NAN, Cause, Witness
from parity.settings import NEUTRAL, remedy, sentence

ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be distinguished."""
ROUNDED = 0.4
"""R2 above which an error is that of a setting that only rounds: an unknown one has a few percent."""
AS_LARGE = (0.6, 1.4)
"""And its coefficient, which falls with R2 (see `_rounded_alike`)."""

Together = Callable[[frozenset[str]], Vector | None]
"""The error of a joint run of some faults; None where there is none."""


def _no_command(fault: str) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An error, and those of the known faults at the same sites.

    Attributes:
        error: the candidate's. singles: `setting=value` -> the fault's own. together: of several at once.
        noise: norm that rounding alone gives. sizes: counters of each site. told: the reference's settings as text.
        confirm: the command that confirms a fault; empty where nothing can be run.
        coarse: the known fault of a coarser working dtype that the candidate has; empty for none.
        alone: before a sentence that finds nothing, where another witness has found something.
    """

    error: Vector
    singles: Mapping[str, Vector]
    together: Together
    noise: float
    sizes: Sequence[int]
    told: Mapping[str, str]
    confirm: Callable[[str], str] = _no_command
    coarse: str = ""
    alone: str = ""


def named_faults(known: Known) -> Iterator[Cause | Note]:
    """Causes for the faults that have this error, with their shares; a note where none has, or several together."""
    error, singles, noise = known.error, known.singles, known.noise
    explained = search(error, singles, known.together, noise)
    rest = explained.residual * norm(error)
    # Among the loud only: what one that does no harm alone changes beside a fault is the fault's doing.
    loud = [n for n in explained.names if norm(singles[n]) > L2_LIMIT * noise]
    silent = frozenset(explained.names) - set(loud)
    joint = {s: known.together(s | silent) for s in subsets(loud)}
    parts = decompose(error, {s: run for s, run in joint.items() if run is not None}, loud, known.sizes)
    within = bool(known.coarse) and rest <= L2_LIMIT * noise
    if not parts or not (explained.residual <= UNKNOWN or within or _rounded_alike(parts)):
        yield Note(f"{known.alone}{_unknown(explained)}")
        return
    whole = sum(part.share for part in parts.values())
    yield Note(
        f"signatures: the named faults explain {whole:.2%} of the square of the error over {_sites(known)} (R2), "
        f"{max(0.0, 1.0 - whole):.2%} is {'of its dtype' if known.coarse else 'unexplained'}; with all of them run on "
        f"the reference {explained.residual:.1%} of the error's norm is left"
    )
    yield from (_named(name, parts[name], known) for name in loud if name in parts)
    if known.coarse:
        yield rounding(known.coarse, max(0.0, 1.0 - whole), rest / noise, known.told, known.confirm(known.coarse))
    yield from (_silent(name, known) for name in explained.names if name in silent)


def norm(x: Vector) -> float:
    """L2."""
    return float(np.linalg.norm(x))


def rounding(name: str, share: float, ratio: float, told: Mapping[str, str], confirm: str) -> Cause:
    """The cause of a coarser working dtype.

    Args:
        ratio: what no other known fault explains, over what the dtype costs the reference. confirm: see `Witness`.
    """
    setting, _, value = name.partition("=")
    detail = f"what no other known fault explains is {ratio:.2g} x what {value} costs the reference itself"
    evidence = (Witness("fault", ratio, detail, confirm),)
    return Cause(sentence(setting, value), setting, told[setting], value, share, evidence, fix=remedy(setting))


def _rounded_alike(parts: Mapping[str, Part]) -> bool:
    """Whether an error that is not given again to the last bit is that of a setting that only rounds.

    Two programs that round in 16 bits share what rounding does to what both compute, not the order in which each adds
    up: with a common part s and parts of their own of equal size, R2 is r^2 and the coefficient r = |s|^2 / |known|^2.
    """
    some = any(name.partition("=")[0] in NEUTRAL for name in parts)
    least, most = AS_LARGE
    close = all(least <= part.coefficient <= most for part in parts.values())
    return some and close and sum(part.share for part in parts.values()) >= ROUNDED


NEAR = 0.5
"""The least R2 of a fault that is worth a look; a smaller one sends the reader to look where nothing is."""


def _unknown(explained: Explained) -> str:
    text = "unknown: no known fault, nor several together, has this error"
    near = {name: fit for name, fit in explained.fits.items() if fit.r2 >= NEAR}
    if not near:
        return text
    name = max(near, key=lambda name: near[name].r2)
    return f"{text}; the nearest, {name}, has R2 {near[name].r2:.2f} and coefficient {near[name].coefficient:.2g}"


def _alike(name: str, known: Known) -> tuple[str, ...]:
    """The other known faults whose errors cannot be told from this one's."""
    own = known.singles[name]
    near = max(ALIKE * norm(own), L2_LIMIT * known.noise)
    return tuple(n for n, v in known.singles.items() if n != name and norm(v - own) <= near)


def _silent(name: str, known: Known) -> Cause:
    """What does no harm alone, and changes what another fault does."""
    setting, _, value = name.partition("=")
    ratio = norm(known.singles[name]) / known.noise if known.noise else 0.0
    witness = Witness("fault", 0.0, f"alone {ratio:.2g} x what rounding gives")
    text = f"beside the fault, {sentence(setting, value)}: harmless alone"
    return Cause(text, setting, known.told.get(setting, ""), value, 0.0, (witness,), 0.0)


def _named(name: str, part: Part, known: Known) -> Cause:
    setting, _, value = name.partition("=")
    alike = _alike(name, known)
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    detail = (
        f"share {_within(part.share, part.share_half)} of the error's square, coefficient "
        f"{_within(part.coefficient, part.coefficient_half)} (1 is the very fault"
        f"{'; 95% over sites' if math.isfinite(part.share_half) else ''})"
    )
    text = f"{sentence(setting, value)}{group}"
    witness = Witness("fault", part.coefficient, detail, known.confirm(name))
    half = part.share_half if math.isfinite(part.share_half) else NAN
    told = known.told.get(setting, "")
    return Cause(text, setting, told, value, part.share, (witness,), half, alike, fix=remedy(setting))


def _sites(known: Known) -> str:
    return f"{len(known.sizes)} site{'s' if len(known.sizes) > 1 else ''}"


def _within(x: float, half: float) -> str:
    """A number with its interval; of too few sites it has none."""
    return f"{x:.3f} +- {half:.2g}" if math.isfinite(half) else f"{x:.3f}"
