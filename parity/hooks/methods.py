"""Watching a method of an object: what goes in and what comes out, without touching either.

The method is replaced by one that calls it; leaving the context takes that away again. A method of a class is replaced
there, for this object alone: on the object it would go along into a copy, and there still be that of the original.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

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

    @functools.wraps(own)
    def observed(*args: Any, **kwargs: Any) -> Any:
        held = before(args, kwargs)
        result = own(*args, **kwargs)
        after(held, args, kwargs, result)
        return result

    if not isinstance(own, MethodType) or own.__self__ is not owner or name in vars(owner):
        with replaced(owner, name, observed):
            yield
        return
    function = own.__func__

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return observed(*args, **kwargs) if self is owner else function(self, *args, **kwargs)

    with replaced(type(owner), name, method):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any] | None) -> Iterator[None]:
    """Within it, `owner.name` is `function`; what stood on the object (or class) itself comes back."""
    kind = type if isinstance(owner, type) else object
    before = vars(owner).get(name)
    kind.__setattr__(owner, name, function)
    try:
        yield
    finally:
        if before is not None:
            kind.__setattr__(owner, name, before)
        elif vars(owner).get(name) is function:
            kind.__delattr__(owner, name)
