"""The steps of a recording: what was seen between two steps of the scheduler becomes one part of the golden.

A step ends with `scheduler.step`. Without a scheduler it ends where a branch is called a second time. What happens
outside the loop (the decoder) is collected for the part that is written last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parity.golden import GoldenWriter
from parity.golden.floors import least, level, widen
from parity.golden.records import LOOP, Floor, Key, Moments, Provenance, Record, StepRecords
from parity.golden.values import shown_record, value_record

STAGE, AFTER = "transformer", "vae"
OUTSIDE = -1
"""The step of what happens outside the loop."""

_FIRST = ("schedule:", f"{LOOP}:timestep", f"{LOOP}:sigma", f"{LOOP}:dt", f"{LOOP}:step_index", f"{LOOP}:history")


@dataclass
class Part:
    """The records of one step, and for each run that rounds otherwise its records of the same values.

    What no other run gave has no floor: a difference there is shown, and whether it is rounding is not known.

    Attributes:
        records: of what the script computed. beside: name of the run -> its records; the truth's come first.
    """

    records: list[Record] = field(default_factory=list)
    beside: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, records: Iterable[Record]) -> None:
        """Add what was seen."""
        self.records += records

    def add_beside(self, name: str, records: Iterable[Record]) -> None:
        """Add what a run that rounds otherwise gave."""
        self.beside.setdefault(name, []).extend(records)

    def keep(self, names: Container[str]) -> None:
        """Leave out the runs that are not among these: of one that failed half the step is here."""
        self.beside = {name: records for name, records in self.beside.items() if name in names}

    def whole(self, step: int, truth: str) -> StepRecords:
        """The step in execution order, with its floors; without other runs it has none.

        Args:
            truth: name of the run around which those after it round; empty where that is the script's own.
        """
        records = sorted(self.records, key=_order)
        floors: dict[Key, Floor] = {}
        if self.beside:
            measured = {r.key for others in self.beside.values() for r in others}
            known = [r for r in records if r.key in measured or r.key.module in (LOOP, "schedule")]
            floors = {r.key: least(r) for r in known if r.kind == "tensor"}
            centre = records
            for name, others in self.beside.items():
                widen(floors, centre, others)
                centre = others if name == truth else centre
            level(floors, centre)
            floors |= frame_floors(records, floors)
        return StepRecords(step, tuple(records), floors)


def frame_floors(records: Sequence[Record], floors: Mapping[Key, Floor]) -> dict[Key, Floor]:
    """Floors of what is made of the decoder's output without arithmetic of its own: pictures, as floats or 8 bits.

    Floats move as the output does, by their own spread. Of values rounded to 255 levels, those within `e` of the middle
    between two, a share of 2 e, may become the next one, where `e` is what the output's floor is in levels.
    """
    found: dict[Key, Floor] = {}
    out = next((r for r in records if r.key.site == "decode:out" and r.key in floors), None)
    if out is None or out.moments is None:
        return found
    floor, a = floors[out.key], out.moments
    for record in records:
        b = record.moments
        if record.key in floors or b is None:
            continue
        if record.dtype == "uint8":
            levels = 127.5 * floor.l2 / math.sqrt(a.count)
            found[record.key] = Floor(max(1.0, math.sqrt(2 * levels * b.count)))
        elif record.key.site == "decode:frames":
            found[record.key] = Floor(floor.l2 * _spread(b) / _spread(a) * math.sqrt(b.count / a.count))
    return found


def _spread(m: Moments) -> float:
    """Standard deviation."""
    return math.sqrt(max(m.l2**2 / max(m.count, 1) - m.mean**2, 1e-300))


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
            replaced. truth: see `Part.whole`. number: of the step that is being seen.
        writes: whether anything is written; one of several processes that observe the same writes.
        partial: whether the last step ended before the script's did.
        repeated: steps in which a branch was called more than once: the last call of each is kept.
    """

    where: str
    provenance: Callable[[], Provenance]
    overwrite: bool
    truth: str = ""
    number: int = 0
    writes: bool = True
    partial: bool = False
    repeated: list[int] = field(default_factory=list)
    part: Part = field(default_factory=Part)
    outside: Part = field(default_factory=Part)
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
        if not self.part.records:
            return
        if self.writes:
            if self._writer is None:
                self.begin()
            assert self._writer is not None
            last = {r.key: r for r in self.part.records}
            if len(last) < len(self.part.records):
                self.repeated.append(self.number)
                self.part.records = list(last.values())
            self._writer.write_step(self.part.whole(self.number, self.truth))
        self.number, self.part = self.number + 1, Part()

    def finish(self, complete: bool) -> None:
        """Write what is left; a recording that did not end by itself stays marked incomplete, its last step in part."""
        if not self.writes:
            return
        self.partial = not complete and bool(self.part.records)
        if self.partial or any(r.key.module == LOOP for r in self.part.records):
            self.end_step()
        else:  # what was named after the last step
            self.outside.add(replace(r, key=replace(r.key, stage=AFTER, step=OUTSIDE)) for r in self.part.records)
        if self._writer is None and self.outside.records:
            self.begin()  # a script that decodes alone has no step
        if self._writer is None:
            return
        if self.outside.records:
            self._writer.write_step(self.outside.whole(OUTSIDE, ""))
        if complete:
            self._writer.finish()
