"""What takes a stage's place as a whole: it gives outputs, and shows nothing of how."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.paths.stages.stage import Stage
from parity.reached import Reached
from parity.settings import parse


class Whole:
    """A runner without modules or weights; who extends it says what `run` gives. See
    `parity.paths.stages.stage.TorchStage`.

    Args:
        stage: whose place it takes.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reached = Reached(parse("torchax"), stage.name)
        self.modules: dict[str, str] = {}

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(())
