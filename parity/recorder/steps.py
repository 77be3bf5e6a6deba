"""The steps of a recording: what was seen between two steps of the scheduler becomes one part of the golden.

A step ends with `scheduler.step`. A loop that computes its updates itself has none: there a step ends where the model
is called with another timestep, once it is called with a third before any step of the scheduler (with a second, where
no scheduler is recorded); one call more, to compile, is no step. What happens outside the loop (the decoder) is
collected for the part that is written last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from parity.golden import GoldenWriter
from parity.records import LOOP, Key, Provenance, Record, StepRecords
from parity.sketch import shown_record, value_record

STAGE, AFTER = "transformer", "vae"
OUTSIDE = -1
"""The step of what happens outside the loop."""

_FIRST = ("schedule:", f"{LOOP}:timestep", f"{LOOP}:sigma", f"{LOOP}:dt", f"{LOOP}:step_index", f"{LOOP}:history")


def _step(number: int, records: Iterable[Record]) -> StepRecords:
    """A step in execution order, without floors: other runs of the script measure them."""
    return StepRecords(number, tuple(sorted(records, key=_order)), {})


def _order(record: Record) -> int:
    """The schedule and the latents before a step come first; everything else stays where it was seen."""
    site = record.key.site
    if site.startswith(_FIRST):
        return 0
    return 1 if site == f"{LOOP}:latents.before" else 2


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a transformer in the step that is being seen.

    Attributes:
        of: whose. start: of its records among those of the step. branches: in its batch. by_order: whether its name is
            its place among the calls of the step. timestep: that it was given; None where nobody knows. latents: a
            copy of what it was given first; None likewise.
    """

    of: object
    start: int
    branches: tuple[str, ...]
    by_order: bool
    timestep: float | None
    latents: torch.Tensor | None

    def on(self, sample: torch.Tensor | None) -> bool:
        """Whether it was made on these latents, which a scheduler may scale and a batch may repeat."""
        x = self.latents
        if x is None or sample is None or x.shape[1:] != sample.shape[1:]:
            return False
        a, b = x[: len(sample)].float().flatten(), sample[: len(x)].float().flatten()
        return a.shape == b.shape and bool((a @ b).square() > SAME * (a @ a) * (b @ b))


SAME = 0.998
"""Square of the cosine from which two latents are the same, scaled or rounded."""
ORDER = ("cond", "uncond")
"""Names of the calls of a step that nobody names."""


def in_order(number: int) -> str:
    """The name of a step's call by its place, from 0."""
    return ORDER[number] if number < len(ORDER) else f"call{number + 1}"


@dataclass
class Steps:
    """What is recorded so far.

    Attributes:
        where: of the golden. provenance: made when the first step is written. overwrite: whether one that is there is
            replaced. number: of the step that is being seen. part, outside: what was seen in it, and outside the loop.
        writes: whether anything is written; one of several processes that observe the same writes.
        partial: whether the last step ended before the script's did.
        stepped: whether a step of the scheduler was seen; None where none is recorded. calls: of the step that is
            being seen. before: calls that were made before those of the first step, on other latents.
        repeated: steps in which a branch was called more than once: the last call of each is kept.
    """

    where: str
    provenance: Callable[[], Provenance]
    overwrite: bool
    number: int = 0
    writes: bool = True
    partial: bool = False
    stepped: bool | None = False
    calls: list[Called] = field(default_factory=list)
    before: int = 0
    repeated: list[int] = field(default_factory=list)
    part: list[Record] = field(default_factory=list)
    outside: list[Record] = field(default_factory=list)
    _writer: GoldenWriter | None = None

    def value(self, port: str, value: np.ndarray, dtype: str, branch: str = "") -> Record:
        """A record of one of the loop's own values, held whole."""
        return value_record(Key(STAGE, self.number, branch, f"{LOOP}:{port}"), value, dtype)

    def after_loop(self, port: str, value: np.ndarray, dtype: str, call: int, *, held: bool) -> Record:
        """A record of a value of the decoder; a video is as large as everything else together: its sketch alone."""
        record = value_record(Key(AFTER, OUTSIDE, "", f"decode:{port}", call), value, dtype)
        return record if held else replace(record, value=None)

    def shown(self, frames: np.ndarray, dtype: str, call: int) -> list[Record]:
        """Records of what a decoder gave: whole, and what a picture shows of it."""
        whole = self.after_loop("out", frames, dtype, call, held=False)
        return [whole, shown_record(whole, frames)]

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self._writer is None

    def begin(self) -> None:
        """Make the golden, before anything is computed for it.

        Raises:
            UsageError: there is one already.
        """
        self._writer = GoldenWriter(self.where, self.provenance(), overwrite=self.overwrite)

    def turn(self, timestep: float | None) -> None:
        """A call with this timestep begins: in a loop that has no scheduler's, it may begin a step."""
        groups = self._groups()
        if self.stepped or timestep is None or not groups or timestep == self.calls[-1].timestep:
            return
        if self.number or len(groups) > 1 or self.stepped is None:
            self._split(groups)

    def _groups(self) -> list[list[Called]]:
        """The calls that followed each other with the same timestep."""
        return [list(calls) for _, calls in itertools.groupby(self.calls, lambda c: c.timestep)]

    def _split(self, groups: list[list[Called]]) -> None:
        """End the steps of a loop that has no scheduler's."""
        part = self.part
        ends = [*(calls[0].start for calls in groups[1:]), len(part)]
        start = 0
        for calls, end in zip(groups, ends, strict=True):
            self.part = part[start:end]
            self.calls = [replace(c, start=c.start - start) for c in calls]
            start = end
            self.end_step(calls[-1].latents)

    def _settle(self, sample: torch.Tensor | None) -> None:
        """Name the step's calls by their places in it, and leave out what was called before the first step's own calls,
        on other latents."""
        first = 0 if self.number else next((i for i, c in enumerate(self.calls) if c.on(sample)), 0)
        ends = [*(c.start for c in self.calls[1:]), len(self.part)]
        part, number = self.part[: self.calls[0].start] if self.calls else self.part, Counter[object]()
        for i, (c, end) in enumerate(zip(self.calls, ends, strict=True) if self.calls else ()):
            name = in_order(number[c.of]) if c.by_order else ""
            number[c.of] += i >= first
            for r in self.part[c.start : end]:
                mine = r.key.branch in c.branches  # else named by the script
                key = replace(r.key, step=self.number, branch=name if name and mine else r.key.branch)
                part += [r if r.key == key else replace(r, key=key)] if i >= first or not mine else []
        self.part, self.before = part, self.before + first

    def end_step(self, sample: torch.Tensor | None = None) -> None:
        """Write the step; when this returns, it survives a kill.

        Args:
            sample: its latents, where they are known.
        """
        self._settle(sample)
        self.calls = []
        if not self.part:
            return
        if self.writes:
            if self._writer is None:
                self.begin()
            assert self._writer is not None
            last = {r.key: r for r in self.part}
            if len(last) < len(self.part):
                self.repeated.append(self.number)
                self.part = list(last.values())
            self._writer.write_step(_step(self.number, self.part))
        self.number, self.part = self.number + 1, []

    def finish(self, complete: bool) -> None:
        """Write what is left; a recording that did not end by itself stays marked incomplete, its last step in part."""
        if not self.writes:
            return
        groups = self._groups()
        if complete and not self.stepped and (self.number or len(groups) > 1):
            self._split(groups)
        self.partial = not complete and bool(self.part)
        if self.partial or any(r.key.module == LOOP for r in self.part):
            self.end_step()
        else:  # what was named after the last step
            self.outside.extend(replace(r, key=replace(r.key, stage=AFTER, step=OUTSIDE)) for r in self.part)
        if self._writer is None and self.outside:
            self.begin()  # a script that decodes alone has no step
        if self._writer is None:
            return
        if self.outside:
            self._writer.write_step(_step(OUTSIDE, self.outside))
        if complete:
            self._writer.finish()
