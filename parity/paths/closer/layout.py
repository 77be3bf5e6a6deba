"""Where the rows of both sides lie in one call of the model, so that a value of one can stand in the other's place.

A candidate may put its text tokens in another order than the reference, or keep fewer padded ones. Its own masks say
which of its rows count: the first of these is the first of the reference's, and so on (`parity.hooks.masks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from parity.hooks.masks import Masks, all_through, valid_rows
from parity.hooks.rows import JOINT, NoRows, PairedRule, Part, RowRule, take


@dataclass(frozen=True)
class Watched:
    """A model of the reference's, in torch, and how its rows lie.

    Attributes:
        rules: which rows count at each site, by branch. frames: the row frames by branch and name, on its device.
        pairs_rows: whether the masks that it is given say which rows count.
    """

    model: torch.nn.Module
    rules: Mapping[str, RowRule]
    frames: Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]
    pairs_rows: bool = False


def is_mask(port: str, x: torch.Tensor) -> bool:
    """Whether an input says which keys are read."""
    return x.ndim >= 2 and not x.is_complex() and (x.dtype == torch.bool or "mask" in port)


def is_none(other: torch.Tensor) -> bool:
    """Whether what the candidate handed out stands for None."""
    return other.numel() == 0 and other.dtype == torch.bool


@dataclass
class Layout:
    """Of one branch of one call.

    Attributes:
        model: the reference's. own_order: whether the candidate's masks may say that its rows stand elsewhere.
        moved: whether they do. _ours, _theirs: the masks so far.
    """

    model: Watched
    branch: str
    own_order: bool
    moved: bool = False
    _ours: Masks = field(init=False)
    _theirs: Masks = field(init=False)

    def __post_init__(self) -> None:
        rule = cast(PairedRule, self.model.rules[self.branch]) if self.model.pairs_rows else NoRows()
        self._ours, self._theirs = Masks(rule), Masks(rule)

    def see(self, module: str, port: str, x: torch.Tensor, other: torch.Tensor | None) -> None:
        """Take in an argument of a call, where it is a mask."""
        self._ours.see(module, {port: x})
        if self.own_order and other is not None and is_mask(port, x) and other.ndim >= 2:
            self._theirs.see(module, {port: other.to(x.device)})
            ours, theirs = valid_rows(x), valid_rows(other.to(x.device))
            self.moved |= not torch.equal(ours, theirs) and torch.equal(ours.sum(-1), theirs.sum(-1))

    def masks(self, x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which keys each of two masks lets through, bool [B, rows], equal where only their order is another; None
        where that cannot be compared."""
        ours = valid_rows(x)
        if is_none(other):
            return ours, torch.ones_like(ours)
        if other.ndim < 2 or len(other) != len(x):
            return None
        theirs = valid_rows(other.to(x.device))
        if self.own_order and torch.equal(ours.sum(-1), theirs.sum(-1)):
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
        if not (x.is_floating_point() or x.is_complex()):
            exact = other.shape == x.shape and torch.equal(other.to(x).to(other), other)
            return other.to(x) if exact else None
        other = other.to(device=x.device, dtype=x.dtype)
        same = other.shape == x.shape
        if not self.moved or not any(part.frame for part in self.parts(module, port, x)):
            return other if same else None
        if x.ndim < 3 or other.ndim != x.ndim or x.shape[2:] != other.shape[2:]:
            return None
        ours, theirs = self._ours.of(module, x.shape[1], 0), self._theirs.of(module, other.shape[1], 0)
        if ours is None or theirs is None or int(ours.sum()) != int(theirs.sum()):
            return None
        new = x.clone()
        new[:, ours[0]] = other[:, theirs[0]]
        return new

    def parts(self, module: str, port: str, x: torch.Tensor) -> tuple[Part, ...]:
        """How the rows of a value of the reference's divide."""
        rule = self._ours if self.model.pairs_rows else self.model.rules[self.branch]
        parts = rule.parts(module, port, tuple(real(x).shape))
        return tuple(p for p in parts if p.frame == JOINT) or parts  # of a joint sequence, what is read

    def rows(self, module: str, part: Part, x: torch.Tensor) -> torch.Tensor:
        """The rows of a part that count, as they are now."""
        rows = real(x)
        rows = rows[:, part.start : part.stop] if part.name else rows
        frames = self.model.frames[self.branch]
        if part.frame == JOINT or (part.frame and self.model.pairs_rows):
            rows = take(rows, *self._ours.frame(module, part, int(rows.shape[1]), frames, 0, 1))[0]
        elif part.frame:
            rows = take(rows, *frames[part.frame])[0]
        return rows.detach().clone()


def real(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor's real view, as the tap has it."""
    if not x.is_complex():
        return x
    return torch.view_as_real(x).flatten(-2) if x.ndim else torch.view_as_real(x)
