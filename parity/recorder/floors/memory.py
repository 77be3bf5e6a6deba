"""What a scheduler remembers of earlier steps, as the runs beside the script's remember it.

Problem. A multistep scheduler keeps predictions, one of second order the latents and the slope of its half step. A copy
of the script's has those of the script: what a run differed by in them was lost, and the floors of Heun's and KDPM2's
steps were those of the last call alone.

How. After each step, what each tensor that the run's copy holds differs by from the script's is kept; before the next
step it is put on the new copy. Which attributes these are nobody needs to know.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from typing import Any

import torch

Place = tuple[str, int]
"""An attribute of a scheduler, and the position in its list; -1 where it is a tensor itself."""


def remembered(scheduler: Any) -> Iterator[tuple[Place, torch.Tensor]]:
    """The floating tensors that a scheduler holds, but for its schedule, with their places."""
    for name, value in vars(scheduler).items():
        several = isinstance(value, MutableSequence)
        for i, x in enumerate(value if several else [value]):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1:
                yield (name, i if several else -1), x


def shifts_of(run: Any, script: Any) -> dict[Place, torch.Tensor]:
    """What a run's scheduler remembers otherwise than the script's, in float64."""
    own = dict(remembered(script))
    alike = ((place, x, own[place]) for place, x in remembered(run) if place in own and own[place].shape == x.shape)
    return {place: x.to(torch.float64) - y.to(torch.float64) for place, x, y in alike}


def remember(scheduler: Any, shifts: dict[Place, torch.Tensor], dtype: torch.dtype | None) -> None:
    """Put on a copy of the script's scheduler what a run remembers otherwise.

    Args:
        dtype: of the run; None for the script's.
    """
    for (name, i), x in list(remembered(scheduler)):
        shift = shifts.get((name, i))
        if shift is None or shift.shape != x.shape:
            continue
        moved = (x.to(torch.float64) + shift).to(dtype or x.dtype)
        if i < 0:
            setattr(scheduler, name, moved)
        else:
            getattr(scheduler, name)[i] = moved
