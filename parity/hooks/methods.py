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

    def around(own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        held = before(args, kwargs)
        result = own(*args, **kwargs)
        after(held, args, kwargs, result)
        return result

    @functools.wraps(own)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return around(own, args, kwargs)

    of_class = isinstance(own, MethodType) and own.__self__ is owner and name not in _held(owner)
    live, _ = _LIVE.get((type(owner), name), ({}, None))
    with _dispatched(owner, name, around) if of_class and id(owner) not in live else replaced(owner, name, observed):
        yield


Around = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""(the method, arguments, keyword arguments) -> its result: calls it, and looks at both."""
_LIVE: dict[tuple[type, str], tuple[dict[int, Around], contextlib.ExitStack]] = {}
"""By class and name: what its calls go to, by object, and what stands on the class while there is any."""


@contextlib.contextmanager
def _dispatched(owner: Any, name: str, around: Around) -> Iterator[None]:
    """Within it, `around` makes the calls of a class's method for one object; several may end in any order."""
    live, placed = _LIVE.setdefault((type(owner), name), ({}, contextlib.ExitStack()))
    if not live:
        function = getattr(type(owner), name)

        @functools.wraps(function)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = MethodType(function, self)
            return live[id(self)](own, args, kwargs) if id(self) in live else own(*args, **kwargs)

        placed.enter_context(replaced(type(owner), name, method))
    live[id(owner)] = around
    try:
        yield
    finally:
        del live[id(owner)]
        if not live:
            del _LIVE[type(owner), name]  # which would keep the class alive
            placed.close()


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
    return getattr(owner, "__dict__", {})


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
