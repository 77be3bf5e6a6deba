"""Streams of records: what the loop's own values in them say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.golden.records import LOOP, StepRecords
from parity.paths.plan import ENDS, NAMES, RAN, State
from parity.runs.request import Say


def state_of(step: StepRecords, when: str) -> State:
    """The state a step started from (`before`) or left (`after`), from its records; empty where they hold none."""
    values = ((r.key, r.value) for r in step.records if r.key.module == LOOP and r.key.port.endswith(f".{when}"))
    return {key.port.rpartition(".")[0]: np.asarray(x) for key, x in values if isinstance(x, np.ndarray)}


@dataclass
class Ends:
    """What a stream ends in.

    Attributes:
        latents: final latents [B, C, T, H, W] by run: `""` is the side's own, others measured its floors.
        names: modules that the side named. ran: attention site -> the function that computed it.
    """

    latents: dict[str, np.ndarray] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> np.ndarray:
        return self.latents[""]

    @property
    def beside(self) -> Mapping[str, np.ndarray]:
        return {name: x for name, x in self.latents.items() if name}


def until_end(steps: Iterable[StepRecords], ends: Ends) -> Iterator[StepRecords]:
    """The steps of a stream; what follows them is taken into `ends`."""
    for step in steps:
        if step.step != ENDS:
            yield step
            continue
        for r in step.records:
            if r.key.port == NAMES:
                ends.names = tuple(n for n in str(r.value).split(",") if n)
            elif r.key.port == RAN:
                ends.ran = dict(line.split("=", 1) for line in str(r.value).splitlines())
            else:
                ends.latents[r.key.branch] = np.asarray(r.value)


def counted(steps: Iterable[StepRecords], text: str, total: int, say: Say) -> Iterator[StepRecords]:
    """The steps, with a line for each once it is there."""
    for step in steps:
        say(text, step.step, total)
        yield step


def exhaust(steps: Iterator[StepRecords]) -> None:
    """Take what follows the last step."""
    for _ in steps:
        continue
