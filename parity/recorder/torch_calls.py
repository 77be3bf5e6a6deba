"""The calls of a transformer in torch, as they are made by a script: eager, through torchax without compiling, or
compiled with torch.compile.

A program of torch.compile runs as it is, and its modules are seen beside it. A compiled module calls no hooks, and
hooks that are there while it is compiled become part of it. So the call itself is watched from outside, and what it
gives is what the script goes on with and what is recorded as its prediction. Then the same module is called once more
on the same inputs without its compiled program, with what a recording attaches: that is where the records of its
modules come from. It rounds otherwise than the compiled program; were that program wrong, the prediction would differ
where no module does. Functions that are compiled on their own, as flex attention must be, stay so. Cost: a second
forward for each call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.attach import attached, watching
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_torch import TorchReducer, is_split, to_numpy, torch_records
from parity.hooks.rows import MaskedRows, Masks, NoRows, let_through
from parity.hooks.sites import SitePlan, meets, plan_sites
from parity.hooks.tap import Reducer, Tap, by_branch, rows_of
from parity.hooks.torchtools import ORIGINAL, eagerly, entry_of, leaves, mapped, module_tree, prediction_of
from parity.recorder.rerun import Again, memory
from parity.recorder.steps import Branches, names_of
from parity.records import LOOP_STAGE, Key, Record

if TYPE_CHECKING:
    from parity.recorder.record import Recording


class Kind:
    """Where tensors lie: torch's own devices; or, in a subclass, JAX behind torchax."""

    def reducer(self) -> Reducer:
        return TorchReducer()

    def records(self, tap: Tap, step: int) -> list[Record]:
        """What a tap saw, brought to the host."""
        return torch_records(tap.settled(), LOOP_STAGE, step)

    def host(self, x: torch.Tensor) -> Any:
        """A tensor's values; 16-bit floats as float32."""
        return to_numpy(x)

    def devices(self, x: torch.Tensor) -> tuple[str, ...]:
        """What a weight lies on, for people."""
        return (x.device.type,)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which its tensors can be computed with."""
        return contextlib.nullcontext()

    def numbers(self, x: object) -> np.ndarray:
        """A scheduler's numbers, of any library or a list, as float64 [N]; of many rows that are the same the first.
        Empty for what holds none."""
        try:
            found = np.asarray(self.host(x) if isinstance(x, torch.Tensor) else [] if x is None else x, np.float64)
        except (TypeError, ValueError):
            return np.zeros(0)
        rows = found.reshape(-1, found.shape[-1]) if found.ndim > 1 and found.shape[-1] > 1 else found.reshape(1, -1)
        return rows[0] if rows.size and (rows == rows[0]).all() else np.zeros(0)

    def is_traced(self, x: torch.Tensor) -> bool:
        """Whether it has no values: the script traces the call."""
        return False


@dataclass
class GuardedTap(Tap):
    """A tap whose failures end the recording and not the script."""

    guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def see(self, module: str, call: int, port: str, value: Any) -> None:
        with self.guard():
            super().see(module, call, port, value)

    def masked(self, module: str, named: Mapping[str, Any]) -> None:
        with self.guard():
            read = {name: let_through(x) for name, x in named.items() if "mask" in name}
            super().masked(module, {name: x for name, x in read.items() if x is not None})

    def attended(self, module: str, mask: Any) -> None:
        self.masked(module, {"mask": mask})


THREADS = (
    "the transformer is called in several threads at once, and nobody knows which call is of which branch; call it in "
    "one thread to record it"
)


@dataclass(kw_only=True)
class Calls:
    """Watches one transformer.

    Attributes:
        recording: that goes on. model: it. entry: what the script calls: the model, or what wraps it.
        prefix: before its module names, where a pipeline has several. busy: whether parity itself is calling.
    """

    recording: Recording
    model: torch.nn.Module
    entry: torch.nn.Module
    prefix: str
    busy: bool = False

    def __post_init__(self) -> None:
        asked, self.tell = self.recording.asked, self.recording.tell
        self.kind, self.steps = self.recording.kind, self.recording.steps
        self.branches = Branches(self.recording.parts.guided, tuple(asked.branches), self.steps)
        self.modules = ["", *module_tree(self.model)]
        met = tuple(glob for glob in asked.values if meets(glob, self.modules))  # the others may name taps
        self.recording.met.update(met)
        self.plan: SitePlan = plan_sites(self.modules, asked.sites, met)
        self.whole = not any(is_split(x) for x in self.model.parameters())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, its calls are recorded."""
        begin = self.recording.seeing(self._begin)
        with self.branches.listening(self.model), watching(self.model, begin, self._end, self._overlapped):
            yield

    def _overlapped(self) -> None:
        with self.recording.guard():
            raise UsageError(THREADS)

    def placed(self, records: Iterable[Record]) -> list[Record]:
        """What a tap saw in this transformer, under the name that the golden has for it among several."""
        return [replace(r, key=self._placed(r.key)) for r in records] if self.prefix else list(records)

    def _placed(self, key: Key) -> Key:
        return replace(key, site=f"{self.prefix}.{key.site}" if key.module else f"{self.prefix}{key.site}")

    def tap(self, rows: tuple[str, ...]) -> Tap:
        """A tap for a call with these branches in its batch; see `Tap.rows`."""
        branches = names_of(rows)
        frames: Mapping[str, Any] = {branch: {} for branch in branches}
        rule = MaskedRows() if self.whole else NoRows()  # of a share nobody knows which rows it holds
        tap = GuardedTap(self.plan, self.kind.reducer(), rule, branches, frames, rows=rows, guard=self.recording.guard)
        tap.masks = Masks(rule) if self.whole else None
        return tap

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tap | None:
        if self.busy or self.traced((args, kwargs)):
            return None
        rows = self.branches.of(args, kwargs)
        self.steps.calling = functools.partial(self._named, rows)
        return self.tap(rows)

    def _named(self, rows: tuple[str, ...], module: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """A value that is named within a call, by branch; one that has the name of a module is none of its records."""
        if module in self.modules:
            return [("", value)]
        batched = value.ndim > 0 and value.shape[0] == len(rows) > 1
        return [(branch, value[rows_of(branch, rows)] if batched else value) for branch in names_of(rows)]

    def traced(self, given: Any) -> bool:
        """Whether the script traces a call: nothing can be seen of it, and once it is compiled no call is made."""
        found = any(isinstance(x, torch.Tensor) and self.kind.is_traced(x) for _, x in leaves(given))
        if found:
            self.steps.inside_jit(self.tell)
        return found

    def _end(self, tap: Tap, output: Any) -> None:
        self.steps.calling = None
        if output is None:
            self.branches.failed()
            return
        with self.recording.guard(), replaced(self, "busy", True):
            self._record(tap, output)

    def _record(self, tap: Tap, output: Any) -> None:
        """Take what a call gave."""
        self.steps.part += self.placed(self.kind.records(tap, self.steps.number))
        self.steps.part += self.predictions(tap.rows, output)

    def predictions(self, rows: tuple[str, ...], output: Any) -> list[Record]:
        """Records of the predictions of the branches in a batch, which is a tensor or a list of them; none of a call
        that only fills a cache."""
        branches, found = names_of(rows), prediction_of(output)
        latents = self.steps.calls[-1].latents if len(rows) == 1 and self.steps.calls else None
        many = len(rows) if latents is None else len(latents)
        listed = output if isinstance(output, list) and len(output) == many > 1 else found
        if isinstance(listed, (list, tuple)):
            by_row = len(listed) == len(rows)
            own = [[listed[i] for i in rows_of(b, rows)] if by_row else list(listed) for b in branches]
            each = [(b, x[0] if by_row and len(x) == 1 else torch.stack(x)) for b, x in zip(branches, own, strict=True)]
        elif isinstance(found, torch.Tensor):
            each = by_branch(branches, found, rows)
        else:
            return []
        return [
            self.steps.value("noise_pred", self.kind.host(x), str(x.dtype).removeprefix("torch."), branch)
            for branch, x in each
        ]


@dataclass(kw_only=True)
class TorchCompiledCalls(Calls):
    """Watches a transformer that is compiled by torch.compile, or has modules that are."""

    def __post_init__(self) -> None:
        with eagerly(self.model):
            super().__post_init__()
        self.tell(f"{self.prefix or 'the transformer'} is compiled: its modules are observed in an eager run beside it")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, its calls are recorded."""
        entry, name = self.entry, entry_of(self.entry)
        own, one_at_a_time = getattr(entry, name), threading.RLock()

        def observed(*args: Any, **kwargs: Any) -> Any:
            if not one_at_a_time.acquire(blocking=False):
                self._overlapped()
                return own(*args, **kwargs)
            try:
                return called(*args, **kwargs)
            finally:
                one_at_a_time.release()

        def called(*args: Any, **kwargs: Any) -> Any:
            if self.busy or not self.recording.wanted():
                return own(*args, **kwargs)
            again: Again | None = None
            with self.recording.guard():
                before, again = memory([self.model]), Again.of(self.model, args, kwargs)
            out = own(*args, **kwargs)
            if again is not None:
                with self.recording.guard():
                    self._beside(again, before, out)
            return out

        setattr(observed, ORIGINAL, getattr(own, ORIGINAL, own))  # so that `eagerly` finds the function beneath
        with self.branches.listening(self.model), replaced(entry, name, observed):
            yield

    def _beside(self, again: Again, before: Callable[[], None], output: Any) -> None:
        """Call the module itself on what its program was given, as it was then, and record that.

        Args:
            before: has the module remember what it did then. output: of the program.
        """
        after = memory([self.model])
        before()
        try:
            # CUDA graphs write over what they gave.
            given = mapped(lambda x: x.detach().clone(), prediction_of(output))
            rows = self.branches.of(again.args, again.kwargs)
            with replaced(self, "busy", True), eagerly(self.model):
                tap = self.tap(rows)
                with attached(self.model, tap):
                    again()
                self._record(tap, given)
        finally:
            after()
