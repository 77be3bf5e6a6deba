"""Watching a method of an object: what goes in and what comes out, without touching either; an attribute or a
context's variable that is another within a block.

The method is replaced by one that calls it; leaving the context takes that away again. A method of a class is replaced
there, for this object alone: on the object it would go along into a copy, and there still be that of the original.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar

T = TypeVar("T")

Before = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
After = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]


@contextlib.contextmanager
def watched(owner: Any, name: str, before: Before, after: After) -> Iterator[None]:
    """Within it, calls of `owner.name` are seen.

    Args:
        before: takes the arguments, and gives what `after` is handed first. after: takes that, the arguments and the
            result.
    """
    own = getattr(owner, name, None)
    if own is None:
        yield
        return

    bound = isinstance(own, MethodType) and own.__self__ is owner and name not in _held(owner)
    seen = _SEEN.get((type(owner), name))
    bound = bound and (seen is None or id(owner) not in seen.live)
    if bound and seen is not None:
        own = MethodType(seen.function, owner)

    @functools.wraps(own)
    def observed(*args: Any, **kwargs: Any) -> Any:
        held = before(args, kwargs)
        result = own(*args, **kwargs)
        after(held, args, kwargs, result)
        return result

    with _dispatched(owner, name, observed) if bound else replaced(owner, name, observed):
        yield


@dataclass
class _Seen:
    """A class's method of which calls are seen.

    Attributes:
        function: the method itself. live: by object, where its calls go. placed: what stands on the class meanwhile.
    """

    function: Callable[..., Any]
    live: dict[int, Callable[..., Any]] = field(default_factory=dict)
    placed: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


_SEEN: dict[tuple[type, str], _Seen] = {}
"""By class and name."""


@contextlib.contextmanager
def _dispatched(owner: Any, name: str, observed: Callable[..., Any]) -> Iterator[None]:
    """Within it, a class's method is `observed` for one object; several may be watched, and end in any order."""
    kind = type(owner)
    seen = _SEEN.get((kind, name))
    if seen is None:
        seen = _SEEN[kind, name] = _Seen(getattr(kind, name))
        function, live = seen.function, seen.live

        @functools.wraps(function)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return live[id(self)](*args, **kwargs) if id(self) in live else function(self, *args, **kwargs)

        seen.placed.enter_context(replaced(kind, name, method))
    seen.live[id(owner)] = observed
    try:
        yield
    finally:
        del seen.live[id(owner)]
        if not seen.live:
            del _SEEN[kind, name]
            seen.placed.close()


@contextlib.contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """Within it, `owner.name` is another; what stood on the object (or class, or module) itself comes back, unless
    somebody has put something else there."""
    kind = type if isinstance(owner, type) else object
    before = _held(owner).get(name)
    kind.__setattr__(owner, name, by)
    try:
        yield
    finally:
        if _held(owner).get(name) is by:
            if before is not None:
                kind.__setattr__(owner, name, before)
            else:
                kind.__delattr__(owner, name)


def _held(owner: Any) -> Mapping[str, Any]:
    """What stands on an object itself; nothing on one with slots."""
    held: Mapping[str, Any] = getattr(owner, "__dict__", {})
    return held


@contextlib.contextmanager
def using(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Within it, a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def all_of(contexts: Iterable[contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    """Within it, one is within all of these, each of which is asked for once those before it are entered."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
