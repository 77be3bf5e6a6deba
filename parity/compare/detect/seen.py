"""What a detector is shown: the loop's own values of both sides at one step, held whole, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.records import LOOP, StepRecords

SAME = 1e-4
"""Relative difference up to which values of the loop count as equal here; the judge has said whether they are."""
GIVEN = "decode:in.z"
LATENTS = f"{LOOP}:latents.after"
PREDICTED = f"{LOOP}:noise_pred"

Values = Mapping[tuple[str, str], np.ndarray]
"""(branch, site) -> a value that is held whole, in float64."""

Both = tuple[np.ndarray, np.ndarray]
"""The reference's and the candidate's."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One step of both sides.

    Attributes:
        ours, theirs: values of the reference and the candidate. settings: of both sides, configs among them.
        step: of the values. before: what each side's latents had come to in the step before; None where nobody knows.
    """

    ours: Values
    theirs: Values
    settings: tuple[Mapping[str, str], Mapping[str, str]] = field(default=({}, {}))
    step: int = 0
    before: Both | None = None

    def pair(self, site: str, branch: str = "") -> Both | None:
        """Both sides' value, where both hold it in one shape."""
        a, b = self.ours.get((branch, site)), self.theirs.get((branch, site))
        return None if a is None or b is None or a.shape != b.shape else (a, b)

    def numbers(self, name: str) -> tuple[float, float] | None:
        """Both sides' number of the loop, where both hold one and they are not the same."""
        pair = self.pair(f"{LOOP}:{name}")
        if pair is None or any(x.size != 1 or not np.isfinite(x).all() for x in pair):
            return None
        a, b = (float(x.item()) for x in pair)
        return (a, b) if a != b else None


def held(step: StepRecords) -> dict[tuple[str, str], np.ndarray]:
    """A step's values that are held whole."""
    wanted = (f"{LOOP}:", "schedule:", "decode:in.")
    return {
        (r.key.branch, r.key.site): np.asarray(r.value, np.float64)
        for r in step.records
        if isinstance(r.value, np.ndarray) and r.key.site.startswith(wanted) and r.key.call == 0
    }


def latents_of(values: tuple[Values, Values]) -> Both | None:
    """What both sides' latents come to in a step."""
    a, b = (side.get(("", LATENTS)) for side in values)
    return None if a is None or b is None else (a, b)


def differ(pair: Both | None) -> bool:
    """Whether both sides hold a value, and not the same."""
    return pair is not None and apart(*pair) > SAME


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Relative L2 distance of `b` from `a`."""
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / size if size > 0 else (0.0 if not np.any(b) else math.inf)
