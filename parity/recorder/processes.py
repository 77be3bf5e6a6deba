"""A script that runs as one of several processes (torchrun, jax.distributed): the first one records, or each its share.

Hooks see what a process holds. Where the model is whole in each process, the first one's values are everybody's. Where
its weights are split over them (DTensor, as by `parallelize_module` or FSDP), each records what it holds, blocks of
tensors that say which block they are, and reading the golden adds them up. What parity would run beside the script in
one process alone (floors, an early end) would leave the others in a collective that never ends, and is refused before
anything runs.

A program of JAX's over the devices of several processes runs in each of them, the one with the reductions too. So each
observes, what is spread over them is gathered, and the first one writes what is whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parity.errors import UsageError
from parity.golden.disk.shards import folder_of
from parity.hooks.reduce.shards import is_split


def place() -> tuple[int, int]:
    """(rank, number of processes) of this one; torchrun's own before the script has joined them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _of_jax() -> tuple[int, int]:
    """The same of JAX's processes; a script that has not joined them yet could not any more, were JAX asked."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if jax is None or not getattr(distributed, "is_initialized", bool)():
        return 0, 1
    return jax.process_index(), jax.process_count()


@dataclass(frozen=True, slots=True)
class Process:
    """This process among those of the script.

    Attributes:
        rank, count: of it. split: whether the model is split over them, so that each records its share.
        together: whether they are JAX's, whose programs run in all of them: each observes, and the first one writes.
    """

    rank: int = 0
    count: int = 1
    split: bool = False
    together: bool = False

    @property
    def writes(self) -> bool:
        """Whether it writes a golden."""
        return not self.rank or self.split

    @property
    def shard(self) -> tuple[int, int]:
        """As in a golden's provenance."""
        return (self.rank, self.count) if self.split else (0, 1)

    def folder(self, where: str) -> str:
        """Where this process records to."""
        return folder_of(where, self.rank) if self.split else where


def one_of(models: Mapping[str, Any], stop_after: int | None) -> Process:
    """This process.

    Args:
        models: by name. stop_after: of `parity.record`.

    Raises:
        UsageError: several processes, and an early end.
    """
    rank, count = place()
    if count == 1:
        index, several = _of_jax()
        return Process(index, several, together=several > 1)
    if stop_after is not None:
        raise UsageError(f"parity.record: one of {count} processes cannot leave the loop early: leave stop_after out")
    modules = (model for model in models.values() if isinstance(model, torch.nn.Module))
    return Process(rank, count, any(is_split(x) for model in modules for x in model.parameters()))
