"""The padding masks that a call of a model is given, by which its rows are paired with the reference's.

Problem. A port may put its text tokens in another order than the reference, keep fewer padded ones, or leave a stream
out that is padding throughout. Which of its rows is which nobody declares.

How. Its own mask says it: wherever one is an input, the rows that it lets through are the valid ones. Put first, in the
order in which they stand, they are the reference's valid rows in the order in which its frame has them. The mask may be
a tracer: frames are then computed inside the compiled program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parity.hooks.rows import JOINT, PairedRule, Part


class Masks:
    """The masks that one call of the model has been given so far.

    Attributes:
        rule: how the rows of its tensors divide.
    """

    def __init__(self, rule: PairedRule) -> None:
        self.rule = rule
        self._seen: dict[tuple[str, int], Any] = {}

    def see(self, module: str, named: Mapping[str, Any]) -> None:
        """Take the masks among the arguments of a module's call; a later one of the same length counts."""
        for name, value in named.items():
            if "mask" in name and isinstance(value, torch.Tensor) and value.ndim >= 2 and not value.is_complex():
                self._seen[_head(module), int(value.shape[-1])] = value

    def parts(self, module: str, port: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """How the rows of the tensor at a site divide, with the masks that this part of the model was given."""
        known = frozenset(length for head, length in self._seen if head in ("", _head(module)))
        return self.rule.paired(module, port, shape, known)

    def frame(
        self, module: str, part: Part, rows: int, frames: Mapping[str, tuple[Any, Any]], at: int, count: int
    ) -> tuple[Any, Any]:
        """Index and weight of a part's rows: what its mask says of so many rows, or those of the rule's own frame.

        Args:
            frames: the branch's, by name. at: the branch's place in the batch. count: of the branches in it.

        Returns:
            Of a joint sequence of several items, each with a mask of its own, the weight is of each item.
        """
        valid = self.of(module, rows, part.start)
        if valid is not None and part.frame == JOINT and valid.shape[0] not in (1, count):
            return read_of(valid, None)
        if valid is not None:
            valid = valid[at if at < valid.shape[0] else 0]
        if part.frame == JOINT:
            assert valid is not None  # it is a part only of what has a mask
            return read_of(valid, sum((weight <= 0).sum() for _, weight in frames.values()) if frames else None)
        index, weight = frames[part.frame]
        return cut(index, weight, rows) if valid is None else paired(valid, index, weight)

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


def read_of(valid: torch.Tensor, padded: torch.Tensor | int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Index and weight of a sequence in its own order: the rows whose keys a query reads.

    Where the mask leaves out another number of rows than the text has padded, nobody knows what those are: all count.

    Args:
        valid: bool [R] or [B, R], True where a key is read. padded: how many rows of the text are padding; None where
            the mask is all that is known.
    """
    weight = (valid if padded is None else valid | ((~valid).sum() != padded)).to(torch.float32)
    return torch.arange(valid.shape[-1], dtype=torch.int32, device=valid.device), weight


def let_through(mask: Any) -> torch.Tensor | None:
    """bool [B, rows], the rows that an argument lets through, where nothing but the argument is known of a model.

    Floats that are all 0 are taken for an additive mask: of ones and zeros, it would let nothing through.

    Returns:
        None for what is no mask, and for one that lets all through, unless only the compiled program will know.
    """
    if not isinstance(mask, torch.Tensor) or mask.ndim < 2 or mask.is_complex():
        return None
    valid = valid_rows(mask)
    if mask.is_floating_point():
        valid = valid | (mask == 0).all()
    try:
        return None if bool(valid.all()) else valid
    except TypeError:  # a tracer has no values
        return valid


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
