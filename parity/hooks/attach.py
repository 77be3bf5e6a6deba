"""Attaching a tap to a model: forward hooks, and a function mode for attention calls.

Forward hooks see inputs (bound to the names of the module's forward, positional or not) and outputs. The attention
itself is no module in most models; `torch.nn.functional.scaled_dot_product_attention` is intercepted, and attention
written by parity announces itself through `attention_call`. All are recorded as the pseudo-module `<module>.attention`.
Leaving the context removes every hook and puts every function back.

Flex attention in somebody's own code is mostly compiled: no function mode of torch sees such a call. It is found by its
function wherever a module keeps that, as it is or compiled by `torch.compile`. While a call of the model is observed,
what is found there is called through a function that looks at what goes in and comes out. Cost: a pass over the names
of the modules that no package manager installed, and over all where others were loaded.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from parity.hooks.implementations import PORTS, described
from parity.hooks.methods import all_of, replaced, using
from parity.hooks.tap import Tap, single_output
from parity.hooks.torchtools import ORIGINAL, SDPA, Intercept, callable_modules, named_arguments, of_attention
from parity.records import ATTENTION


class _Active:
    """The tap in use, None between two calls of a watched model and in other threads than that of the call; the modules
    being called, innermost last: their names, which call it is of each, and their attentions' names; what computes
    attention within parity's own, None outside."""

    inside: list[str] | None = None

    def __init__(self, tap: Tap | None) -> None:
        self.tap = tap
        self.stack: list[tuple[str, int, str]] = []

    @property
    def tap(self) -> Tap | None:
        return self._tap if self.thread is threading.current_thread() else None

    @tap.setter
    def tap(self, tap: Tap | None) -> None:
        self._tap, self.thread = tap, threading.current_thread()

    def __deepcopy__(self, memo: object) -> _Active:
        """Of a copy of a model, which nobody watches."""
        return _Active(None)

    def is_taken(self) -> bool:
        """Whether a call in another thread has not ended; one whose thread has ended never will."""
        other = self.thread is not threading.current_thread()
        return self._tap is not None and other and self.thread.is_alive()

    def before(self, path: str, attention: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Hook of a module that is about to be called: its inputs are seen."""
        if self.tap is None:
            return
        call = self.tap.begin(path)
        self.stack.append((path, call, attention))
        wanted = self.tap.plan.wants_module(path)
        if wanted or self.tap.plan.whole or self.tap.masks is not None:
            named = named_arguments(module, args, kwargs)
            self.tap.masked(path, named)
            for name, value in named.items():
                if wanted:
                    self.tap.see(path, call, f"in.{name}", value)
                self.tap.hold(path, call, f"in.{name}", value)

    def after(self, path: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Hook of a module that was called: its output is seen."""
        if self.tap is None or not self.stack:
            return
        call, observed = self.stack[-1][1], single_output(output)
        if self.tap.plan.wants_module(path):
            self.tap.see(path, call, "out", observed)
        self.tap.hold(path, call, "out", observed)

    def leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Hook of a module whose call has ended, also of one that raised, which another may catch."""
        if self.tap is not None and self.stack:
            self.stack.pop()


_ACTIVE: ContextVar[_Active | None] = ContextVar("parity_active_tap", default=None)


def attached(model: torch.nn.Module, tap: Tap) -> AbstractContextManager[None]:
    """Within the context, calls of `model` are seen by `tap`. Hooks are removed on leaving, whatever happened."""
    active = _Active(tap)
    return all_of((all_of(_hooked(active, model, tap.named)), _in_use(active)))


def masks_given(masks: Mapping[str, Any]) -> None:
    """Have the tap in use know masks that no module is given.

    Args:
        masks: module, as the reference names it -> mask [B, rows] of its valid rows.
    """
    active = _ACTIVE.get()
    if active is not None and active.tap is not None:
        for module, mask in masks.items():
            active.tap.masked(module, {"mask": mask})


Begin = Callable[[tuple[Any, ...], Mapping[str, Any]], Tap | None]
"""Gives the tap that sees the call that begins with these arguments; None for a call that is not observed."""
End = Callable[[Tap, Any], None]
"""Told that the call has ended, with its output, which is None where it raised."""
Overlap = Callable[[], None]
"""Told that a call began in a thread while another thread's had not ended; it is not observed."""


@dataclass(eq=False)
class _Frame:
    """A watched call: what is open while it runs, and what is to be told once it has ended; None while it runs."""

    contexts: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    ended: Callable[[], None] | None = None


class _Frames(threading.local):
    """The watched calls of a thread, innermost last.

    Two who watch one model begin one after the other and end in the same order, since hooks run as they were
    registered. What they opened must close the other way round: who ended first waits for those that began after it.
    """

    def __init__(self) -> None:
        self.open: list[_Frame] = []

    def closed(self) -> list[Callable[[], None]]:
        """Close the last calls, as far as they have ended: what is to be told then."""
        told: list[Callable[[], None]] = []
        while self.open and self.open[-1].ended is not None:
            frame = self.open.pop()
            frame.contexts.close()
            told += [frame.ended] if frame.ended is not None else []
            frame.ended = None
        return told


_FRAMES = _Frames()


@contextlib.contextmanager
def watching(model: torch.nn.Module, begin: Begin, end: End, overlap: Overlap) -> Iterator[None]:
    """For as long as it is open, each call of `model` that anybody makes is seen by a tap of its own.

    Where `attached` is wrapped around a call that parity makes, this waits for calls that a script makes.
    """
    active, frame, one_at_a_time = _Active(None), _Frame(), threading.RLock()

    def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal frame
        if active.tap is not None:
            return
        with one_at_a_time:
            if not (overlaps := active.is_taken()):
                active.tap = begin(args, kwargs)
        if overlaps:
            overlap()
        elif active.tap is not None:
            active.stack, frame = [], _Frame()
            _FRAMES.open.append(frame)
            frame.contexts.enter_context(_in_use(active))

    def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tap = active.tap
        if tap is not None:
            active.tap = None
            frame.ended = functools.partial(end, tap, output)
            for ended in _FRAMES.closed():
                ended()

    with (
        model.register_forward_pre_hook(before, with_kwargs=True),
        all_of(_hooked(active, model, lambda path: path)),
        model.register_forward_hook(after, with_kwargs=True, always_call=True),
    ):
        try:
            yield
        finally:
            if frame in _FRAMES.open:  # torch calls no hook where a call ends by a signal
                active.tap = None
                _FRAMES.open.remove(frame)
                frame.contexts.close()


def _hooked(active: _Active, model: torch.nn.Module, named: Callable[[str], str]) -> Iterator[RemovableHandle]:
    """Hooks on the modules of a model, for the begin and the end of each one's calls."""
    for own, module in callable_modules(model).items():
        path, attention = named(own), named(f"{own}.{ATTENTION}" if own else ATTENTION)
        before = functools.partial(active.before, path, attention)
        yield module.register_forward_pre_hook(before, with_kwargs=True)
        yield module.register_forward_hook(functools.partial(active.after, path))
        yield module.register_forward_hook(active.leave, always_call=True)


@contextlib.contextmanager
def attention_call(kernel: str = "") -> Iterator[Callable[[Any, Any, Any, Any], None]]:
    """For attention written by parity: yields `seen(query, key, value, out)`, each [B, rows, heads, head dim].

    While it is open, attention functions called inside are not recorded a second time.

    Args:
        kernel: that computes it, where parity chooses one.
    """
    active, inside = _ACTIVE.get(), list[str]()

    def seen(*tensors: Any) -> None:
        own = f"parity's own ({kernel})" if kernel else "parity's own"
        by = next((function for function in inside if function.startswith(PORTS)), own)
        if active is not None and active.tap is not None:
            _attention_seen(active, tensors, by)

    with contextlib.nullcontext() if active is None else replaced(active, "inside", inside):
        yield seen


Exchange = Callable[[Callable[..., Any], Sequence[Any]], Any]
"""Stands in for an attention call: takes what computes it, and query, key and value, [B, rows, heads, head dim]."""
EXCHANGE: ContextVar[Exchange | None] = ContextVar("parity_exchange", default=None)


def exchanged(compute: Callable[..., Any], *tensors: Any) -> Any:
    """What an attention call gives of query, key and value, each [B, rows, heads, head dim], or what stands in for it;
    for calls inside it nothing does."""
    exchange = EXCHANGE.get()
    with using(EXCHANGE, None):
        return compute(*tensors) if exchange is None else exchange(compute, tensors)


def exchanging(exchange: Exchange) -> AbstractContextManager[object]:
    """Within it, a function stands in for each attention call of torch's, and of parity's own."""

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = of_attention(args, kwargs)
        if not given.keys() >= _GIVEN or any(given[name].ndim != 4 for name in _GIVEN):
            return func(*args, **kwargs)

        def compute(*tensors: Any) -> Any:
            heads_first = dict(zip(_GIVEN, (x.transpose(1, 2) for x in tensors), strict=True))
            return func(**{**given, **heads_first}).transpose(1, 2)

        return exchanged(compute, *(given[name].transpose(1, 2) for name in _GIVEN)).transpose(1, 2)

    return all_of((using(EXCHANGE, exchange), Intercept(handle, only=frozenset({SDPA}))))


_GIVEN = dict.fromkeys(("query", "key", "value")).keys()


def _attention_seen(active: _Active, tensors: Sequence[Any], function: str, mask: Any = None) -> None:
    """Record a call: query, key, value and output, each [B, rows, heads, head dim]; and what computed it."""
    assert active.tap is not None
    path = active.stack[-1][2] if active.stack else ATTENTION
    active.tap.attended(path, mask)
    active.tap.computed[path, function] += 1
    call = active.tap.begin_attention(path, tensors[0])
    wanted, whole = active.tap.plan.wants_module(path), active.tap.plan.whole
    for port, x in zip(("in.query", "in.key", "in.value", "out"), tensors, strict=True):
        if wanted:
            active.tap.see(path, call, port, x)
        if whole is not None and "in" in whole.ports:
            active.tap.hold(path, call, port, x)


def _by_heads(active: _Active, given: Mapping[str, Any], out: Any, function: Callable[..., Any]) -> None:
    """Record a call of tensors [B, heads, rows, head dim], where it names them as torch does; where parity's own
    attention made it, who computed it."""
    if active.tap is None:  # of a call in another thread
        return
    if active.inside is not None:
        active.inside.append(described(function))
    elif given.keys() >= {"query", "key", "value"}:
        batch = len(active.tap.rows or active.tap.branches)
        tensors = [_rows_first(x, batch) for x in (given["query"], given["key"], given["value"], out)]
        _attention_seen(active, tensors, described(function), given.get("attn_mask"))


def _rows_first(x: Any, batch: int) -> Any:
    """[B, heads, rows, head dim] as [B, rows, heads, head dim]; of three axes the heads are in the batch."""
    if x.ndim == 3 and x.shape[0] % batch == 0:
        x = x.unflatten(0, (batch, -1))
    return x.transpose(1, 2) if x.ndim > 3 else x


def _in_use(active: _Active) -> AbstractContextManager[None]:
    """Within it, attention calls are seen, whoever computes them: parity's own ask for who is active."""
    others = (replaced(module, name, _observed(active, own)) for module, name, own in _places())
    return all_of((using(_ACTIVE, active), _torchs_attention(active), all_of(others)))


def _observed(active: _Active, own: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of somebody's own, as it is, whatever it calls inside; its calls are seen."""

    @functools.wraps(own, updated=())  # without what torch.compile has noted on it
    def observed(*args: Any, **kwargs: Any) -> Any:
        with attention_call():
            out = own(*args, **kwargs)
        if not torch.compiler.is_compiling():  # within a program of the script's own nothing can be looked at
            _by_heads(active, of_attention(args, kwargs), out[0] if isinstance(out, tuple) else out, own)
        return out

    return observed


def _torchs_attention(active: _Active) -> Intercept:
    """Sees calls of scaled_dot_product_attention ([B, heads, rows, head dim]) made by code that is not parity's."""

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if active.tap is not None:
            _by_heads(active, of_attention(args, kwargs), out, active.tap.attention() or func)
        return out

    return Intercept(handle, only=frozenset({SDPA}))


_HOME = "torch.nn.attention.flex_attention"


def _places() -> Iterator[tuple[ModuleType, str, Callable[..., Any]]]:
    """Modules, and the names under which they keep attention that torch's modes do not see: what a port put in the
    place of torch's own, and flex attention, where somebody has imported it."""
    own = torch.nn.functional.scaled_dot_product_attention
    if own is not SDPA:
        yield torch.nn.functional, "scaled_dot_product_attention", own
    home = sys.modules.get(_HOME)
    if home is None:
        return
    flex = home.flex_attention  # before anything stands in its place
    for module in _modules(len(sys.modules)):
        yield from ((module, name, value) for name, value in list(vars(module).items()) if _is_flex(value, flex))


def _is_flex(value: Any, own: Callable[..., Any]) -> bool:
    # Compiled functions are functions; of anything else no attribute is asked for, which might run its code.
    return type(value) is FunctionType and (value is own or vars(value).get(ORIGINAL) is own)


@functools.lru_cache(maxsize=1)
def _modules(loaded: int) -> list[ModuleType]:
    """The modules that may keep flex attention: installed ones that do, and all others, which may still be given it.

    Args:
        loaded: how many there are, for the cache alone.
    """
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    own = sys.modules[_HOME].flex_attention
    return [m for m in modules if not _is_installed(m) or any(_is_flex(x, own) for x in list(vars(m).values()))]


def _is_installed(module: ModuleType) -> bool:
    where = getattr(module.__spec__, "origin", None) if module.__spec__ else None
    return where is not None and where.startswith((*_INSTALLED, "built-in", "frozen"))


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
