"""The tap: sees the values of one model call and reduces them where they are.

One tap serves one call of the model (which may hold several guidance branches in its batch). Module hooks and the
attention mode (`parity.hooks.attach`) hand it values; it splits branches, takes rows through their frames, and asks
the backend for reductions. In eager torch the reductions are small tensors on the device. Inside jax.jit they are
tracers, returned by the traced function as extra outputs and filled in afterwards: `entries` is then the static half.

A value seen twice (a module's output is the next one's input) is reduced once. The tap keeps no activation alive:
it remembers a tensor by weak reference.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from parity.golden.records import PADDING, Kind, Scalar
from parity.golden.sketch import geometry
from parity.hooks.implementations import Seen
from parity.hooks.rows import Part, RowRule, take
from parity.hooks.sites import SitePlan


class Reducer(Protocol):
    """What a backend does with a tensor: `parity.hooks.reducers` has torch's and torchax's."""

    def reduce(self, x: Any) -> Any:
        """Moments and sketch of x, still on the device."""
        ...

    def value(self, x: Any) -> Any:
        """The tensor itself in a form that `to_host` takes."""
        ...


@dataclass(frozen=True, slots=True)
class Reduced:
    """What was taken of one tensor, on the device or as tracers.

    Attributes:
        stats: the backend's moments and sketch.
        value: the tensor, where its value is kept.
    """

    stats: Any
    value: Any = None


@dataclass(slots=True)
class Entry:
    """One observation before it reaches the host; the fields are those of `Record`."""

    branch: str
    site: str
    call: int
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: str = ""
    frame: tuple[int, int] = (0, 0)
    scalar: Scalar | None = None
    reduced: Reduced | None = None


def _same(path: str) -> str:
    return path


def _nothing() -> None:
    return None


@dataclass
class Tap:
    """Collects the entries of one model call.

    Attributes:
        plan: which sites. reducer: the backend's. rule: the family's row knowledge.
        branches: names of the guidance branches in the call's batch, in order.
        frames: branch -> frame name -> (index [F] int32, weight [F] float32), as tensors of the backend.
        entries: what was seen, in execution order.
        named: a module's path -> the name it is observed under.
        attention: the function that an attention call of torch's runs on this backend; None for torch's own.
        ran: which functions computed the attention calls.
    """

    plan: SitePlan
    reducer: Reducer
    rule: RowRule
    branches: tuple[str, ...]
    frames: Mapping[str, Mapping[str, tuple[Any, Any]]]
    entries: list[Entry] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    named: Callable[[str], str] = _same
    attention: Callable[[], Callable[..., Any] | None] = _nothing
    ran: Seen = field(default_factory=Seen)
    _seen: dict[int, _Memo] = field(default_factory=dict)

    def begin(self, module: str) -> int:
        """Count a call of a module and return its number within this model call."""
        call = self.calls[module]
        self.calls[module] += 1
        return call

    def see(self, module: str, call: int, port: str, value: Any) -> None:
        """Observe a value at a port: tensors, None and scalars, and those inside tuples, lists and dicts.

        A complex tensor [..., channels] is seen as [..., 2 * channels], real and imaginary parts in turn.
        """
        if isinstance(value, torch.Tensor):
            if self.plan.wants_port(module, port):
                self._tensor(module, call, port, value)
        elif isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                self.see(module, call, f"{port}.{i}", item)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                self.see(module, call, f"{port}.{name}", item)
        elif (value is None or isinstance(value, (bool, int, float, str))) and self.plan.wants_port(module, port):
            kind: Kind = "none" if value is None else "scalar"
            dtype = "" if value is None else type(value).__name__
            for branch in self.branches:
                self.entries.append(Entry(branch, f"{module}:{port}", call, kind, dtype=dtype, scalar=value))

    def _tensor(self, module: str, call: int, port: str, x: torch.Tensor) -> None:
        memo = self._memo(x)
        keep = self.plan.wants_value(module, port)
        dtype = str(x.dtype).removeprefix("torch.")
        if x.is_complex():  # a rotary table; its real view is what can be sketched and stored
            x = torch.view_as_real(x).flatten(-2) if x.ndim else torch.view_as_real(x)
        for branch, piece in self._by_branch(x):
            for part in self.rule.parts(module, port, tuple(piece.shape)):
                site = f"{module}:{port}" + (f"@{part.name}" if part.name else "")
                self._part(Entry(branch, site, call, "tensor", tuple(piece.shape), dtype), piece, part, keep, memo)

    def _by_branch(self, x: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """A batched tensor's branches by name; a tensor without the batch axis belongs to each of them."""
        n = len(self.branches)
        if n == 1:
            return [(self.branches[0], x)]
        if x.ndim == 0 or x.shape[0] != n:
            return [(branch, x) for branch in self.branches]
        return [(branch, x[i : i + 1]) for i, branch in enumerate(self.branches)]

    def _part(self, entry: Entry, x: torch.Tensor, part: Part, keep: bool, memo: dict[Any, Any]) -> None:
        """Record one part of one branch: its valid rows, and apart from them its padded ones."""
        done = memo.get((entry.branch, part))
        if done is None or keep:
            rows = x[:, part.start : part.stop] if part.name else x
            pieces = {"": rows}
            if part.frame:
                index, weight = self.frames[entry.branch][part.frame]
                valid, padded = take(rows, index, weight)
                pieces = {part.frame: valid, PADDING: padded}
            stats = {f: (self.reducer.reduce(p), tuple(p.shape)) for f, p in pieces.items()} if done is None else done
            memo[(entry.branch, part)] = done = stats
        for frame, (reduced, shape) in done.items():
            padding = frame == PADDING
            g = geometry(shape)
            # Padded rows of an input are kept too: to run the module again, all of what it was given is needed.
            whole = keep and (not padding or entry.site.partition(":")[2].startswith("in."))
            value = self.reducer.value(pieces[frame]) if whole else None
            site = f"{entry.site}@{PADDING}" if padding else entry.site
            self.entries.append(
                replace(
                    entry,
                    site=site,
                    rows="" if padding else frame,
                    frame=(g.rows, g.channels),
                    reduced=Reduced(reduced, value),
                )
            )

    def _memo(self, x: torch.Tensor) -> dict[Any, Any]:
        """What was already reduced of this very tensor, forgotten when it dies or is written to."""
        memo = self._seen.get(id(x))
        if memo is None or not memo.holds(x):
            memo = self._seen[id(x)] = _Memo(weakref.ref(x), _version(x), {})
        return memo.done


def single_output(output: Any) -> Any:
    """A module's output as it is observed: a ModelOutput's values in field order, the item of a tuple of one."""
    value = tuple(output.values()) if isinstance(output, Mapping) else output
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


@dataclass(frozen=True, slots=True)
class _Memo:
    """The reductions of one live tensor; `version` changes when it is written to in place."""

    ref: weakref.ref[torch.Tensor]
    version: Callable[[], Any]
    done: dict[Any, Any]

    def holds(self, x: torch.Tensor) -> bool:
        """Whether it is of `x`, as `x` is now."""
        then, now = self.version(), _version(x)()
        # Not `==` alone: on arrays it compares elements.
        same = then == now if isinstance(now, int) else then is now and now is not None
        return same and self.ref() is x


def _version(x: torch.Tensor) -> Callable[[], Any]:
    """What a write in place replaces: torch's counter, or the array behind a torchax tensor, by weak reference.

    An array's id would not do: it can be that of an array that died. A torchax view shows no sign of a write to what
    it views, so it never holds.
    """
    if hasattr(x, "_elem"):
        return weakref.ref(x._elem)
    if hasattr(x, "jax"):
        return lambda: None
    version = x._version
    return lambda: version
