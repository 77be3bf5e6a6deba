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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from parity.errors import InconclusiveError
from parity.hooks.rows import JOINT, Masks, Part, RowRule, kept, take, unordered
from parity.hooks.sites import WHOLE, SitePlan, matches
from parity.hooks.torchtools import leaves, parts_of, real
from parity.records import PADDING, READ, SET, Kind, Scalar
from parity.sketch import geometry

EVERY = slice(None)
"""All rows of a tensor."""


@dataclass(frozen=True, slots=True)
class Item:
    """Where a branch's tensor lies: at `index` of the `count` on the first axis of `whole`, `rows` of the second."""

    whole: torch.Tensor
    index: int
    count: int
    rows: slice


class Reducer(Protocol):
    """What a backend does with a tensor: `parity.hooks.reduce` has torch's and torchax's."""

    def reduce(self, x: Any, item: Item | None = None) -> Any:
        """Moments and sketch of x, still on the device.

        Args:
            item: where x was taken from, for who would rather read it there; None where it was made for this.
        """
        ...

    def value(self, x: Any) -> Any:
        """The tensor itself in a form that `to_host` takes."""
        ...


@dataclass(slots=True)
class Entry:
    """One observation before it reaches the host.

    Attributes:
        scalar: the value of what is no tensor. stats, value: of a tensor, on the device or as tracers: the backend's
            moments and sketch, None where it is only held; the tensor itself, where its value is kept. The others are
            those of `Record`.
    """

    branch: str
    site: str
    call: int
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: str = ""
    frame: tuple[int, int] = (0, 0)
    scalar: Scalar | None = None
    stats: Any = None
    value: Any = None


@dataclass
class Tap:
    """Collects the entries of one model call.

    Attributes:
        plan: which sites. reducer: the backend's. rule: the family's row knowledge.
        branches: names of the guidance branches in the call's batch, in order. rows: the branch of each row of the
            batch, empty of one that fills it up; by default each branch has one.
        frames: branch -> frame name -> (index [F] int32, weight [F] float32), as tensors of the backend.
        entries: what was seen, in execution order.
        named: a module's path -> the name it is observed under. ports: a site -> the port that it is observed under.
        masks: those of somebody's own code, whose rows they pair; None where the rule's frames are those of the code.
        attention: the function that an attention call of torch's runs on this backend; None for torch's own.
        computed: (attention site, the function in words) -> how many calls it computed.
    """

    plan: SitePlan
    reducer: Reducer
    rule: RowRule
    branches: tuple[str, ...]
    frames: Mapping[str, Mapping[str, tuple[Any, Any]]]
    entries: list[Entry] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    named: Callable[[str], str] = lambda path: path
    ports: Callable[[str, str], str] = lambda module, port: port
    masks: Masks | None = None
    attention: Callable[[], Callable[..., Any] | None] = lambda: None
    rows: tuple[str, ...] = ()
    computed: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seen: dict[int, _Memo] = field(default_factory=dict)
    _alone: Counter[str] = field(default_factory=Counter)
    _held: int = 0

    def begin(self, module: str) -> int:
        """Count a call of a module and return its number within this model call."""
        call = self.calls[module]
        self.calls[module] += 1
        return call

    def begin_attention(self, module: str, query: torch.Tensor) -> int:
        """Count an attention call, and whether it is of one row of a batch: some models make one for each."""
        self._alone[module] += len(set(self.rows or self.branches)) > 1 and query.shape[0] == 1
        return self.begin(module)

    def settled(self) -> list[Entry]:
        """The entries of a call that has ended. Attention that was called once for each row of the batch is of its
        row's branch alone."""
        rows = self.rows or self.branches
        many = len(rows)
        whole = {m for m, count in self._alone.items() if count == self.calls[m] and count % many == 0}
        apart = whole if len(set(rows)) == many > 1 else set()
        found = [(e, e.site.partition(":")[0] in apart) for e in self.entries]
        mine = [(e, own) for e, own in found if not own or e.branch == rows[e.call % many]]
        return [replace(e, call=e.call // many) if own else e for e, own in mine]

    def ran(self) -> dict[str, str]:
        """What computed the attention calls at each site, in order of the first ones."""
        sites: dict[str, list[str]] = {}
        for (site, function), count in self.computed.items():
            sites.setdefault(site, []).append(f"{function}, {count} call{'s' if count > 1 else ''}")
        return {site: "; ".join(functions) for site, functions in sites.items()}

    def masked(self, module: str, named: Mapping[str, Any]) -> None:
        """Take note of the masks among a call's arguments, before any of these is seen, under the names that these are
        observed under."""
        if self.masks is not None:
            names = {name: self.ports(module, f"in.{name}").removeprefix("in.") for name in named}
            self.masks.see(module, {names[name]: x for name, x in named.items()})

    def attended(self, module: str, mask: Any) -> None:
        """Take note of the mask that an attention call was given; families know their own."""

    def see(self, module: str, call: int, port: str, value: Any) -> None:
        """Observe a value at a port: tensors, None and scalars, and those inside tuples, lists, dicts and dataclasses.

        A complex tensor [..., channels] is seen as [..., 2 * channels], real and imaginary parts in turn.
        """
        if module == "" and type(value) is list and len(self.branches) > 1 and len(value) == len(self.rows):
            for branch in self.branches:  # a batch as a list, of which each branch has its own
                own = [value[i] for i in rows_of(branch, self.rows)]
                replace(self, branches=(branch,), rows=()).see(module, call, port, own)
            return
        port = self.ports(module, port)
        for leaf, x in leaves(value, port):
            name = leaf if leaf == port else self.ports(module, leaf)
            if not self.plan.wants_port(module, name):
                continue
            if isinstance(x, torch.Tensor):
                self._tensor(module, call, name, x)
            elif x is None or isinstance(x, (bool, int, float, str)):
                kind: Kind = "none" if x is None else "scalar"
                dtype = "" if x is None else type(x).__name__
                site = f"{module}:{name}"
                self.entries += [Entry(b, site, call, kind, dtype=dtype, scalar=x) for b in self.branches]

    def hold(self, module: str, call: int, port: str, value: Any) -> None:
        """Hold the tensors of an input or output as they are, branch by branch, where the plan wants that.

        For one that is held already stands where that is, for one that is not wanted or for which there is no room an
        empty text.
        """
        wanted = self.plan.whole
        if wanted is None or port.split(".")[0] not in wanted.ports or (chosen := wanted.of(module)) is None:
            return
        for name, x in leaves(value, self.ports(module, port)):
            site = f"{module}:{WHOLE}.{name}"
            if not isinstance(x, torch.Tensor):
                self.entries += [Entry(b, site, call, "none") for b in self.branches if x is None]
                continue
            memo = self._memo(x)
            size = x.numel() * x.element_size()
            room = chosen and size <= wanted.each and self._held + size <= wanted.most
            if WHOLE in memo or not room:
                first = memo.get(WHOLE, "")
                self.entries += [Entry(b, site, call, "scalar", dtype="str", scalar=first) for b in self.branches]
            else:
                self._held += size
                memo[WHOLE] = f"{module}:{name} {call}"
                dtype = str(x.dtype).removeprefix("torch.")
                for branch, piece in by_branch(self.branches, x, self.rows):
                    held = self.reducer.value(piece)
                    self.entries.append(Entry(branch, site, call, "tensor", tuple(piece.shape), dtype, value=held))

    def _tensor(self, module: str, call: int, port: str, x: torch.Tensor) -> None:
        memo = self._memo(x)
        keep = self.plan.wants_value(module, port)
        dtype = str(x.dtype).removeprefix("torch.")
        x = real(x)  # of a complex rotary table, what can be sketched and stored
        for i, (branch, piece) in enumerate(by_branch(self.branches, x, self.rows)):
            item = Item(x, 0, 1, EVERY) if piece is x else Item(x, i, len(self.branches), EVERY)
            for part in (self.masks or self.rule).parts(module, port, tuple(piece.shape)):
                site = f"{module}:{port}" + (f"@{part.name}" if part.name else "")
                entry = Entry(branch, site, call, "tensor", tuple(piece.shape), dtype)
                self._part(entry, piece, part, keep, memo, item)

    def _frame(self, entry: Entry, part: Part, rows: int) -> tuple[Any, Any]:
        """Index and weight of a part's rows: those of the side's own frame, or what its mask says of so many rows."""
        frames = self.frames[entry.branch]
        if self.masks is None:
            return frames[part.frame]
        batch = self.rows or self.branches
        at = rows_of(entry.branch, batch)
        return self.masks.frame(entry.site.partition(":")[0], part, rows, frames, at, len(batch))

    def _part(self, entry: Entry, x: torch.Tensor, part: Part, keep: bool, memo: dict[Any, Any], item: Item) -> None:
        """Record one part of one branch: its valid rows, and apart from them its padded ones."""
        # Of what has no batch axis all branches hold the same; a frame is of a branch, and by a mask of a head.
        apart = bool(part.frame) or item.whole is not x
        key = (entry.branch if apart else "", part, entry.site.partition(".")[0] if part.frame else "")
        done = memo.get(key)
        if done is None or keep:
            span = slice(part.start, part.stop) if part.name else EVERY
            rows = x[:, span] if part.name else x
            pieces = {"": rows}
            if part.frame:
                index, weight = self._frame(entry, part, int(rows.shape[1]))
                if part.frame == JOINT:  # in its own order
                    pieces = {JOINT: kept(rows, weight > 0)}
                else:
                    pieces = dict(zip((part.frame, PADDING), take(rows, index, weight), strict=True))
                pieces[SET] = unordered(pieces[part.frame])
            if done is None:
                lies = None if part.frame else replace(item, rows=span)
                done = {f: (self.reducer.reduce(p, lies), tuple(p.shape)) for f, p in pieces.items()}
            memo[key] = done
        for frame, (stats, shape) in done.items():
            apart, padding = frame in (PADDING, SET), frame == PADDING
            g = geometry(shape)
            # Padded rows of an input are kept too: to run the module again, all of what it was given is needed.
            whole = keep and (not padding or entry.site.partition(":")[2].startswith("in."))
            value = self.reducer.value(pieces[frame]) if whole else None
            site = f"{entry.site.removesuffix(f'@{READ}')}@{frame}" if apart else entry.site
            seen = replace(
                entry, site=site, rows="" if apart else frame, frame=(g.rows, g.channels), stats=stats, value=value
            )
            self.entries.append(seen)

    def _memo(self, x: torch.Tensor) -> dict[Any, Any]:
        """What was already reduced of this very tensor, forgotten when it dies or is written to."""
        now = _version(x)
        ref, then, done = self._seen.get(id(x), (None, None, {}))
        # Of an array there is one such reference; `==` on two would compare the arrays' elements.
        same = then == now if isinstance(now, int) else then is now and now is not None
        if ref is None or ref() is not x or not same:
            done = {}
            self._seen[id(x)] = weakref.ref(x), now, done
        return done


def counted_on(entry: Entry, before: Mapping[str, int]) -> Entry:
    """An entry of a later program of the same run.

    Args:
        before: how often each module was called in those before it.
    """
    module, _, port = entry.site.partition(":")
    if port.startswith(f"{WHOLE}.") and isinstance(entry.scalar, str) and entry.scalar:
        where, _, call = entry.scalar.rpartition(" ")
        entry = replace(entry, scalar=f"{where} {int(call) + before.get(where.partition(':')[0], 0)}")
    return replace(entry, call=entry.call + before.get(module, 0))


def by_branch(branches: Sequence[str], x: torch.Tensor, rows: Sequence[str] = ()) -> list[tuple[str, torch.Tensor]]:
    """A batched tensor's branches by name; one without the batch axis, as a parameter, belongs to each of them.

    Args:
        rows: see `Tap`.
    """
    rows = rows or branches
    batched = x.ndim > 0 and x.shape[0] == len(rows) and not isinstance(x, torch.nn.Parameter)
    if not batched or len(set(rows)) == 1:
        return [(branch, x) for branch in branches]
    return [(branch, _taken(x, rows_of(branch, rows))) for branch in branches]


def rows_of(branch: str, rows: Sequence[str]) -> list[int]:
    """Which rows of a batch are a branch's."""
    return [i for i, own in enumerate(rows) if own == branch]


def _taken(x: torch.Tensor, at: list[int]) -> torch.Tensor:
    first, behind = at[0], at[-1] + 1
    return x[first:behind] if behind - first == len(at) else x[at]


def carried(output: Any) -> Any:
    """What a block hands on that `jax.lax.scan` calls: of several values it gives `(carry, None)`."""
    scanned = isinstance(output, tuple) and len(output) == 2 and output[1] is None
    return output[0] if scanned and isinstance(output[0], (tuple, list)) else output


def single_output(output: Any) -> Any:
    """A module's output as it is observed: the values of a ModelOutput or dataclass in field order, those of a dict in
    the order of its keys, as a function that JAX compiled returns it, the item of a tuple of one; see `carried`."""
    if type(output) is dict:
        output = dict(sorted(output.items(), key=lambda item: str(item[0])))
    parts = None if isinstance(output, (tuple, list)) else parts_of(output)
    value = output if parts is None else tuple(item for _, item in parts)
    value = carried(value)
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


_Memo = tuple[weakref.ref[torch.Tensor], "int | weakref.ref[Any] | None", dict[Any, Any]]
"""A live tensor, what changes when it is written to in place (`_version`), and its reductions."""


def _version(x: torch.Tensor) -> int | weakref.ref[Any] | None:
    """What a write in place replaces: torch's counter, or the array behind a torchax tensor, by weak reference.

    An array's id would not do: it can be that of an array that died. A torchax view shows no sign of a write to what
    it views, so it never holds, nor does a tensor made under torch.inference_mode(), which keeps no counter.
    """
    if hasattr(x, "_elem"):
        return weakref.ref(x._elem)
    return None if hasattr(x, "jax") or x.is_inference() else x._version


def require_fired(
    plan: SitePlan, expected: frozenset[str], calls: Collection[str], seen: Collection[str], what: str = "model"
) -> None:
    """Check that every module of `expected` was called, and that every glob of the plan named something seen: a port or
    an attention call that exists.

    Args:
        expected: the plan's `must_fire`, less the modules that a setting keeps from being called; globs of these are
            excused. calls: the modules that were called. seen: the sites. what: of whom.

    Raises:
        InconclusiveError: some were not; absence is never taken for agreement.
    """
    sites = [tuple(site.split(":", 1)) for site in seen] + [(module, "*") for module in plan.must_fire - expected]
    several = [glob for glob in plan.globs if set("*?[") & set(glob)]  # of these one module at least
    silent = sorted(m for m in expected if m not in calls and not any(matches(glob, m, "*") for glob in several))
    silent = silent or [g for g in plan.globs if not any(matches(g, module, port) for module, port in sites)]
    if silent:
        shown = ", ".join(f"'{s}'" for s in silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        raise InconclusiveError(
            f"chosen sites never fired: {shown}; the {what} does not call them on this path: choose others with --sites"
        )
