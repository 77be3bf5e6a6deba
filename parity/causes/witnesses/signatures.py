"""The signature witness: a candidate's error looked for among those of the known faults, from records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.causes.decompose import Part, decompose, subsets
from parity.causes.evidence import Evidence
from parity.causes.gauges import working_dtype
from parity.causes.known_faults import known_faults
from parity.causes.regress import UNKNOWN, Explained, common_keys, error_vector, noise_norm, search, site_sizes
from parity.causes.witness import witness
from parity.compare.judge import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import Cause, Witness
from parity.errors import ParityError
from parity.golden.records import Key, StepRecords
from parity.settings import BITS, NEUTRAL, remedy, sentence

ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be told apart."""
ROUNDED = 0.4
"""R2 above which an error is that of a setting that only rounds: an unknown one has a few percent."""
AS_LARGE = (0.6, 1.4)
"""And its coefficient, which falls with R2 (see `_rounded_alike`)."""


@witness("signatures", kind="signature", needs=("reference",))
def signatures(evidence: Evidence) -> Iterator[Cause | Note]:
    """Causes from the candidate's records alone, whatever it says of its settings."""
    machine, ours, theirs, step = evidence.machine, evidence.ours, evidence.theirs, evidence.step
    # What is no fault among the settings that the candidate says or shows it has is given to every simulated one.
    declared = dict(evidence.declared.settings)
    block = next((p.block for p in evidence.attention.phantoms if p.block is not None), None)
    if block is not None:
        declared["attention.block_kv"] = str(block)
    alone = "by signature alone: " if any(c.share > 0 for c in evidence.causes) else ""
    simulated = machine.simulated(step, declared)
    if simulated.beside:
        given = ", ".join(f"{name}={value}" for name, value in simulated.beside.items())
        yield Note(f"signatures: every known fault is run with what the candidate declares or shows: {given}")
    base = simulated.run(frozenset())
    runs = {}
    left = machine.provenance.steps - step - 1
    faults = list(known_faults(machine.settings, machine.facts, machine.ports.reference, left))
    for i, name in enumerate(faults):
        simulated.place = f"{i + 1} of {len(faults)}"
        try:
            runs[name] = simulated.run(frozenset({name}))
        except ParityError as refused:
            yield Note(f"known fault {name} could not be run: {refused}")
    simulated.place = ""
    keys = common_keys(ours, theirs, base)
    if not keys:
        yield Note("signatures are skipped: the goldens share no outputs with this machine's reference")
        return
    error = error_vector(ours, theirs, keys)
    noise = noise_norm(ours, keys)
    told = machine.settings.as_text()
    if _norm(error) <= L2_LIMIT * noise:
        lacking = _lacking(ours, theirs)
        absent = [name for name, run in runs.items() if lacking and _lacking(base, run) == lacking]
        yield _absent(absent, len(lacking), told) if absent else Note(f"{alone}{_too_small(theirs, keys, step)}")
        return
    drift = _norm(error_vector(ours, base, keys))
    if drift > L2_LIMIT * noise:
        yield Note(
            f"signatures are uncertain: this machine's reference is {drift / max(noise, 1e-300):.0f} x the floor from "
            "the golden's"
        )
    singles = {name: error_vector(base, run, keys) for name, run in runs.items()}
    coarse = _coarse(ours, theirs, singles)
    if coarse is not None:
        noise = max(noise, _norm(singles[coarse]))
        singles = {name: v for name, v in singles.items() if not name.startswith("dtype=")}
    if coarse is not None and _norm(error) <= L2_LIMIT * noise:
        yield _rounding(coarse, 1.0, _norm(error) / noise, told)
        return

    def together(faults: frozenset[str]) -> np.ndarray | None:
        try:
            return error_vector(base, simulated.run(faults), keys)
        except ParityError:
            return None

    explained = search(error, singles, together, noise)
    rest = explained.residual * _norm(error)
    # Among the loud only: what one that does no harm alone changes beside a fault is the fault's doing.
    loud = [n for n in explained.names if _norm(singles[n]) > L2_LIMIT * noise]
    silent = frozenset(explained.names) - set(loud)
    joint = {s: together(s | silent) for s in subsets(loud)}
    parts = decompose(error, {s: run for s, run in joint.items() if run is not None}, loud, site_sizes(ours, keys))
    within = coarse is not None and rest <= L2_LIMIT * noise
    if not parts or not (explained.residual <= UNKNOWN or within or _rounded_alike(parts)):
        yield Note(f"{alone}{_unknown(explained)}")
        return
    whole = sum(part.share for part in parts.values())
    yield Note(
        f"signatures: the named faults explain {whole:.2%} of the square of the error over {len(keys)} sites (R2), "
        f"{max(0.0, 1.0 - whole):.2%} is {'of its dtype' if coarse else 'unexplained'}; with all of them run on the "
        f"reference {explained.residual:.1%} of the error's norm is left"
    )
    yield from (_named(name, parts[name], told, _alike(name, singles, noise)) for name in loud if name in parts)
    if coarse is not None:
        yield _rounding(coarse, max(0.0, 1.0 - whole), rest / noise, told)
    yield from (_silent(name, singles[name], told, noise) for name in explained.names if name in silent)


def _rounded_alike(parts: Mapping[str, Part]) -> bool:
    """Whether an error that is not given again to the last bit is that of a setting that only rounds.

    Two programs that round in 16 bits share what rounding does to what both compute, not the order in which each adds
    up: with a common part s and parts of their own of equal size, R2 is r^2 and the coefficient r = |s|^2 / |known|^2.
    """
    some = any(name.partition("=")[0] in NEUTRAL for name in parts)
    least, most = AS_LARGE
    close = all(least <= part.coefficient <= most for part in parts.values())
    return some and close and sum(part.share for part in parts.values()) >= ROUNDED


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


def _lacking(ours: StepRecords, theirs: StepRecords) -> frozenset[Key]:
    """The tensors that only the first has."""
    held = {r.key for r in theirs.records if r.kind == "tensor"}
    return frozenset(r.key for r in ours.records if r.kind == "tensor" and r.key not in held)


def _absent(names: list[str], count: int, told: Mapping[str, str]) -> Cause:
    """What changes no output, and leaves out the very tensors that the candidate leaves out."""
    setting, _, value = names[0].partition("=")
    detail = f"the same {count} tensors are missing, and no output is beyond what rounding gives"
    text = f"harmless: {sentence(setting, value)}"
    return Cause(text, setting, told[setting], value, 0.0, (Witness("signature", 0.0, detail),), 0.0, tuple(names[1:]))


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
    nearest = (
        ""
        if best is None
        else f"; the nearest, {best[0]}, has R2 {best[1].r2:.2f} and coefficient {best[1].coefficient:.2g}"
    )
    return f"unknown: no known fault, nor several together, has this error{nearest}"


def _too_small(theirs: StepRecords, keys: Sequence[Key], step: int) -> str:
    """Why there is no error to look for."""
    asked = set(keys)
    broken = [r for r in theirs.records if r.key in asked and r.moments is not None and r.moments.nan + r.moments.inf]
    if broken:
        return (
            f"unknown: {len(broken)} of the candidate's outputs are NaN or infinite, first {broken[0].key}, and the "
            "others agree: known faults are compared where values are finite"
        )
    return (
        f"unknown: the outputs of step {step}, taken together, are within what rounding gives; what differs is at the "
        "origin alone, and too small there to be told by its error"
    )


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
        f"{part.coefficient_half:.2g} (1 is the very fault; 95% over sites); confirm: parity record DIR --setting "
        f"{name}, then parity diff DIR CANDIDATE passes"
    )
    text = f"{sentence(setting, value)}{group}: {remedy(setting)}"
    witness = Witness("signature", part.coefficient, detail)
    return Cause(text, setting, told[setting], value, part.share, (witness,), part.share_half, alike)
