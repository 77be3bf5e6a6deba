"""A script that runs as one of several processes (torchrun): the first one records, or nobody does.

Hooks see what a process holds. Where the model is whole in each process, the first one's values are everybody's. Where
its weights are split over them (DTensor, as by `parallelize_module` or FSDP), they are a share, which compares with
nothing. And what parity would run beside the script in one process alone (floors, an early end) would leave the
others in a collective that never ends. Both are refused before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from parity.errors import UsageError


def place() -> tuple[int, int]:
    """(rank, number of processes) of this one; torchrun's own before the script has joined them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def one_of(models: Mapping[str, Any], floors: bool, stop_after: int | None) -> tuple[int, int]:
    """(rank, number of processes) of this one; (0, 1) where it is the only one.

    Args:
        models: by name. floors: whether they are asked for. stop_after: of `parity.record`.

    Raises:
        UsageError: several processes, and a model that is split over them, floors, or an early end.
    """
    rank, count = place()
    if count == 1:
        return 0, 1
    for name, model in models.items():
        split = next((n for n, x in model.named_parameters() if hasattr(x, "placements")), None)
        if split is not None:
            raise UsageError(
                f"parity.record: the weights of {name} are split over {count} processes ('{split}' is a DTensor), and "
                "each sees only its share: record the model whole, in one process"
            )
    if floors:
        raise UsageError(
            f"parity.record: one of {count} processes cannot measure floors, it would leave the others waiting: give "
            "floors=() (--floors none), or record in one process"
        )
    if stop_after is not None:
        raise UsageError(f"parity.record: one of {count} processes cannot leave the loop early: leave stop_after out")
    return rank, count
