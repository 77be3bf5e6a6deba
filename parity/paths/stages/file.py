"""The candidate of a text stage that is a file: a port's embeddings, as its first stage wrote them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from parity.hooks.reduce.transfer import to_numpy
from parity.hooks.sites import SitePlan
from parity.paths.stages.stage import Inputs, Seen, Stage
from parity.paths.stages.whole import Whole


class HeldStage(Whole):
    """Gives back what it holds, whatever it is given.

    Args:
        stage: with the rows of the file's own masks. held: branch -> output by name, on the CPU.
    """

    def __init__(self, stage: Stage, held: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        super().__init__(stage)
        self.held = held

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        held = {k: (to_numpy(x), str(x.dtype).removeprefix("torch.")) for k, x in self.held[branch].items()}
        return self.stage.seen(held, branch)


def held_dtype(tensors: list[torch.Tensor]) -> str:
    """The coarsest dtype that holds these values exactly, whatever they are stored as: what they were computed in, or
    rounded to at the end."""
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if all(torch.equal(x.to(dtype).to(torch.float32), x.to(torch.float32)) for x in tensors):
            return name
    return "float32"
