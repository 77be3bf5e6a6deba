"""Streams of records: what the loop's own values in them say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from parity.paths.plan import ENDS, IDLE, NAMES, RAN, Array
from parity.records import StepRecords
from parity.runs.request import Say

Outputs = Mapping[str, Array]
"""What a run came to: the loop's `latents`, or a stage's `cond.prompt_embeds`, `.frames`."""


@dataclass
class Ends:
    """What a stream ends in.

    Attributes:
        runs: what each run came to: `""` is the side's own, others measured its floors.
        names: modules that the side named. ran: attention site -> the function that computed it.
        idle: why a pass would not rest on what the side's code installed.
    """

    runs: dict[str, dict[str, Array]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    @property
    def own(self) -> Outputs:
        return self.runs[""]

    @property
    def beside(self) -> dict[str, Outputs]:
        """Of the other runs."""
        return {name: x for name, x in self.runs.items() if name}

    def joined(self, beside: Mapping[str, Outputs]) -> Ends:
        """The same with other runs beside its own."""
        return replace(self, runs={**self.runs, **{name: dict(x) for name, x in beside.items()}})


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
            elif r.key.port == IDLE:
                ends.idle = tuple(str(r.value).splitlines())
            else:
                ends.runs.setdefault(r.key.branch, {})[r.key.port] = Array(np.asarray(r.value), r.dtype)


def counted(steps: Iterable[StepRecords], text: str, total: int, say: Say) -> Iterator[StepRecords]:
    """The steps, with a line for each once it is there."""
    for step in steps:
        say(text, step.step, total)
        yield step


def exhaust(steps: Iterator[StepRecords]) -> None:
    """Take what follows the last step."""
    for _ in steps:
        continue
