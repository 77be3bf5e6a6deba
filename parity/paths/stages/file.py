"""The candidate of a text stage that is a file: a port's embeddings, as its first stage wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from parity.errors import UsageError
from parity.golden.records import StepRecords
from parity.hooks.calls import Call
from parity.hooks.reduce.transfer import to_numpy
from parity.hooks.sites import SitePlan
from parity.paths.closer.local import Rows
from parity.paths.closer.modules import Modules
from parity.paths.stages.stage import Inputs, Seen, Stage
from parity.reached import Reached
from parity.settings import parse

FILE = "the candidate's embeddings are a file, which has no modules; take --forcing none"


class HeldStage:
    """Gives back what it holds, whatever it is given; see `parity.paths.stages.stage.Runner`.

    Args:
        stage: with the rows of the file's own masks. held: branch -> output by name, on the CPU.
    """

    def __init__(self, stage: Stage, held: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self.stage, self.held = stage, held
        self.reached = Reached(parse("torchax"), stage.name)
        self.modules: dict[str, str] = {}

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(())

    def alone(self, rows: Rows) -> Modules:
        raise UsageError(FILE)

    def operations(self, call: Call, step: int) -> StepRecords:
        raise UsageError(FILE)

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        held = {k: (to_numpy(x), str(x.dtype).removeprefix("torch.")) for k, x in self.held[branch].items()}
        return Seen({k: x for k, (x, _) in held.items()}, tuple(self.stage.records(held, branch)))


def held_dtype(tensors: list[torch.Tensor]) -> str:
    """The coarsest dtype that holds these values exactly, whatever they are stored as: what they were computed in, or
    rounded to at the end."""
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if all(torch.equal(x.to(dtype).to(torch.float32), x.to(torch.float32)) for x in tensors):
            return name
    return "float32"
