"""Row frames: one order of tokens for both sides, padded rows apart.

Two implementations may put the same text tokens in different orders, and what they compute for padded tokens is
nobody's business. A frame says, for one branch, which of a side's rows holds the frame's row i and whether it is
valid; taken through it, both sides' tensors line up. A part is a range of rows of a joint sequence, such as the
image tokens before the text tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

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

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        """How the rows of the tensor at a site divide; `WHOLE` for tensors without token rows."""
        ...


class PairedRule(RowRule, Protocol):
    """A row rule that places the rows of somebody's own code too."""

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        """What `parts` says, where the streams may have other lengths.

        Args:
            masked: numbers of rows that it was given a mask for.
        """
        ...


class NoRows:
    """The rule of a family whose tokens are all valid and always in one order."""

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        return WHOLE

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        return WHOLE


class MaskedRows(NoRows):
    """The rule where nothing is known of a model but the masks that it is given: whatever has as many rows as one of
    them stands as it is, and beside it those of its rows that the mask lets through."""

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        return SEQUENCE if len(shape) > 2 and shape[1] in masked and "mask" not in port else WHOLE


Frames = Mapping[str, Mapping[str, RowFrame]]
"""Branch -> frame name -> frame."""


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
    zero = rows.new_zeros(()) if hasattr(rows, "new_zeros") else 0
    return rows.where(which.reshape(-1, rows.shape[1], *([1] * (rows.ndim - 2))), zero)
