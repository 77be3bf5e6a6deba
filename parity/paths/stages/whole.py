"""What takes a stage's place as a whole: it gives outputs, and shows nothing of how."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.errors import UsageError
from parity.hooks.calls import Call
from parity.paths.closer.local import Rows
from parity.paths.closer.modules import Modules
from parity.paths.stages.stage import Stage
from parity.reached import Reached
from parity.records import StepRecords
from parity.settings import parse


class Whole:
    """A runner without modules or weights; who extends it says what `run` gives. See
    `parity.paths.stages.stage.Runner`.

    Args:
        stage: whose place it takes. why: the message to who asks for one of its modules.
    """

    def __init__(self, stage: Stage, why: str) -> None:
        self.stage, self.why = stage, why
        self.reached = Reached(parse("torchax"), stage.name)
        self.modules: dict[str, str] = {}

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(())

    def alone(self, rows: Rows) -> Modules:
        raise UsageError(self.why)

    def operations(self, call: Call, step: int) -> StepRecords:
        raise UsageError(self.why)
