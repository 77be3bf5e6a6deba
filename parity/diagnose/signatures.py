"""The signature witness: a candidate's error looked for among those of the known faults, from records alone."""

from __future__ import annotations

import numpy as np

from parity.compare.regress import Explained, common_keys, error_vector, noise_norm, search
from parity.compare.result import Cause, Witness
from parity.diagnose.advice import remedy, sentence
from parity.diagnose.known_faults import known_faults
from parity.diagnose.machine import Machine
from parity.errors import ParityError
from parity.golden.records import StepRecords

ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be told apart."""
UNKNOWN = 0.3
"""An error of which known faults leave more than this share of its norm is not explained by them."""


def signatures(machine: Machine, ours: StepRecords, theirs: StepRecords, step: int, notes: list[str]) -> list[Cause]:
    """Causes from the candidate's records alone."""
    simulated = machine.simulated(step)
    base = simulated.run(frozenset())
    names = tuple(known_faults(machine.settings, machine.family, machine.case))
    runs = {}
    for name in names:
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
    drift = float(np.linalg.norm(error_vector(ours, base, keys)))
    if drift > 3.0 * noise:
        notes.append(
            f"signatures are uncertain: this machine's reference is {drift / max(noise, 1e-300):.0f} x the floor from "
            "the golden's"
        )
    singles = {name: error_vector(base, run, keys) for name, run in runs.items()}

    def together(faults: frozenset[str]) -> np.ndarray | None:
        try:
            return error_vector(base, simulated.run(faults), keys)
        except ParityError:
            return None

    explained = search(error, singles, together, noise)
    if not explained.names or explained.residual > UNKNOWN:
        notes.append(_unknown(explained))
        return []
    return [_named(name, explained, singles, machine, noise) for name in explained.names]


def _unknown(explained: Explained) -> str:
    best = max(explained.fits.items(), key=lambda item: item[1].r2, default=None)
    nearest = "" if best is None else f"; the nearest, {best[0]}, has R2 {best[1].r2:.2f}"
    return f"unknown: no known fault, nor several together, has this error{nearest}"


def _named(name: str, explained: Explained, singles: dict[str, np.ndarray], machine: Machine, noise: float) -> Cause:
    setting, _, value = name.partition("=")
    fit = explained.fits[name]
    size = float(np.linalg.norm(singles[name]))
    if size <= 3.0 * noise:
        text = f"beside the fault, {sentence(setting, value)}: harmless alone"
        witness = Witness("signature", 0.0, f"alone {size / noise if noise else 0.0:.2g} x what rounding gives")
        return Cause(text, setting, machine.settings.as_text()[setting], value, 0.0, (witness,))
    near = max(ALIKE * size, 3.0 * noise)
    alike = [n for n, v in singles.items() if n != name and float(np.linalg.norm(v - singles[name])) <= near]
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    detail = (
        f"coefficient {fit.coefficient:.3f} +- {fit.half:.3f}, R2 {fit.r2:.4f}; with all named faults run on the "
        f"reference {explained.residual:.1%} of the error is left; confirm: parity record DIR --setting {name}, then "
        "parity diff DIR CANDIDATE passes"
    )
    share = max(0.0, min(1.0, fit.r2))
    text = f"{sentence(setting, value)}{group}: {remedy(setting)}"
    reference = machine.settings.as_text()[setting]
    return Cause(text, setting, reference, value, share, (Witness("signature", fit.coefficient, detail),))
