"""Row frames: one order of tokens for both sides, padded rows apart.

Two implementations may put the same text tokens in different orders, and what they compute for padded tokens is
nobody's business. A frame says, for one branch, which of a side's rows holds the frame's row i and whether it is
valid; taken through it, both sides' tensors line up. A part is a range of rows of a joint sequence, such as the
image tokens before the text tokens.

A port may put its text tokens in another order than the reference, keep fewer padded ones, or leave a stream out that
is padding throughout. Which of its rows is which nobody declares: its own mask says it. Wherever one is an input, the
rows that it lets through are the valid ones. Put first, in the order in which they stand, they are the reference's
valid rows in the order in which its frame has them. The mask may be a tracer: frames are then computed inside the
compiled program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from parity.records import READ


@dataclass(frozen=True, slots=True)
class RowFrame:
    """An order of rows and which of them count.

    Attributes:
        index: int32 [frame rows], the side's row that holds each frame row (any row where there is none).
        weight: float32 [frame rows], 1 where the row is valid, 0 where it is padding or absent.
    """

    index: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, slots=True)
class Part:
    """A range of rows (axis 1) of a tensor, and the frame they are taken in.

    Attributes:
        name: suffix of the port, `""` for the whole tensor.
        start, stop: rows of axis 1; stop None for the end.
        frame: name of the frame, `""` for none; `JOINT` for one that the call's own mask of so many rows makes.
    """

    name: str = ""
    start: int = 0
    stop: int | None = None
    frame: str = ""


WHOLE: tuple[Part, ...] = (Part(),)

JOINT = "joint"
"""The frame of a joint sequence of image and text: its own order, and of its rows those whose keys a query reads."""

SEQUENCE = (Part(), Part(name=READ, frame=JOINT))
"""The parts of a joint sequence that a mask was given for: the whole, and beside it the rows that are read."""


class RowRule(Protocol):
    """What a model family knows of its token rows."""

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        """How the rows of the tensor at a site divide; `WHOLE` for tensors without token rows.

        Args:
            masked: numbers of rows that somebody's own code, whose streams may have other lengths, was given a mask
                for.
        """
        ...


class NoRows:
    """The rule of a family whose tokens are all valid and always in one order."""

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        return WHOLE


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """The rule where nothing is known of a model but the masks that it is given: whatever has as many rows as one of
    them is observed whole, and once more with only the rows that the mask lets through.

    Attributes:
        inside: whether this holds inside the model alone, and not of what it is given and gives; then of masks of keys
            that are called an attention's, since others may say anything.
    """

    inside: bool = False

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if (self.inside and module == "") or len(shape) < 3 or shape[1] not in masked or "mask" in port:
            return WHOLE
        return SEQUENCE


def take(x: Any, index: Any, weight: Any) -> tuple[Any, Any]:
    """Rows of `x` (torch or torchax [B, R, ...]) in a frame's order: the valid ones, the padded ones; zeros elsewhere.

    Args:
        index: int32 [F] tensor of the same kind as x. weight: float32 [F].
    """
    rows = x.index_select(1, index)
    return kept(rows, weight > 0), kept(rows, weight <= 0)


def kept(rows: Any, which: Any) -> Any:
    """Some rows of [B, R, ...] as they are, and zeros for the others: no row is moved, so none leaves its device.

    Args:
        which: bool [R] tensor of the same kind, or [B, R]; of another number of items, what is of any of them counts.
    """
    if which.ndim > 1 and which.shape[0] != rows.shape[0]:
        which = which.any(0)
    items = which.shape[0] if which.ndim > 1 else 1
    return rows.where(which.reshape(items, rows.shape[1], *([1] * (rows.ndim - 2))), rows.new_zeros(()))


def unordered(rows: Any) -> Any:
    """Sums over the rows of [B, R, ..., C], [B, 4, ..., C]: the same in any order of them, and with zeros between.

    Rows that differ by little have sums that differ by little. Neighbouring channels of a row are added up too, so that
    the sums change where two rows exchange some of their channels.
    """
    # A compiler makes no copies of the rows; torch makes some in float32.
    pieces = [rows] if hasattr(rows, "_elem") else rows.split(AT_ONCE, 1)
    return sum(_sums(piece if piece.dtype == torch.float64 else piece.to(torch.float32)) for piece in pieces)


AT_ONCE = 4096
"""Rows whose sums are made together."""


def _sums(rows: Any) -> Any:
    beside = rows.roll(1, -1)
    return torch.stack([x.sum(1) for x in (rows, rows.abs(), (rows + beside).abs(), (rows - beside).abs())], 1)


def is_mask(port: str, x: torch.Tensor) -> bool:
    """Whether an input says which keys are read."""
    return x.ndim >= 2 and not x.is_complex() and (x.dtype == torch.bool or "mask" in port)


def _is_of_keys(name: str, x: Any) -> bool:
    """Whether an input is called an attention's mask, and says of each key, not of a query and a key, whether it is
    read: a mask of another name may say anything."""
    named = "attn_mask" in name or "attention_mask" in name
    whole = named and isinstance(x, torch.Tensor) and x.ndim > 1 and x.shape[0] != x.shape[-1]
    return whole and x.numel() == x.shape[0] * x.shape[-1]


class Masks:
    """The masks that one call of the model has been given so far.

    Attributes:
        rule: how the rows of its tensors divide.
    """

    def __init__(self, rule: RowRule) -> None:
        self.rule = rule
        self._seen: dict[tuple[str, int], Any] = {}
        self._named: set[tuple[str, int]] = set()

    def see(self, module: str, named: Mapping[str, Any]) -> None:
        """Take the masks among the arguments of a module's call; of the same length a later one counts, or one that is
        called so."""
        for name, value in named.items():
            if self.rule == MaskedRows(inside=True):
                value = let_through(value) if _is_of_keys(name, value) else None
            if isinstance(value, torch.Tensor) and is_mask(name, value):
                at = (_head(module), int(value.shape[-1]))
                self._named |= {at} if "mask" in name else set()
                if "mask" in name or at not in self._named:
                    self._seen[at] = value

    def parts(self, module: str, port: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """How the rows of the tensor at a site divide, with the masks that this part of the model was given."""
        known = frozenset(length for head, length in self._seen if head in ("", _head(module)))
        return self.rule.parts(module, port, shape, known)

    def frame(
        self, module: str, part: Part, rows: int, frames: Mapping[str, tuple[Any, Any]], at: list[int], count: int
    ) -> tuple[Any, Any]:
        """Index and weight of a part's rows: what its mask says of so many rows, or those of the rule's own frame.

        Args:
            frames: the branch's, by name. at: the branch's rows in the batch. count: of the rows in it.

        Returns:
            Of a joint sequence of several items, each with a mask of its own, the weight is of each item.
        """
        valid = self.of(module, rows, part.start)
        if valid is None:  # a joint sequence has one
            return cut(*frames[part.frame], rows)
        own = valid.shape[0] == count
        if part.frame == JOINT and (len(at) > 1 if own else valid.shape[0] != 1):
            return read_of(valid[at] if own else valid)
        valid = valid[at[0] if at[0] < valid.shape[0] else 0]
        return read_of(valid) if part.frame == JOINT else paired(valid, *frames[part.frame])

    def of(self, module: str, rows: int, before: int) -> torch.Tensor | None:
        """bool [B, rows], True where a row is valid; None where no mask says.

        Args:
            before: rows of the joint sequence before these, which a mask of the whole of it covers too.
        """
        for head in (_head(module), ""):
            for length, skipped in ((rows, 0), (before + rows, before)):
                mask = self._seen.get((head, length))
                if mask is not None:
                    return valid_rows(mask)[:, skipped:]
        return None


def read_of(valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index and weight of a sequence in its own order: the rows whose keys a query reads.

    Args:
        valid: bool [R] or [B, R], True where a key is read.
    """
    return torch.arange(valid.shape[-1], dtype=torch.int32, device=valid.device), valid.to(torch.float32)


def let_through(mask: Any) -> torch.Tensor | None:
    """bool [B, rows], the rows that an argument lets through, where nothing but the argument is known of a model.

    One that lets nothing through lets all through: it is added, or says what is left out.

    Returns:
        None for what is no mask.
    """
    if not isinstance(mask, torch.Tensor) or mask.ndim < 2 or mask.is_complex():
        return None
    valid = valid_rows(mask)
    return valid | ~valid.any()


def _head(module: str) -> str:
    return module.partition(".")[0]


def valid_rows(mask: torch.Tensor) -> torch.Tensor:
    """bool [B, rows]: of keys that any query sees. Additive masks hold 0 for what is valid, the others 1 or True."""
    if mask.dtype == torch.bool:
        valid = mask
    else:
        additive = (mask < 0).any()
        valid = torch.where(additive, mask == 0, mask > 0)
    return valid if valid.ndim == 2 else valid.flatten(1, -2).any(dim=1)


def all_through(mask: torch.Tensor) -> torch.Tensor:
    """A mask of the same form that lets every key through."""
    additive = mask.dtype != torch.bool and bool((mask < 0).any())
    return torch.zeros_like(mask) if additive else torch.ones_like(mask)


def paired(valid: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index and weight of a frame by a side's own mask, where that lets as many rows through as the frame has.

    Another number is another mask, which is compared itself: it must not make the rows differ too. As many rows as the
    frame has then stand as the frame says; as many as it has valid ones are all valid (an additive mask that leaves
    none of them out is all zeros, as one of ones and zeros is that lets none through).

    Args:
        valid: bool [R], of the side's own rows. index, weight: of the frame, [F].
    """
    frame, wanted = int(index.shape[0]), weight.sum()
    own = frame_of(valid, frame)
    whole = (index, weight) if valid.shape[0] == frame else frame_of(torch.ones_like(valid), frame)
    other = (valid.sum() != wanted) & ((wanted == valid.shape[0]) | (valid.shape[0] == frame))
    return torch.where(other, whole[0], own[0]), torch.where(other, whole[1], own[1])


def frame_of(valid: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Index int32 [rows] and weight float32 [rows] of a frame: the valid rows first, in their order.

    Args:
        valid: bool [R], of the side's own rows, of which there may be fewer than the frame has, or more.
    """
    order = torch.argsort((~valid).to(torch.int32), stable=True)[:rows]
    weight = valid.index_select(0, order).to(torch.float32)
    absent = rows - order.shape[0]
    return torch.nn.functional.pad(order.to(torch.int32), (0, absent)), torch.nn.functional.pad(weight, (0, absent))


def cut(index: torch.Tensor, weight: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A frame of a tensor that has fewer rows than it was made for: what lies beyond them is absent."""
    return index.clamp(max=max(rows - 1, 0)), torch.where(index < rows, weight, torch.zeros_like(weight))
