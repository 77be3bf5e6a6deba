"""Observing a tree of callable objects that are no torch modules: Flax NNX, or anything built like it.

Problem. NNX modules have no hooks, and a call may rebuild them (`nnx.merge`), so that the objects seen at load are not
those that run. Python looks `__call__` up on the class.

How. Within `watched`, `__call__` of each class in the tree is wrapped. The outermost call names the objects below it by
walking its attributes (lists and dicts add their index or key), and each call of a named object is handed over.
flax is not imported. Cost: one walk of the tree for each call of the top object.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

CALL = "__call__"

See = Callable[[str, str, Any], None]
"""Takes (module path, port, value)."""


def objects_of(top: Any) -> dict[str, Any]:
    """The callable objects of a tree by path, the top one as `""`; one that is met twice keeps its first path."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(path: str, value: Any) -> None:
        if id(value) in seen or isinstance(value, (str, bytes, type)) or inspect.isroutine(value):
            return
        if isinstance(value, Mapping):
            inside = value.items()
        elif isinstance(value, (list, tuple)) or (isinstance(value, Sequence) and not callable(value)):
            inside = enumerate(value)  # type: ignore[assignment]
        elif _is_module(value):
            found[path] = value
            inside = vars(value).items()
        else:
            return
        seen.add(id(value))
        for name, item in inside:
            visit(f"{path}.{name}" if path else str(name), item)

    visit("", top)
    return found


def _is_module(value: Any) -> bool:
    """Whether an object is a module: written in Python, callable, with attributes; arrays are not."""
    return hasattr(value, "__dict__") and _caller(type(value)) is not None and not hasattr(value, "shape")


def _caller(kind: type) -> type | None:
    """The class, of those that `kind` is made of, in which its `__call__` is written in Python."""
    found = next((k for k in kind.__mro__ if CALL in vars(k)), None)
    return found if found is not None and inspect.isfunction(vars(found)[CALL]) else None


@contextlib.contextmanager
def watched(top: Any, see: See) -> Iterator[None]:
    """Within it, calls of the objects below (and of) `top`, or of a copy of it, are seen; classes are put back."""
    state = _State(see, type(top))
    originals: dict[type, Any] = {}
    try:
        for value in objects_of(top).values():
            kind = _caller(type(value))
            if kind is not None and kind not in originals:
                originals[kind] = vars(kind)[CALL]
                setattr(kind, CALL, state.wrapped(originals[kind]))
        yield
    finally:
        for kind, call in originals.items():
            setattr(kind, CALL, call)


class _State:
    """The names in use while the top object is called."""

    def __init__(self, see: See, top: type) -> None:
        self.see, self.top = see, top
        self.names: dict[int, str] = {}
        self.held: Any = None

    def wrapped(self, call: Any) -> Any:
        def observed(module: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = not self.names and type(module) is self.top
            if outermost:
                self.held = objects_of(module)  # alive while their ids are names
                self.names = {id(value): path for path, value in self.held.items()}
            try:
                path = self.names.get(id(module))
                if path is None:
                    return call(module, *args, **kwargs)
                named = _arguments(call, module, args, kwargs)
                for name, value in sorted(named.items(), key=lambda item: "mask" not in item[0]):  # they pair the rows
                    self.see(path, f"in.{name}", value)
                out = call(module, *args, **kwargs)
                self.see(path, "out", out)
                return out
            finally:
                if outermost:
                    self.names, self.held = {}, None

        return observed


def _arguments(call: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(call).bind(module, *args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    return dict(list(bound.items())[1:])
