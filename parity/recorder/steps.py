"""The steps of a recording: what was seen between two steps of the scheduler becomes one part of the golden.

A step ends with `scheduler.step`; without a scheduler all calls are of one step. What happens outside the loop (the
decoder) is collected for the part that is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

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


@dataclass
class Steps:
    """What is recorded so far.

    Attributes:
        where: of the golden. provenance: made when the first step is written. overwrite: whether one that is there is
            replaced. number: of the step that is being seen. part, outside: what was seen in it, and outside the loop.
        writes: whether anything is written; one of several processes that observe the same writes.
        partial: whether the last step ended before the script's did.
        repeated: steps in which a branch was called more than once: the last call of each is kept.
    """

    where: str
    provenance: Callable[[], Provenance]
    overwrite: bool
    number: int = 0
    writes: bool = True
    partial: bool = False
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

    def end_step(self) -> None:
        """Write the step; when this returns, it survives a kill."""
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
