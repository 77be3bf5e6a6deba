"""Records, floors and steps made by hand, so that comparing and judging are tested without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.compare.judge import Judge
from parity.compare.reason import Reason
from parity.compare.result import SiteDiff
from parity.golden import Floor, Key, Moments, Record, StepRecords, bin_norms, geometry, norm, sketch

STAGE = "transformer"
FLOOR = 1e-6
"""Relative floor of every made tensor unless a test says otherwise."""


def because(text: str) -> Reason:
    """A reason whose sentence is this text."""
    return Reason(kind="unjudged", detail=text)


def moments(x: np.ndarray) -> Moments:
    """The moments that observing takes of a tensor."""
    finite = x[np.isfinite(x)].astype(np.float64)
    return Moments(
        count=x.size,
        nan=int(np.isnan(x).sum()),
        inf=int(np.isinf(x).sum()),
        min=float(finite.min()) if finite.size else 0.0,
        max=float(finite.max()) if finite.size else 0.0,
        mean=float(finite.mean()) if finite.size else 0.0,
        l2=float(np.linalg.norm(finite)),
    )


def tensor(
    site: str,
    x: np.ndarray,
    *,
    branch: str = "cond",
    step: int = 0,
    call: int = 0,
    held: bool = False,
    rows: str = "",
    shape: tuple[int, ...] | None = None,
) -> Record:
    """A tensor's record, with its value where `held`; `shape` in place of the tensor's own where a frame was taken."""
    g = geometry(x.shape)
    key = Key(STAGE, step, branch, site, call)
    value = x if held else None
    own = x.shape if shape is None else shape
    with np.errstate(invalid="ignore"):
        taken = sketch(x)
    return Record(key, "tensor", own, x.dtype.name, rows, (g.rows, g.channels), moments(x), taken, value)


def none(site: str, *, branch: str = "cond", step: int = 0) -> Record:
    return Record(Key(STAGE, step, branch, site), "none")


def scalar(site: str, value: bool | int | float | str, *, branch: str = "cond", step: int = 0) -> Record:
    return Record(Key(STAGE, step, branch, site), "scalar", dtype=type(value).__name__, value=value)


def floor_of(record: Record, relative: float = FLOOR) -> Floor:
    """A floor of `relative` times the record's norm, spread evenly over the row bins that are not empty."""
    assert record.moments is not None
    assert record.sketch is not None
    g = geometry((record.frame[0], record.frame[1]))
    filled = np.nan_to_num(bin_norms(record.sketch, g)) > 0
    l2 = record.moments.l2 * relative
    return Floor(l2, (filled * l2 / math.sqrt(max(1, filled.sum()))).astype(np.float32))


def measured_floor(x: np.ndarray, runs: int = 4) -> Floor:
    """A floor as it is measured: the largest distance of `runs` noisy runs from `x`, by their sketches."""
    g = geometry(x.shape)
    apart = [sketch(moved(x, 1.0, seed=1000 + i) - x) for i in range(runs)]
    return Floor(max(norm(s, g) for s in apart), np.max([bin_norms(s, g) for s in apart], axis=0).astype(np.float32))


def step(records: Sequence[Record], floors: Mapping[Key, Floor] | None = None, *, at: int = 0) -> StepRecords:
    """A step whose tensors have floors of FLOOR times their norm, but for those given."""
    made = {r.key: floor_of(r) for r in records if r.kind == "tensor"}
    return StepRecords(at, tuple(records), {**made, **(floors or {})})


def noise(seed: int, shape: tuple[int, ...] = (1, 96, 40)) -> np.ndarray:
    """Standard normal numbers, 3,840 of them unless asked otherwise: too many for an exact sketch."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def moved(x: np.ndarray, floors: float, seed: int = 99) -> np.ndarray:
    """`x` moved at random by `floors` times FLOOR of its norm, in float64 so that the distance is what it says."""
    wide = x.astype(np.float64)
    by = np.random.default_rng(seed).standard_normal(x.shape)
    return wide + by * (floors * FLOOR * np.linalg.norm(wide) / np.linalg.norm(by))


@dataclass
class Walk:
    """Two sides' records of one step, written down site by site in execution order.

        walk = Walk()
        walk.site("a:in.x", 0)
        walk.site("a:out", 1e5)      # 1e5 floors apart
        diffs = walk.judge()

    Attributes:
        at: the step. reference, candidate: the records so far.
    """

    at: int = 0
    reference: list[Record] = field(default_factory=list)
    candidate: list[Record] = field(default_factory=list)

    def site(self, site: str, floors: float = 0.0, *, branch: str = "cond", call: int = 0, held: bool = False) -> None:
        """A tensor that both sides have, `floors` times its floor apart."""
        x = noise(len(self.reference)).astype(np.float64)
        self.pair(
            tensor(site, x, branch=branch, step=self.at, call=call, held=held),
            tensor(site, moved(x, floors), branch=branch, step=self.at, call=call, held=held),
        )

    def loop(self, port: str, floors: float = 0.0, *, branch: str = "") -> None:
        """One of the loop's own values, held whole as the loop holds them."""
        self.site(f"loop:{port}", floors, branch=branch, held=True)

    def pair(self, reference: Record | None, candidate: Record | None) -> None:
        """What either side has, as it is."""
        if reference is not None:
            self.reference.append(reference)
        if candidate is not None:
            self.candidate.append(candidate)

    def ends(self, noise_pred: float = 0.0, latents: float = 0.0) -> None:
        """The end of a step: both branches' predictions, the guided one, the latents after."""
        for branch in ("cond", "uncond"):
            self.loop("noise_pred", noise_pred, branch=branch)
        self.loop("noise_pred", noise_pred)
        self.loop("latents.after", latents)

    def steps(self, floors: Mapping[Key, Floor] | None = None) -> tuple[StepRecords, StepRecords]:
        """Both sides' steps, the reference's with floors."""
        return step(self.reference, floors, at=self.at), StepRecords(self.at, tuple(self.candidate))

    def judge(self, judge: Judge | None = None, floors: Mapping[Key, Floor] | None = None) -> dict[str, SiteDiff]:
        """The judged sites by `branch/site`, in order."""
        found = (judge or Judge()).step(*self.steps(floors))
        return {f"{d.key.branch}/{d.key.site}": d for d in found}


def births(diffs: Mapping[str, SiteDiff]) -> dict[str, str]:
    """Site -> birth, where there is one, in order."""
    return {site: d.birth for site, d in diffs.items() if d.birth is not None}
