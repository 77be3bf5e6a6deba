"""The steps of a recording: what was seen between two steps of the scheduler becomes one part of the golden.

A step ends with `scheduler.step`. A loop that computes its updates itself has none: there a step ends where the model
is called with another timestep, or at the same on other latents once it was called as often as in the first step, as
soon as a third begins before any step of the scheduler (a second, where no scheduler is recorded); one call more, to
compile, is no step. What happens outside the loop (the decoder) is collected for the part that is written last.

Which guidance branch a call of the transformer is of, diffusers' pipelines say themselves: each call is made within
`transformer.cache_context(NAME)`, `cond`, `uncond`, `pred_cond`, or `cond_uncond` for both in one batch, the
unconditional one first. Without it a batch in which the same latents are there twice holds both, whatever the order of
its rows, and the calls of a step are named in their order, `cond` first, as those pipelines make them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from parity.golden import GoldenWriter
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_torch import is_split
from parity.records import AFTER, LOOP, LOOP_STAGE, OUTSIDE, Key, Provenance, Record, StepRecords
from parity.sketch import value_record


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a transformer in the step that is being seen.

    Attributes:
        of: whose. start: of its records among those of the step. rows: the branch of each row of its batch, see
            `parity.hooks.tap.Tap`; of one branch its name alone. order: the names by which it has that of its place
            among the calls of the step; None where it does not. timestep: that it was given; None where nobody knows.
            latents: a copy of what it was given first; None likewise.
    """

    of: object
    start: int
    rows: tuple[str, ...]
    order: tuple[str, ...] | None
    timestep: float | None
    latents: torch.Tensor | None

    def on(self, sample: torch.Tensor | None) -> bool:
        """Whether it was made on these latents, which a scheduler may scale and a batch may repeat."""
        x = self.latents
        if x is None or sample is None or x.shape[1:] != sample.shape[1:]:
            return False
        a, b = x[: len(sample)].float().flatten(), sample[: len(x)].float().flatten()
        return a.shape == b.shape and bool((a @ b).square() > SAME * (a @ a) * (b @ b))


def _warm(calls: Sequence[Called], sample: torch.Tensor | None) -> int:
    """How many calls of a step there are before those on its latents."""
    return next((i for i, c in enumerate(calls) if c.on(sample)), 0)


def _is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool((x.nan_to_num(nan=1.0) == y.nan_to_num(nan=1.0)).all())


SAME = 0.998
"""Square of the cosine from which two latents are the same, scaled or rounded."""
ORDER = ("cond", "uncond")
"""Names of the calls of a step that nobody names."""


def names_of(rows: Iterable[str]) -> tuple[str, ...]:
    """The branches in a batch, in order."""
    return tuple(dict.fromkeys(filter(None, rows)))


def in_order(number: int, names: Sequence[str] = ORDER) -> str:
    """The name of a step's branch by its place, from 0."""
    return names[number] if number < len(names) else f"call{number + 1}"


TRACED = (
    "the transformer is called inside a jax.jit of the script's own, where nothing can be seen: only what is around it "
    "is recorded. To have its modules compared, compile it with torchax.compile without that jit, or give it as a "
    "port (parity diff GOLDEN port.py:build)"
)


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
            unlike: calls whose rows were taken for branches and are videos of one noise, which are left out.
        calling: cuts a value that is named within a call of a transformer into its branches; None outside one.
        least: calls of the first step; 0 while nobody knows.
        repeated: steps in which a branch was called more than once: the last call of each is kept. called: whether a
            call of a transformer was seen. named: sites that the script named outside a call. sites: of the steps so
            far. traced: whether the script traced one.
    """

    where: str
    provenance: Callable[[], Provenance]
    overwrite: bool
    number: int = 0
    writes: bool = True
    partial: bool = False
    stepped: bool | None = False
    calls: list[Called] = field(default_factory=list)
    least: int = 0
    before: int = 0
    unlike: int = 0
    calling: Callable[[str, np.ndarray], list[tuple[str, np.ndarray]]] | None = None
    repeated: list[int] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    called: bool = False
    traced: bool = False
    part: list[Record] = field(default_factory=list)
    outside: list[Record] = field(default_factory=list)
    _writer: GoldenWriter | None = None
    _provenance: Provenance | None = None

    def inside_jit(self, tell: Callable[[str], None]) -> None:
        """The script compiles the call of its transformer itself."""
        if not self.traced:
            self.traced = True
            tell(TRACED)

    def value(self, port: str, value: np.ndarray, dtype: str, branch: str = "") -> Record:
        """A record of one of the loop's own values, held whole."""
        return value_record(Key(LOOP_STAGE, self.number, branch, f"{LOOP}:{port}"), value, dtype)

    def after_loop(self, port: str, value: np.ndarray, dtype: str, call: int, *, held: bool) -> Record:
        """A record of a value of the decoder; a video is as large as everything else together: its sketch alone."""
        record = value_record(Key(AFTER, OUTSIDE, "", f"decode:{port}", call), value, dtype)
        return record if held else replace(record, value=None)

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return self._writer is None

    def _write(self, step: int, records: Sequence[Record]) -> None:
        """Write a step; the golden is made with the first.

        Raises:
            UsageError: there is a golden already, or it cannot be written.
        """
        if self._writer is None:
            self._provenance = self.provenance()
            self._writer = GoldenWriter(self.where, self._provenance, overwrite=self.overwrite)
        self._writer.write_step(StepRecords(step, tuple(records)))

    def turn(self, timestep: float | None, latents: torch.Tensor | None) -> None:
        """A call with this timestep begins: in a loop that has no scheduler's, it may begin a step."""
        groups = self._groups()
        if self.stepped or timestep is None or not groups:
            return
        if timestep == self.calls[-1].timestep and not self._again(groups, latents):
            return
        if self.number or len(groups) > 1 or self.stepped is None:
            self._split(groups)

    def _again(self, groups: Sequence[Sequence[Called]], latents: torch.Tensor | None) -> bool:
        """Whether a call at the timestep of the last begins a step nevertheless, as a predictor's behind a corrector's:
        as many were made as the first step has, and none on these latents."""
        made, begin = groups[-1], groups[0]
        least = self.least or (len(begin) - _warm(begin, begin[-1].latents) if len(groups) > 1 else 0)
        if latents is None or not 0 < least <= len(made):
            return False
        return not any(c.latents is None or _is_same(c.latents, latents) for c in made)

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

    def _settle(self, sample: torch.Tensor | None, videos: int) -> None:
        """Name the step's calls by their places in it, and leave out what was called before the first step's own calls,
        on other latents, and calls whose rows were taken for branches and are videos."""
        first = 0 if self.number else _warm(self.calls, sample)
        self.least = self.least or len(self.calls) - first
        ends = [*(c.start for c in self.calls[1:]), len(self.part)]
        part, number = self.part[: self.calls[0].start] if self.calls else self.part, Counter[object]()
        for i, (c, end) in enumerate(zip(self.calls, ends, strict=True) if self.calls else ()):
            name, several = "" if c.order is None else in_order(number[c.of], c.order), names_of(c.rows)
            alone = len(several) > 1 and len(several) == sum(map(bool, c.rows))  # of each branch one row
            are_videos = alone and videos > 1 and c.on(sample)
            self.unlike += i >= first and are_videos
            kept = i >= first and not are_videos
            number[c.of] += (len(several) if kept else 1) if i >= first else 0
            for r in self.part[c.start : end]:
                mine = r.key.branch in several  # else named by the script
                key = replace(r.key, step=self.number, branch=name if name and mine else r.key.branch)
                part += [r if r.key == key else replace(r, key=key)] if kept or not mine else []
        self.part, self.before = part, self.before + first

    def end_step(self, sample: torch.Tensor | None = None, videos: int = 0, before: Sequence[Record] = ()) -> None:
        """Write the step; when this returns, it survives a kill.

        Args:
            sample: its latents, where they are known. videos: of how many these are; 0 where nobody knows.
            before: what comes before all else that was seen in it: the schedule, the latents.
        """
        self._settle(sample, videos)
        self.part[:0] = before
        self.calls = []
        if not self.part:
            return
        if self.writes:
            last = {r.key: r for r in self.part}
            if len(last) < len(self.part):
                self.repeated.append(self.number)
                self.part = list(last.values())
            self.sites |= {r.key.site for r in self.part}
            self._write(self.number, self.part)
        self.number, self.part = self.number + 1, []

    def finish(self, complete: bool) -> None:
        """Write what is left; a recording that did not end by itself stays marked incomplete, its last step in part."""
        if not self.writes:
            return
        groups = self._groups()
        if complete and not self.stepped and (self.number or len(groups) > 1):
            last = self._named_last(groups)
            self._split(groups)
            self.part = last
        self.partial = not complete and bool(self.part)
        if self.partial or any(r.key.module == LOOP for r in self.part):
            self.end_step()
        else:  # what was named after the last step
            self.outside.extend(replace(r, key=replace(r.key, stage=AFTER, step=OUTSIDE)) for r in self.part)
        if self.outside:
            self._write(OUTSIDE, self.outside)
        if complete and self._writer is not None:  # a scheduler that made no step says nothing of how many there are
            told = self._provenance if self.stepped is False and self.number else None
            self._writer.finish(None if told is None else replace(told, steps=0))

    def _named_last(self, groups: Sequence[Sequence[Called]]) -> list[Record]:
        """Take what was named behind the last call, by a name that no step before has: it is of no step."""
        begin = groups[-1][0].start if groups else 0
        before = self.sites | {r.key.site for r in self.part[:begin]}
        own = [r.key.site in self.named and r.key.site not in before for r in self.part]
        end = len(own) - next((i for i, is_last in enumerate(reversed(own)) if not is_last), len(own))
        last, self.part = self.part[end:], self.part[:end]
        return last


# --- branches


BATCHED = ("uncond", "cond")
_TIMES = ("timestep", "timesteps", "t", "time", "sigma")
_GIVEN = ("hidden_states", "sample", "latents", "x")


def _timestep(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """The timestep that a call is given, by its name or as the first number, of several their mean; None for none."""
    named = (kwargs[name] for name in _TIMES if name in kwargs)
    first = (x for x in args if type(x) in (int, float) or (isinstance(x, torch.Tensor) and x.ndim < 2))
    found = next((x for x in (*named, *first) if x is not None), None)
    if isinstance(found, torch.Tensor):
        return float(found.double().mean()) if found.numel() and not found.is_complex() else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _latents(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """A copy of the latents that a call is given: by their name, or what has most axes; None for a share."""
    named = [x for name in _GIVEN if (x := _stacked(kwargs.get(name))) is not None]
    every = named or [x for value in (*args, *kwargs.values()) if (x := _stacked(value)) is not None]
    found = max(every, key=lambda x: x.ndim, default=None)
    return None if found is None or is_split(found) else found.detach().clone()


def _stacked(x: Any) -> torch.Tensor | None:
    """A batch of rows or pixels, as a tensor or as a list of them; None for anything else."""
    if type(x) is list and x and all(isinstance(item, torch.Tensor) and item.shape == x[0].shape for item in x):
        x = torch.stack(x)
    return x if isinstance(x, torch.Tensor) and x.ndim > 2 else None


MOST = 64
"""Rows of a batch that are compared with each other."""


def _times(latents: torch.Tensor | None, batch: int) -> tuple[int, ...]:
    """Of each row of a batch how often its latents were there before it; -1 of rows behind that fill the batch up.
    Empty where nobody knows.

    Of latents the first channel is compared: what a model is given beside them (a picture, a mask) is a branch's own.
    """
    if latents is None or len(latents) != batch or batch > MOST:
        return ()
    ways = [latents[..., 0]] if latents.ndim == 3 else [latents[:, 0], latents[:, :, 0]]
    return max((_times_of(own) for own in ways), key=max)


def _times_of(own: torch.Tensor) -> tuple[int, ...]:
    """The same of rows: behind those that are all there equally often others fill the batch up, or zeros."""
    many, own = len(own), own.nan_to_num(nan=1.0)
    first = [next(j for j in range(i + 1) if j == i or bool((own[j] == own[i]).all())) for i in range(many)]
    empty = [not bool(own[i].any()) for i in range(many)]
    used = max((i + 1 for i in range(many) if not empty[i]), default=many)
    equal = (n for n in range(used, 0, -1) if len({first[:n].count(row) for row in first[:n]}) == 1)
    least = next(equal)
    return tuple(first[:i].count(row) if i < least else -1 for i, row in enumerate(first))


def _batch(x: Any) -> int:
    """How many an argument is of: a batch of tensors, or a list of them; 0 for anything else."""
    if isinstance(x, torch.Tensor):
        return x.shape[0] if x.ndim > 1 else 0
    return len(x) if isinstance(x, list) and all(isinstance(item, torch.Tensor) for item in x) else 0


class Branches:
    """Names the calls of one transformer.

    A batch of two of which nobody knows the latents is taken for both branches, until a second call on the same ones
    at one timestep shows that it is two videos.

    Attributes:
        guided: says whether a batch of several holds both branches; None where nobody knows.
        given: the names that the user gave for the branches of a batch, in order; empty for none. steps: of the
            recording, which take in each call.
    """

    def __init__(self, guided: Callable[[], bool | None], given: tuple[str, ...], steps: Steps) -> None:
        self.guided, self.given, self.steps = guided, given, steps
        self._context = ""
        self._apart = False

    def failed(self) -> None:
        """The last call raised: another may take its place."""
        if self.steps.calls:
            self.steps.calls.pop()

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The branch of each row in the batch of a call that begins; see `Called`."""
        timestep, latents = _timestep(args, kwargs), _latents(args, kwargs)
        self.steps.turn(timestep, latents)
        rows, order = self._named(args, kwargs, timestep, latents)
        self.steps.called = True
        self.steps.calls.append(Called(self, len(self.steps.part), rows, order, timestep, latents))
        return rows

    def _named(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], timestep: float | None, latents: torch.Tensor | None
    ) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """The branch of each row, and the names in the order of the step's calls where it is named by its place."""
        batch = next((n for n in map(_batch, (*args, *kwargs.values())) if n), 1)
        name = self._context.removeprefix("pred_")
        said, times = bool(self.given) or name == "cond_uncond", _times(latents, batch)
        if name and not said and max(times, default=0) == 0:  # else more branches than it says are in the batch
            return (name,), None
        before = [c for c in self.steps.calls if c.of is self]
        again = [c for c in before if c.timestep == timestep and len(c.rows) == batch and c.on(latents)]
        self._apart |= any(len(names_of(c.rows)) > 1 for c in again)
        guided = self.guided()
        begun = sum(len(names_of(c.rows)) for c in before)
        names = self.given[begun:] if self.given else BATCHED
        if names and (said or (guided is not False and not self._apart)):
            many = max(times, default=0) + 1  # as many of the same latents; of two videos of one noise twice as many
            if many > 1 and (many == len(names) or many % len(names) or not (said or guided)):
                of = names if self.given else (*names, *map(in_order, range(len(names), many)))
                return tuple("" if i < 0 else in_order(i, of) for i in times), None
            known = not times or many > 1 if self.given else said or guided or (not times and batch == len(names))
            if known and batch % len(names) == 0:
                return tuple(name for name in names for _ in range(batch // len(names))), None
        order = self.given or ORDER
        name = in_order(begun, order)
        return (tuple("" if i < 0 else name for i in times) if -1 in times else (name,)), order

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Within it, the names that a pipeline gives its calls are heard."""
        own = getattr(model, "cache_context", None)
        if own is None:
            yield
            return

        @contextlib.contextmanager
        def heard(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
            with replaced(self, "_context", str(name)), own(name, *args, **kwargs):
                yield

        with replaced(model, "cache_context", heard):
            yield
