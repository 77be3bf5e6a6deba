"""Where the rows of both sides lie in one call of the model, so that a value of one can stand in the other's place.

A candidate may put its text tokens in another order than the reference, or keep fewer padded ones. Its own masks say
which of its rows count: the first of these is the first of the reference's, and so on (`parity.hooks.rows`). Of rows
that stand in one place: how far the candidate's are from the reference's own, and how far rounding alone moves those.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from parity.floors import L2_LIMIT
from parity.hooks.rows import JOINT, Masks, Part, all_through, is_mask, take, valid_rows
from parity.hooks.torchtools import real
from parity.paths.reference import TorchBackend
from parity.records import Floor, Key, Moments, Record
from parity.sketch import geometry
from parity.transforms import COMPUTED, LEFT, done


def is_none(other: torch.Tensor) -> bool:
    """Whether what the candidate handed out stands for None."""
    return other.numel() == 0 and other.dtype == torch.bool


def is_exact(x: torch.Tensor) -> bool:
    """Whether it holds integers or booleans, which are equal or differ."""
    return not (x.is_floating_point() or x.is_complex())


def is_new(port: str, other: torch.Tensor | None, given: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> bool:
    """Whether what the candidate hands a module, and the reference does not, is none of the call's other arguments,
    `given` (both sides'), nor a mask that lets all through: ones, or zeros that are added."""
    if other is None or other.numel() == 0:
        return False
    zeros = other.is_floating_point() and not other.any()
    if is_mask(port, other) and (zeros or torch.equal(other, all_through(other))):
        return False
    return not any(x is not None and torch.equal(x, other) for _, x in given)


class Layout:
    """Of one branch of one call.

    Attributes:
        side: the reference's model, and how its rows lie. own_order: whether the candidate's masks may say that its
            rows stand elsewhere.
        elsewhere: those (module, argument) that say so. _ours, _theirs: the masks so far.
    """

    def __init__(self, side: TorchBackend, branch: str, own_order: bool) -> None:
        self.side, self.branch, self.own_order = side, branch, own_order
        self.elsewhere: set[tuple[str, str]] = set()
        self._ours, self._theirs = Masks(side.rules[branch]), Masks(side.rules[branch])

    def see(self, module: str, given: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Take in the arguments of a call, by name, of both sides: the masks among them."""
        both = ((x, other) for x, other in given.values() if other is not None and other.ndim == x.ndim == 3)
        rows = [(x, other.to(x)) for x, other in both if x.is_floating_point()]
        for port, (x, other) in given.items():
            self._ours.see(module, {port: x})
            if self.own_order and other is not None and is_mask(port, x) and other.ndim >= 2:
                other = other.to(x.device)
                ours, theirs = valid_rows(x), valid_rows(other)
                if not torch.equal(ours, theirs) and torch.equal(ours.sum(-1), theirs.sum(-1)):
                    if not _stand_there(rows, ours[0], theirs[0]):
                        other = x  # another mask over rows in one order
                    else:
                        self.elsewhere.add((module, port))
                self._theirs.see(module, {port: other})

    def masks(self, key: Key, x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which keys each of two masks lets through, bool [B, rows], equal where only their order is another; None
        where that cannot be compared."""
        ours = _through(x)
        if is_none(other):
            return ours, torch.ones_like(ours)
        if other.ndim < 2 or len(other) != len(x):
            return None
        theirs = _through(other.to(x.device))
        if (key.module, key.port.removeprefix("in.")) in self.elsewhere:
            return ours, ours
        return (ours, theirs) if ours.shape == theirs.shape else None

    def placed(self, module: str, port: str, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
        """The candidate's value as the reference would hold it; None where it cannot stand there."""
        if is_mask(port, x):
            if is_none(other):
                return all_through(x)
            return other.to(x.device) if other.shape == x.shape and other.dtype == x.dtype else None
        if other.is_complex() != x.is_complex():
            return None
        if is_exact(x):
            same = other.shape == x.shape and torch.equal(other.to(x).to(other), other)
            return other.to(x) if same and not self.elsewhere else None
        other = other.to(device=x.device, dtype=x.dtype)
        if other.shape != x.shape and other.ndim == x.ndim > 3 and other.swapaxes(1, 2).shape == x.shape:
            other = other.swapaxes(1, 2)  # tokens before heads, as JAX has them, or behind
        if other.shape != x.shape:
            one = other.ndim != x.ndim and [n for n in other.shape if n != 1] == [n for n in x.shape if n != 1]
            other = other.reshape(x.shape) if one else _channels_first(x, other)
        parts = self.parts(module, port, x)
        other = _turned_round(x, other, parts)
        same = other.shape == x.shape
        if not self.elsewhere or not any(part.frame for part in parts):
            return other if same else None
        if x.ndim < 3 or other.ndim != x.ndim or x.shape[2:] != other.shape[2:]:
            return None
        new = x.clone()
        for part in parts:
            before, rows = part.start, slice(part.start, part.stop)
            if not part.frame:  # image tokens, which stand as they are
                if other[:, rows].shape != new[:, rows].shape:
                    return None
                new[:, rows] = other[:, rows]
                continue
            ours = self._ours.of(module, x.shape[1] - before, before)
            theirs = self._theirs.of(module, other.shape[1] - before, before)
            if ours is None or theirs is None or int(ours.sum()) != int(theirs.sum()):
                return None
            new[:, before:][:, ours[0]] = in_order(x[:, before:][:, ours[0]], other[:, before:][:, theirs[0]])
        return new

    def parts(self, module: str, port: str, x: torch.Tensor) -> tuple[Part, ...]:
        """How the rows of a value of the reference's divide."""
        rule = self._ours if self.side.network.pairs_rows else self.side.rules[self.branch]
        parts = rule.parts(module, port, tuple(real(x).shape))
        return tuple(p for p in parts if p.frame == JOINT) or parts  # of a joint sequence, what is read

    def apart(self, key: Key, x: torch.Tensor, placed: torch.Tensor, dtype: torch.dtype) -> dict[Key, Apart]:
        """How far apart the rows that count are, by each part of a value (`of_part`).

        Args:
            x, placed: the reference's, and the candidate's in its place, which had it in this dtype.
        """
        found = {}
        for part in self.parts(key.module, key.port, x):
            ours, theirs = (self.rows(key.module, part, value) for value in (x, placed))
            site = key.site + (f"@{part.name}" if part.name and part.frame != JOINT else "")
            found[of_part(key, part)] = Apart.of(replace(key, site=site), ours, theirs, dtype)
        return found

    def rows(self, module: str, part: Part, x: torch.Tensor) -> torch.Tensor:
        """The rows of a part that count, as they are now."""
        rows = real(x)
        rows = rows[:, part.start : part.stop] if part.name else rows
        frames = self.side.frames[self.branch]
        if part.frame == JOINT or (part.frame and self.side.network.pairs_rows):
            rows = take(rows, *self._ours.frame(module, part, int(rows.shape[1]), frames, [0], 1))[0]
        elif part.frame:
            rows = take(rows, *frames[part.frame])[0]
        return rows.detach().clone()


def of_part(key: Key, part: Part) -> Key:
    """The key under which a part of a value's rows is looked up."""
    return replace(key, site=f"{key.site}@{part.name}")


def _channels_first(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The candidate's [B, ..., C], also as rows of tokens, as [B, C, ...], where it holds nearly the reference's
    values: tokens may be in another order. Any other value as it is."""
    wide = x.ndim > 3 and other.ndim > 2 and x.numel() == other.numel()
    if not wide or (x.shape[0], x.shape[1]) != (other.shape[0], other.shape[-1]):
        return other
    found = other.reshape(x.movedim(1, -1).shape).movedim(-1, 1)
    return found if float((found - x).norm()) <= CLOSE_IN_16_BITS * float(x.norm()) else other


def _turned_round(x: torch.Tensor, other: torch.Tensor, parts: Sequence[Part]) -> torch.Tensor:
    """The candidate's rows of a joint sequence with its two streams in the reference's order, where one of them holds
    the reference's values only so: what reads an attention shows whether they are put back."""
    if len(parts) != 2 or not all(part.name for part in parts) or x.shape[2:] != other.shape[2:]:
        return other
    turned = other.roll(max(part.start for part in parts) - other.shape[1], 1)
    close = CLOSE if other.dtype.itemsize > 2 else CLOSE_IN_16_BITS

    def near(held: torch.Tensor, part: Part) -> bool:
        ours, theirs = (value[:, part.start : part.stop] for value in (x, held))
        return ours.shape == theirs.shape and float((theirs - ours).norm()) <= close * float(ours.norm())

    return turned if any(near(turned, part) and not near(other, part) for part in parts) else other


def _stand_there(rows: Sequence[tuple[torch.Tensor, torch.Tensor]], ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether the rows that came with two masks hold one side's values where its own mask lets them through, rather
    than both sides' in one order; also where no rows came with them, or another number of them.

    Args:
        rows: of both sides, [B, R, C]; two streams may share a mask, in any order. ours, theirs: bool [R].
    """
    several = [(rows[i], rows[j]) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    joined = [*rows, *((torch.cat([a, c], 1), torch.cat([b, d], 1)) for (a, b), (c, d) in several if _join(a, c, b, d))]
    fit = [(a, b) for a, b in joined if a.shape == b.shape and a.shape[1] == len(ours) == len(theirs)]
    there = [float((a[:, ours] - in_order(a[:, ours], b[:, theirs])).norm()) for a, b in fit]
    same = [float((a[:, ours] - b[:, ours]).norm()) for a, b in fit]
    return not fit or min(there) < min(same)


def in_order(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """The candidate's rows [B, R, ...] in the order of those of the reference's that they are nearest to; as they stand
    where no order brings them nearer."""
    if not 1 < ours.shape[1] <= MOST_ROWS:
        return theirs
    return torch.stack([b[_nearest(real(a).flatten(1), real(b).flatten(1))] for a, b in zip(ours, theirs, strict=True)])


def _nearest(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """For each row of [R, C] another of the candidate's."""
    a, b = (torch.nan_to_num(x.to(torch.float32)) for x in (ours, theirs))
    far, stands = torch.cdist(a - a.mean(0), b - a.mean(0)), torch.arange(len(a), device=a.device)
    found = far.argmin(1)
    if found.unique().numel() < len(found):
        free = far.clone()
        for i in range(len(found)):
            found[i] = free[i].argmin()
            free[:, found[i]] = torch.inf
    return found if far[stands, found].norm() < far.diagonal().norm() else stands


MOST_ROWS = 4096
"""Rows of text that are looked at in every order: more than a text encoder gives."""


def _join(*streams: torch.Tensor) -> bool:
    return len({(x.dtype, len(x), x.shape[2]) for x in streams}) == 1


def _through(mask: torch.Tensor) -> torch.Tensor:
    """bool [B, rows]: the keys that a mask lets through; zeros that are added leave none out."""
    valid = valid_rows(mask)
    return valid if not mask.is_floating_point() or bool(valid.any()) else torch.ones_like(valid)


CLOSE = 1e-2
"""Relative distance up to which an output is taken for the reference's: sites that agree are nearer than 1e-3."""
CLOSE_IN_16_BITS = 0.25
"""The same of values in 16 bits, where a block's floor hides a module that is a fifth off."""

SOME_ROUNDINGS, UNBIASED = 2.0**-8, 1e-3
"""Relative distance up to which a value is taken for the reference's as a dtype of 16 bits has it, and how far its size
may be another: a layer norm of bfloat16's, whose steps each round, is 3.0e-3 off, and its size 2.7e-4."""

LEAST = 2.0**-23
"""Of a value's norm: what storing and fusing alone may move, below any floor measured (1.3e-7 and more)."""

PER_BIN, BINS = 512, 64
"""Elements of a row bin at least, and bins at most."""


ANOTHER_FAULT = 0.5
"""Share of a difference that another fault leaves beside the one that explains it elsewhere."""
TURNED, TURNED_IN_16_BITS = 1e-4, 1e-2
"""Relative distance of rows of the same values, each sorted; of rows that only have one distribution, of 2,048 values,
it is 3e-2."""


@dataclass
class Apart:
    """One value, or a part of its rows, that the runs which measure floors are held against.

    Attributes:
        key: of step 0. own, other: the reference's rows that count, and the candidate's.
        sizes, bins: norms of the reference's rows and of the difference, by row bin. most: the largest of a run that
            rounds otherwise, by row bin; whole: its norm. said: what was done, where `words` need not look for it.
        by: the hypothesis that says so. tried: what each hypothesis leaves of the difference.
        dtype: the candidate's, where that has 16 bits and none of the reference's runs have. wide: whether none of them
            computes it in 16 bits.
        made_of: the operations that made it of the candidate's values, as bits.
    """

    key: Key
    own: torch.Tensor
    other: torch.Tensor
    sizes: np.ndarray
    bins: np.ndarray
    most: np.ndarray
    whole: float = 0.0
    said: str = ""
    by: object = None
    tried: dict[object, float] = field(default_factory=dict)
    dtype: str = ""
    wide: bool = True
    made_of: int = 0

    @classmethod
    def of(cls, key: Key, ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype = torch.float32) -> Apart:
        """Of rows of the same shape; `dtype`: the candidate's own. What is not finite on one side is infinitely far."""
        bins = norms(_between(ours, theirs))
        bins[np.isnan(bins)] = np.inf
        narrow = dtype.itemsize == 2 and ours.dtype.itemsize > 2 and not is_exact(ours)
        own = str(dtype).removeprefix("torch.") if narrow else ""
        sizes, wide = norms(_finite(ours)), ours.dtype.itemsize != 2
        return cls(key, ours, theirs, sizes, bins, np.zeros_like(bins), dtype=own, wide=wide)

    @property
    def apart(self) -> float:
        """Norm of the difference."""
        return _whole(self.bins)

    @property
    def norm(self) -> float:
        """Of the reference's rows."""
        return _whole(self.sizes)

    def widen(self, other: torch.Tensor) -> None:
        """Take in the same rows as a run has them that rounds otherwise."""
        bins = norms(_between(self.own, other))
        if other.dtype.itemsize == 2:
            self.dtype = ""
            # What only stores a wide value in 16 bits computes it in more.
            self.wide &= _whole(norms(_between(self.own.to(other.dtype), other))) <= LEFT * _whole(bins)
        if np.isfinite(bins).all():
            self.most = np.maximum(self.most, bins)
            self.whole = max(self.whole, _whole(bins))

    def explain(self, other: torch.Tensor, words: str, by: object) -> None:
        """Say how the candidate's rows were made, where the same rows as made otherwise are nearest to those.

        Args:
            by: the hypothesis by which they were.
        """
        if not self.far():
            return
        left = self.tried[by] = _whole(norms(_between(other, self.other)))
        if left <= max(LEFT * self.apart, self.floor.l2) and left <= min(self.tried.values()):
            self.said, self.by = f"the candidate's is the reference's {words}", by

    def is_left_by(self, by: object) -> bool:
        """Whether a hypothesis leaves much of the difference."""
        return self.tried.get(by, math.inf) > max(ANOTHER_FAULT * self.apart, L2_LIMIT * self._least)

    def far(self, floors: float = 1.0) -> bool:
        """Whether more than rounding is between the two: so many times as much."""
        return self.finite and self.apart > floors * self._least

    @property
    def exact(self) -> bool:
        """See `is_exact`."""
        return is_exact(self.own)

    @property
    def _least(self) -> float:
        """What rounding moves."""
        return max(self.whole, 0.0 if self.exact else LEAST * self.norm)

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.bins).all())

    def near(self, dtype: torch.dtype) -> bool:
        """Whether it can be the same quantity in the same layout, of a candidate that has it in this dtype."""
        close = CLOSE if dtype.itemsize > 2 else CLOSE_IN_16_BITS
        return self.apart <= close * self.norm

    def is_turned(self, dtype: torch.dtype, factors: Collection[float] = (1.0,)) -> bool:
        """Whether each row, each column of the rows, or of heads, holds the reference's values, of a candidate that has
        them in this dtype, in another order, or times one of these factors."""
        if self.near(dtype) or not self.finite or self.own.ndim < 2:
            return False
        most = (TURNED if dtype.itemsize > 2 else TURNED_IN_16_BITS) * self.norm

        def same(factor: float, axis: int) -> bool:
            ours, theirs = ((f * x).double().sort(axis).values for f, x in ((factor, self.own), (1.0, self.other)))
            return float((theirs - ours).norm()) <= most * max(abs(factor), 1.0)

        return any(same(factor, axis) for factor in factors for axis in range(-1, -min(self.own.ndim, 4), -1))

    @property
    def words(self) -> str:
        """What was done to the reference's values to give the candidate's; empty where nobody knows, or where rounding
        alone may have done it."""
        if self.said or not self.far():
            return self.said
        found = done(*(x.detach().cpu().double().numpy() for x in (self.own, self.other)))
        found = found if self.wide or found != COMPUTED else None
        if found is None and self.dtype and self._is_rounded():
            return f"the candidate's is the reference's computed in {self.dtype}"
        return "" if found is None else str(found)

    @property
    def is_stored(self) -> bool:
        """Whether the candidate's is the reference's rounded to the 16 bits that it is in, and nothing else."""
        if not self.dtype or self.own.is_complex():
            return False
        stored = self.own.to(getattr(torch, self.dtype))
        return self.apart > 0.0 and _whole(norms(_between(stored, self.other))) <= LEFT * self.apart

    def _is_rounded(self) -> bool:
        """Whether the difference is as small as roundings to 16 bits, and no factor."""
        own, other = self.own.double(), self.other.double()
        gain = float((own * other).sum()) / max(self.norm**2, 1e-300)
        near = self.apart <= SOME_ROUNDINGS * self.norm
        return near and not own.is_complex() and abs(gain - 1.0) <= UNBIASED

    @property
    def record(self) -> Record:
        """A record with the reference's moments, whose value is the norms of the difference."""
        moments = Moments(self.own.numel(), 0, 0, 0.0, 0.0, 0.0, self.norm)
        value = self.bins.astype(np.float32)
        return Record(self.key, "tensor", tuple(self.own.shape), "float32", moments=moments, value=value)

    @property
    def floor(self) -> Floor:
        """No bin is taken to be more exact than the whole (`parity.floors.level`)."""
        whole = self._least
        share = self.sizes / self.norm if self.norm > 0 else np.ones_like(self.sizes)
        least = whole * np.maximum(share, 1.0 / np.sqrt(share.size))
        return Floor(whole, np.maximum(self.most, least).astype(np.float32))


def _between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The difference; 0 where both hold the same infinity, or NaN."""
    x, y = (v.double() if is_exact(v) else v for v in (x, y))
    return torch.where(x.isnan() & y.isnan() | (x == y), 0.0, y - x)


def _finite(x: torch.Tensor) -> torch.Tensor:
    """What is not finite as 0: a mask that is added has no norm."""
    return torch.where(torch.isfinite(x), x, 0.0)


def _whole(bins: np.ndarray) -> float:
    """The norm of all, of the norms by row bin."""
    return float(np.sqrt((bins**2).sum()))


def norms(x: torch.Tensor) -> np.ndarray:
    """The norm of each row bin, float64 [at most `BINS`]: runs of neighbouring rows."""
    rows = geometry(tuple(x.shape)).rows
    squares = x.double().square().reshape(max(rows, 1), -1).sum(dim=1) if x.numel() else torch.zeros(1)
    bins = max(1, min(BINS, x.numel() // PER_BIN, rows))
    each = -(-squares.numel() // bins)
    padded = torch.nn.functional.pad(squares, (0, each * bins - squares.numel()))
    return np.asarray(padded.reshape(bins, each).sum(dim=1).sqrt().cpu().numpy(), np.float64)
