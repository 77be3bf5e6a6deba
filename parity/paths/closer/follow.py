"""The reference follows the candidate: each output as the reference makes it of the candidate's own values before it.

Problem. In the free run one ulp of an elementary function of a large argument (a phase of 4000 in a time embedding)
travels through every block, so floors there are hundreds of times what the sums and products of a block round by
themselves, and smaller errors pass.

How. The candidate hands out its modules' outputs as they are. The reference takes the same step again; whenever one of
its modules ends, its output is compared and then gives way to the candidate's, so that everything behind starts from
the candidate's values. What is left at each module is what its own code did, and the code of its parent before it. The
runs that measure floors follow the same values, so the floors are of that code alone. Nothing of the candidate is
called or replaced: a port in JAX is seen as far as it names its values.

An output that is far from the reference's own (`CLOSE`) is another quantity or layout: it is left alone. So are rows
that no valid token reads. Cost: five runs of the reference's step, and a copy of the outputs that are held.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.masks import Masks
from parity.hooks.rows import JOINT, Part, take
from parity.hooks.tap import by_branch
from parity.hooks.torchtools import callable_modules, named_arguments
from parity.paths.floors import Variant
from parity.paths.loaded import STAGE, Eager
from parity.paths.loop import Loop, denoise
from parity.paths.plan import name_of
from parity.records import Floor, Key, Moments, Record, StepRecords
from parity.sketch import geometry

CLOSE = 1e-2
"""Relative distance up to which an output is taken for the reference's: sites that agree are nearer than 1e-3."""

LEAST = 2.0**-23
"""Of an output's norm: what storing and fusing alone may move, below any floor measured (1.3e-7 and more)."""

PER_BIN, BINS = 512, 64
"""Elements of a row bin at least, and bins at most."""


def follow(loop: Loop, variants: Sequence[Variant], step: int, outputs: Mapping[str, torch.Tensor]) -> StepRecords:
    """One step of a loaded reference that follows these outputs, with floors.

    Args:
        loop: before the step. variants: the runs that round otherwise, before it too. outputs: by `name_of`.

    Returns:
        For each output in execution order a record with the reference's own moments, whose value is not the output but
        the norm of what the candidate's is apart, by row bin; floors likewise.
    """
    own = _Run(outputs)
    own.walk(loop, step)
    for variant in variants:
        other = _Run(outputs, own)
        with variant.around(step):
            other.walk(variant.loop, step)
    records, floors = [], {}
    for name, site in own.sites.items():
        if name in own.strange:
            continue
        key = site.key(step)
        moments = Moments(site.held.numel(), 0, 0, 0.0, 0.0, 0.0, site.norm)
        value = site.apart.astype(np.float32)
        records.append(Record(key, "tensor", tuple(site.held.shape), "float32", moments=moments, value=value))
        floors[key] = site.floor
    return StepRecords(step, tuple(records), floors)


@dataclass
class _Site:
    """One part of one output of the run that the others are measured against.

    Attributes:
        held: the reference's own rows that count. norm: of it. apart: of the difference, by row bin.
        most: the largest difference of a variant, by row bin; whole: its norm.
    """

    branch: str
    site: str
    call: int
    held: torch.Tensor
    norm: float
    apart: np.ndarray
    most: np.ndarray
    whole: float = 0.0

    def key(self, step: int) -> Key:
        return Key(STAGE, step, self.branch, self.site, self.call)

    def widen(self, other: torch.Tensor) -> None:
        bins = norms(other - self.held)
        if np.isfinite(bins).all():
            self.most = np.maximum(self.most, bins)
            self.whole = max(self.whole, float(np.sqrt((bins**2).sum())))

    @property
    def floor(self) -> Floor:
        """No bin is taken to be more exact than the whole (`parity.floors.level`)."""
        whole = max(self.whole, LEAST * self.norm)
        held = norms(self.held)
        share = held / self.norm if self.norm > 0 else np.ones_like(held)
        least = whole * np.maximum(share, 1.0 / np.sqrt(held.size))
        return Floor(whole, np.maximum(self.most, least).astype(np.float32))


@dataclass
class _Run:
    """A step of which each output gives way to the one that is followed.

    Attributes:
        like: the reference's own run, for one that measures floors; None for that run itself.
        strange: the names of outputs that are far from the reference's own. _masks: what the call was given, by branch.
    """

    outputs: Mapping[str, torch.Tensor]
    like: _Run | None = None
    sites: dict[str, _Site] = field(default_factory=dict)
    strange: set[str] = field(default_factory=set)
    _masks: dict[str, Masks] = field(default_factory=dict)

    def walk(self, loop: Loop, step: int) -> None:
        """Take the step."""
        backend = loop.side.backend.eager
        if backend is None:
            raise UsageError(f"a reference on '{loop.side.backend.name}' cannot follow a candidate: it needs torch")

        def listen(branches: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
            return self._hooked(backend, branches)

        with backend.listening(listen):
            for _ in denoise(loop, None, first=step, stop=step + 1):
                pass

    @contextlib.contextmanager
    def _hooked(self, backend: Eager, branches: tuple[str, ...]) -> Iterator[None]:
        counts: Counter[str] = Counter()
        handles = []
        self._masks = {branch: Masks(backend.rules[branch]) for branch in branches}

        def before(path: str) -> Callable[..., None]:
            def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
                named = named_arguments(module, args, kwargs)
                for masks in self._masks.values():
                    masks.see(path, named)

            return hook

        def after(path: str) -> Callable[..., Any]:
            def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
                call = counts[path]
                counts[path] += 1
                return self._replaced(backend, branches, path, call, output)

            return hook

        try:
            for path, module in callable_modules(backend.model).items():
                if backend.pairs_rows:
                    handles.append(module.register_forward_pre_hook(before(path), with_kwargs=True))
                handles.append(module.register_forward_hook(after(path)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _replaced(self, backend: Eager, branches: tuple[str, ...], path: str, call: int, output: Any) -> Any:
        single = isinstance(output, (tuple, list)) and len(output) == 1

        def inside(port: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._tensor(backend, branches, f"{path}:{port}", call, value)
            if type(value) in (tuple, list):
                alone = single and value is output
                return type(value)(inside(port if alone else f"{port}.{i}", x) for i, x in enumerate(value))
            return value

        return inside("out", output)

    def _tensor(self, backend: Eager, branches: tuple[str, ...], site: str, call: int, x: torch.Tensor) -> torch.Tensor:
        pieces = by_branch(branches, x)
        given = [self._piece(backend, branch, site, call, piece) for branch, piece in pieces]
        if all(new is old for new, (_, old) in zip(given, pieces, strict=True)):
            return x
        split = len(branches) > 1 and x.ndim > 0 and x.shape[0] == len(branches)
        return torch.cat(given) if split else given[0]

    def _piece(self, backend: Eager, branch: str, site: str, call: int, x: torch.Tensor) -> torch.Tensor:
        """The followed output of a branch, or the reference's own where there is none like it."""
        name = name_of(Key(STAGE, 0, branch, site, call))
        other = self.outputs.get(name)
        if other is None or other.shape != x.shape or other.is_complex() != x.is_complex():
            return x
        other = other.to(device=x.device, dtype=x.dtype)
        module, _, port = site.partition(":")
        rule = self._masks[branch] if backend.pairs_rows else backend.rules[branch]
        parts = rule.parts(module, port, tuple(_real(x).shape))
        parts = tuple(p for p in parts if p.frame == JOINT) or parts  # of a joint sequence, what is read
        if self.like is None:
            if not all([self._own(backend, branch, site, call, part, x, other) for part in parts]):
                return x
        elif any(_part_name(name, part) in self.like.strange for part in parts):
            return x
        else:
            for part in parts:
                self.like.sites[_part_name(name, part)].widen(self._rows(backend, branch, module, part, x))
        # What is not finite lies in rows that nothing reads: it would not stay there.
        return torch.where(torch.isfinite(other), other, x)

    def _own(
        self, backend: Eager, branch: str, site: str, call: int, part: Part, x: torch.Tensor, other: torch.Tensor
    ) -> bool:
        """Take in a part of the reference's own output; whether the other's is near it."""
        name = _part_name(name_of(Key(STAGE, 0, branch, site, call)), part)
        module = site.partition(":")[0]
        ours, theirs = (self._rows(backend, branch, module, part, value) for value in (x, other))
        apart = norms(theirs - ours)
        norm = float(torch.linalg.vector_norm(ours.double()))
        site = site + (f"@{part.name}" if part.name and part.frame != JOINT else "")
        self.sites[name] = _Site(branch, site, call, ours, norm, apart, np.zeros_like(apart))
        near = bool(np.sqrt((apart**2).sum()) <= CLOSE * norm)
        if not near:
            self.strange.add(name)
        return near

    def _rows(self, backend: Eager, branch: str, module: str, part: Part, x: torch.Tensor) -> torch.Tensor:
        """The rows of a part that count, as they are now."""
        rows = _real(x)
        rows = rows[:, part.start : part.stop] if part.name else rows
        frames = backend.frames[branch]
        if part.frame == JOINT:
            rows = take(rows, *self._masks[branch].frame(module, part, int(rows.shape[1]), frames, 0))[0]
        elif part.frame:
            rows = take(rows, *frames[part.frame])[0]
        return rows.detach().clone()


def _part_name(name: str, part: Part) -> str:
    return f"{name} @{part.name}"


def _real(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor's real view, as the tap has it."""
    if not x.is_complex():
        return x
    return torch.view_as_real(x).flatten(-2) if x.ndim else torch.view_as_real(x)


def norms(x: torch.Tensor) -> np.ndarray:
    """The norm of each row bin, float64 [at most `BINS`]: runs of neighbouring rows."""
    rows = geometry(tuple(x.shape)).rows
    squares = x.double().square().reshape(max(rows, 1), -1).sum(dim=1) if x.numel() else torch.zeros(1)
    bins = max(1, min(BINS, x.numel() // PER_BIN, rows))
    each = -(-squares.numel() // bins)
    padded = torch.nn.functional.pad(squares, (0, each * bins - squares.numel()))
    return np.asarray(padded.reshape(bins, each).sum(dim=1).sqrt().cpu().numpy(), np.float64)
