"""The signature witness: a candidate's error looked for among those of the known faults, from records alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parity.compare.decompose import Part, decompose, subsets
from parity.compare.gauges import working_dtype
from parity.compare.judge import L2_LIMIT
from parity.compare.regress import Explained, common_keys, error_vector, noise_norm, search, site_sizes
from parity.compare.result import Cause, Witness
from parity.diagnose.advice import remedy, sentence
from parity.diagnose.known_faults import known_faults
from parity.diagnose.machine import Machine
from parity.errors import ParityError
from parity.golden.records import StepRecords
from parity.settings import BITS

ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be told apart."""
UNKNOWN = 0.3
"""An error of which known faults leave more than this share of its norm is not explained by them."""


def signatures(machine: Machine, ours: StepRecords, theirs: StepRecords, step: int, notes: list[str]) -> list[Cause]:
    """Causes from the candidate's records alone."""
    simulated = machine.simulated(step)
    base = simulated.run(frozenset())
    runs = {}
    for name in known_faults(machine.settings, machine.family, machine.case):
        try:
            runs[name] = simulated.run(frozenset({name}))
        except ParityError as refused:
            notes.append(f"known fault {name} could not be run: {refused}")
    keys = common_keys(ours, theirs, base)
    if not keys:
        notes.append("signatures are skipped: the goldens share no outputs with this machine's reference")
        return []
    error = error_vector(ours, theirs, keys)
    noise = noise_norm(ours, keys)
    if _norm(error) <= L2_LIMIT * noise:
        notes.append(f"signatures are skipped: no output of step {step} is beyond what rounding gives")
        return []
    drift = _norm(error_vector(ours, base, keys))
    if drift > L2_LIMIT * noise:
        notes.append(
            f"signatures are uncertain: this machine's reference is {drift / max(noise, 1e-300):.0f} x the floor from "
            "the golden's"
        )
    singles = {name: error_vector(base, run, keys) for name, run in runs.items()}
    coarse = _coarse(ours, theirs, singles)
    if coarse is not None:
        noise = max(noise, _norm(singles[coarse]))
        singles = {name: v for name, v in singles.items() if not name.startswith("dtype=")}
    told = machine.settings.as_text()
    if coarse is not None and _norm(error) <= L2_LIMIT * noise:
        return [_rounding(coarse, 1.0, _norm(error) / noise, told)]

    def together(faults: frozenset[str]) -> np.ndarray | None:
        try:
            return error_vector(base, simulated.run(faults), keys)
        except ParityError:
            return None

    explained = search(error, singles, together, noise)
    left = explained.residual * _norm(error)
    if not explained.names or (explained.residual > UNKNOWN and not (coarse and left <= L2_LIMIT * noise)):
        notes.append(_unknown(explained))
        return []
    # Among the loud only: what one that does no harm alone changes beside a fault is the fault's doing.
    loud = [n for n in explained.names if _norm(singles[n]) > L2_LIMIT * noise]
    silent = frozenset(explained.names) - set(loud)
    joint = {s: together(s | silent) for s in subsets(loud)}
    parts = decompose(error, {s: run for s, run in joint.items() if run is not None}, loud, site_sizes(ours, keys))
    whole = sum(part.share for part in parts.values())
    notes.append(
        f"signatures: the named faults explain {whole:.2%} of the square of the error over {len(keys)} sites (R2), "
        f"{max(0.0, 1.0 - whole):.2%} is {'of its dtype' if coarse else 'unexplained'}; with all of them run on the "
        f"reference {explained.residual:.1%} of the error's norm is left"
    )
    found = [_named(name, parts[name], told, _alike(name, singles, noise)) for name in loud if name in parts]
    if coarse is not None:
        found.append(_rounding(coarse, max(0.0, 1.0 - whole), left / noise, told))
    return [*found, *(_silent(name, singles[name], told, noise) for name in explained.names if name in silent)]


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))


def _coarse(ours: StepRecords, theirs: StepRecords, singles: Mapping[str, np.ndarray]) -> str | None:
    """The known fault of a coarser working dtype, where the records have one.

    What two programs round in 16 bits is no one error: they share but a part of it. So it is known by its size, and is
    the floor that everything else must be beyond.
    """
    found = working_dtype(ours.records, theirs.records)
    name = f"dtype={found[1]}" if found is not None and BITS[found[1]] < BITS[found[0]] else ""
    return name if name in singles else None


def _rounding(name: str, share: float, ratio: float, told: Mapping[str, str]) -> Cause:
    setting, _, value = name.partition("=")
    detail = (
        f"what no other known fault explains is {ratio:.2g} x what {value} costs the reference itself; confirm: parity "
        f"record DIR --setting {name}, then parity diff DIR CANDIDATE passes"
    )
    text = f"{sentence(setting, value)}: {remedy(setting)}"
    return Cause(text, setting, told[setting], value, share, (Witness("signature", ratio, detail),))


def _unknown(explained: Explained) -> str:
    best = max(explained.fits.items(), key=lambda item: item[1].r2, default=None)
    nearest = "" if best is None else f"; the nearest, {best[0]}, has R2 {best[1].r2:.2f}"
    return f"unknown: no known fault, nor several together, has this error{nearest}"


def _alike(name: str, singles: Mapping[str, np.ndarray], noise: float) -> tuple[str, ...]:
    """The other known faults whose errors cannot be told from this one's."""
    own = singles[name]
    near = max(ALIKE * _norm(own), L2_LIMIT * noise)
    return tuple(n for n, v in singles.items() if n != name and _norm(v - own) <= near)


def _silent(name: str, alone: np.ndarray, told: Mapping[str, str], noise: float) -> Cause:
    """What does no harm alone, and changes what another fault does."""
    setting, _, value = name.partition("=")
    size = _norm(alone)
    witness = Witness("signature", 0.0, f"alone {size / noise if noise else 0.0:.2g} x what rounding gives")
    text = f"beside the fault, {sentence(setting, value)}: harmless alone"
    return Cause(text, setting, told[setting], value, 0.0, (witness,), 0.0)


def _named(name: str, part: Part, told: Mapping[str, str], alike: tuple[str, ...]) -> Cause:
    setting, _, value = name.partition("=")
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    detail = (
        f"share {part.share:.3f} +- {part.share_half:.2g} of the error's square, coefficient {part.coefficient:.3f} +- "
        f"{part.coefficient_half:.2g} (1 is the very fault; 95 % over sites); confirm: parity record DIR --setting "
        f"{name}, then parity diff DIR CANDIDATE passes"
    )
    text = f"{sentence(setting, value)}{group}: {remedy(setting)}"
    witness = Witness("signature", part.coefficient, detail)
    return Cause(text, setting, told[setting], value, part.share, (witness,), part.share_half, alike)
