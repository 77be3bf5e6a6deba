"""How far a value of the candidate's is from the reference's own, and how far rounding alone moves that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from parity.records import Floor, Key, Moments, Record
from parity.sketch import geometry
from parity.transforms import done

CLOSE = 1e-2
"""Relative distance up to which an output is taken for the reference's: sites that agree are nearer than 1e-3."""

LEAST = 2.0**-23
"""Of a value's norm: what storing and fusing alone may move, below any floor measured (1.3e-7 and more)."""

PER_BIN, BINS = 512, 64
"""Elements of a row bin at least, and bins at most."""


@dataclass
class Apart:
    """One value, or a part of its rows, that the runs which measure floors are held against.

    Attributes:
        key: of step 0. own, other: the reference's rows that count, and the candidate's. norm: of the reference's.
        bins: norms of the difference, by row bin. most: the largest of a run that rounds otherwise, by row bin; whole:
            its norm. said: what was done, where `words` need not look for it.
    """

    key: Key
    own: torch.Tensor
    other: torch.Tensor
    norm: float
    bins: np.ndarray
    most: np.ndarray
    whole: float = 0.0
    said: str = ""

    @classmethod
    def of(cls, key: Key, ours: torch.Tensor, theirs: torch.Tensor) -> Apart:
        """Of rows of the same shape. What is not finite on one side is infinitely far."""
        bins = norms(_between(ours, theirs))
        bins[np.isnan(bins)] = np.inf
        whole = float(np.sqrt((norms(_finite(ours)) ** 2).sum()))
        return cls(key, ours, theirs, whole, bins, np.zeros_like(bins))

    def widen(self, other: torch.Tensor) -> None:
        """Take in the same rows as a run has them that rounds otherwise."""
        bins = norms(_between(self.own, other))
        if np.isfinite(bins).all():
            self.most = np.maximum(self.most, bins)
            self.whole = max(self.whole, float(np.sqrt((bins**2).sum())))

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.bins).all())

    @property
    def near(self) -> bool:
        """Whether it can be the same quantity in the same layout."""
        return bool(np.sqrt((self.bins**2).sum()) <= CLOSE * self.norm)

    @property
    def words(self) -> str:
        """What was done to the reference's values to give the candidate's; empty where nobody knows, or where rounding
        alone may have done it."""
        if self.said or not self.finite or float(np.sqrt((self.bins**2).sum())) <= self.floor.l2:
            return self.said
        found = done(*(x.detach().cpu().double().numpy() for x in (self.own, self.other)))
        return "" if found is None else str(found)

    @property
    def record(self) -> Record:
        """A record with the reference's moments, whose value is the norms of the difference."""
        moments = Moments(self.own.numel(), 0, 0, 0.0, 0.0, 0.0, self.norm)
        value = self.bins.astype(np.float32)
        return Record(self.key, "tensor", tuple(self.own.shape), "float32", moments=moments, value=value)

    @property
    def floor(self) -> Floor:
        """No bin is taken to be more exact than the whole (`parity.floors.level`)."""
        whole = max(self.whole, LEAST * self.norm)
        own = norms(_finite(self.own))
        share = own / self.norm if self.norm > 0 else np.ones_like(own)
        least = whole * np.maximum(share, 1.0 / np.sqrt(own.size))
        return Floor(whole, np.maximum(self.most, least).astype(np.float32))


def _between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The difference; 0 where both hold the same infinity, or NaN."""
    return torch.where(x.isnan() & y.isnan() | (x == y), 0.0, y - x)


def _finite(x: torch.Tensor) -> torch.Tensor:
    """What is not finite as 0: a mask that is added has no norm."""
    return torch.where(torch.isfinite(x), x, 0.0)


def norms(x: torch.Tensor) -> np.ndarray:
    """The norm of each row bin, float64 [at most `BINS`]: runs of neighbouring rows."""
    rows = geometry(tuple(x.shape)).rows
    squares = x.double().square().reshape(max(rows, 1), -1).sum(dim=1) if x.numel() else torch.zeros(1)
    bins = max(1, min(BINS, x.numel() // PER_BIN, rows))
    each = -(-squares.numel() // bins)
    padded = torch.nn.functional.pad(squares, (0, each * bins - squares.numel()))
    return np.asarray(padded.reshape(bins, each).sum(dim=1).sqrt().cpu().numpy(), np.float64)
