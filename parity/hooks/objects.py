"""Observing a tree of callable objects that are no torch modules: Flax NNX, Flax linen, or anything built like NNX.

Problem. NNX modules have no hooks, and a call may rebuild them (`nnx.merge`), so that the objects seen at load are not
those that run. Python looks `__call__` up on the class.

How. Within `watched`, `__call__` of each class in the tree is wrapped. The outermost call names the objects below it by
walking its attributes (lists and dicts add their index or key), and each call of a named object is handed over. A top
object may be entered by another method, as `decode`: outside of its call, one below it is known by its class, if that
stands at one place of the tree, and by the shapes of its arrays.
flax is not imported. Cost: one walk of the tree for each call of the top object.

Inside that call `nnx.remat` and `nnx.scan` rebuild objects once more. One that holds the arrays of a named object is
that object; one whose arrays are cut of a stack's is a layer of it, `blocks.0`, as the tracers show once the scan is
unrolled. Any other stays without a name.

A linen module has no children before it is applied, and names of its own: it is asked for each call by linen's own
`intercept_methods`. The layers of an `nn.scan` are one module there, called once a layer, and are named so too.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MethodType
from typing import Any, Protocol

import jax
import numpy as np

from parity.hooks.methods import all_of, replaced
from parity.hooks.torchtools import bound

CALL = "__call__"


class See(Protocol):
    """Takes what is seen of the calls of modules, by their paths."""

    def given(self, path: str, named: Mapping[str, Any]) -> None:
        """A call begins with these arguments: masks among them pair the rows of what is seen next."""

    def see(self, path: str, port: str, value: Any) -> None: ...


Within = Callable[[Any], bool]
"""Whether values can be seen where they are: not inside another transformation."""


def objects_of(top: Any) -> dict[str, Any]:
    """The callable objects of a tree by path, the top one as `""`; one that is met twice keeps its first path. What is
    no callable is walked through where it is a module of Flax or Equinox, called by other methods."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(path: str, value: Any) -> None:
        if id(value) in seen or isinstance(value, (str, bytes, type)) or inspect.isroutine(value):
            return
        if isinstance(value, Mapping):
            inside = value.items()
        elif isinstance(value, (list, tuple)) or (isinstance(value, Sequence) and not callable(value)):
            inside = enumerate(value)  # type: ignore[assignment]
        elif (is_callable := _is_module(value)) or _is_of_a_framework(type(value)):
            if is_callable:
                found[path] = value
            inside = vars(value).items()
        else:
            return
        seen.add(id(value))
        for name, item in inside:
            visit(_below(path, str(name)), item)

    visit("", top)
    return found


def _is_module(value: Any) -> bool:
    """Whether an object is a module: written in Python, callable, with attributes; arrays are not."""
    return hasattr(value, "__dict__") and _caller(type(value)) is not None and not hasattr(value, "shape")


def _is_of_a_framework(kind: type) -> bool:
    bases = (k for k in kind.__mro__ if k.__name__ == "Module")
    return any(k.__module__.partition(".")[0] in ("flax", "equinox") for k in bases)


def _caller(kind: type) -> type | None:
    """The class, of those that `kind` is made of, in which its `__call__` is written in Python, whatever transforms it
    (`nnx.jit`)."""
    found = next((k for k in kind.__mro__ if CALL in vars(k)), None)
    return found if found is not None and inspect.isfunction(inspect.unwrap(vars(found)[CALL])) else None


def watched(top: Any, see: See, within: Within) -> contextlib.AbstractContextManager[None]:
    """Within it, calls of the objects below (and of) `top`, or of a copy of it, are seen; classes are put back.

    Args:
        within: asked for the arguments of a call; one that cannot be seen is left alone.
    """
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(top, linen.Module):
        return linen.intercept_methods(_Linen(see, within))
    objects = objects_of(top)
    many = Counter(type(x) for x in objects.values())
    alone = {type(x): path for path, x in objects.items() if many[type(x)] == 1}
    state = _State(see, within, {**alone, type(top): ""}, {path: _shapes(x) for path, x in objects.items()})
    kinds = dict.fromkeys(_caller(type(value)) for value in objects.values())
    return all_of(replaced(kind, CALL, state.wrapped(vars(kind)[CALL])) for kind in filter(None, kinds))


class _Linen:
    """Sees the calls that linen hands to an interceptor.

    Attributes:
        begins: whether a scanned class was entered, and none of its layers yet.
        scans: those around the call, the innermost last: the path of a layer, and the number of the one being called.
    """

    def __init__(self, see: See, within: Within) -> None:
        self.see, self.within = see, within
        self.begins = False
        self.scans: list[tuple[tuple[str, ...], int]] = []

    def __call__(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        if context.method_name != CALL:  # the port's own, or that of a class which linen made of one that is scanned
            self.begins |= type(context.module).__name__.startswith("Scan")
        if context.method_name != CALL or not self.within((args, kwargs)):
            return call(*args, **kwargs)
        named = bound(MethodType(getattr(type(context.module), CALL), context.module), args, kwargs)
        return _observed(self.see, self._path(context.module.path), named, lambda: call(*args, **kwargs))

    def _path(self, path: tuple[str, ...]) -> str:
        """A module's name, with the number of its layer behind each one that is scanned."""
        while self.scans and path[: len(self.scans[-1][0])] != self.scans[-1][0]:
            self.scans.pop()
        again = bool(self.scans) and self.scans[-1][0] == path
        layer = self.scans.pop()[1] + 1 if again else 0
        if again or self.begins:
            self.scans.append((path, 0 if self.begins else layer))
            self.begins = False
        names = list(path)
        for scanned, number in reversed(self.scans):
            names.insert(len(scanned), str(number))
        return ".".join(names)


class _State:
    """The names in use while the top object is called, or where it is not, as of one that has `decode`, one below it.

    Attributes:
        tops: class of an object, of which there is no other -> its path. shapes: of its arrays.
    """

    def __init__(
        self, see: See, within: Within, tops: Mapping[type, str], shapes: Mapping[str, list[tuple[int, ...]]]
    ) -> None:
        self.see, self.within, self.tops, self.shapes = see, within, tops, shapes
        self.names: dict[int, tuple[str, Any]] = {}  # of objects, and these, by their ids
        self.open: dict[str, bool] = {}  # paths of those that are being called, the innermost last; see `rebuilt`

    def wrapped(self, made: Any) -> Any:
        def observed(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            call = made.__get__(module, type(module))
            if id(module) in self.names:
                return self.asked(call, module, args, kwargs, whole)
            outermost = None if self.names else self.tops.get(type(module))
            outermost = None if outermost and _shapes(module) != self.shapes[outermost] else outermost
            path = self.rebuilt(module) if self.names and self.within((args, kwargs)) else outermost
            if path is None:
                return call(*args, **kwargs)
            own = {id(x): (_below(path, name), x) for name, x in objects_of(module).items()}
            with replaced(self, "names", {**self.names, **own}):
                return self.asked(call, module, args, kwargs, whole)

        # A function around another takes it apart, as `nnx.scan` does; what `nnx.jit` makes is no function.
        whole = not hasattr(inspect.unwrap(made, stop=inspect.isfunction), "__wrapped__")
        return observed

    def asked(self, call: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> Any:
        """Call an object, and see it if it has a name.

        Args:
            whole: whether its own code has all layers of a stack.
        """
        path, _ = self.names.get(id(module), (None, None))
        own = [*self.open][-1:] == [path]  # `super().__call__`, of what `nnx.jit` rebuilt too
        if path is None or own or not self.within((args, kwargs)):
            return call(*args, **kwargs)
        with replaced(self, "open", {**self.open, path: whole}):
            return _observed(self.see, path, bound(call, args, kwargs), lambda: call(*args, **kwargs))

    def rebuilt(self, module: Any) -> str | None:
        """The name of an object that was made of a named one's arrays, or of a layer of them; None for any other."""
        own = _arrays(module)
        at = min(range(len(own)), key=lambda i: own[i].size, default=0)
        held_by = dict(self.names.values())
        known = {path: _arrays(x) for path, x in held_by.items()} if own else {}
        roots = {id(x) for held in known.values() for x in held}
        root, layer = _made_of(own[at], roots) if own else (None, None)
        for path, held in known.items():
            if type(held_by[path]) is type(module) and len(held) == len(own) and held[at] is root:
                if root.ndim == own[at].ndim:
                    return path
                stacked = root.shape[: root.ndim - own[at].ndim]
                around = [*itertools.accumulate(path.split("."), _below)]  # the shortest first, and itself
                first = max((i for i, above in enumerate(around, 1) if self.open.get(above)), default=0)
                stacks = (above for above in around[first:] if _is_stack(known.get(above, ()), stacked))
                stack = next(stacks, path)  # what is being called as a whole is none
                return None if layer is None else _below(f"{stack}.{layer}", path[len(stack) + 1 :])
        return None


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _arrays(module: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(module) if hasattr(x, "shape")]


def _shapes(module: Any) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in _arrays(module)]


def _is_stack(arrays: Sequence[Any], shape: tuple[int, ...]) -> bool:
    return bool(arrays) and all(x.shape[: len(shape)] == shape for x in arrays)


_MOVES, _KEEPS = ("slice", "squeeze", "transpose", "reshape", "rev"), ("convert_element_type", "copy")
"""Operations of JAX's that compute nothing: those that move elements, and those that leave each where it is."""


def _made_of(x: Any, roots: Collection[int]) -> tuple[Any, int | None]:
    """The array, of those whose ids are given, that another was cut of, and the layer of its leading axes that it is;
    None where it was not, or is of several layers. A tracer knows what made it."""
    whole, steps = x, list[Any]()
    while id(whole) not in roots:
        made = getattr(whole, "parent", None)
        given: Sequence[Any] = getattr(made, "in_tracers", ())  # another JAX may not say it
        if made is None or len(given) != 1 or made.primitive.name not in (*_MOVES, *_KEEPS):
            return None, None
        steps.insert(0, made)
        (whole,) = given
    stacked = whole.shape[: max(whole.ndim - x.ndim, 0)]
    layers = np.arange(math.prod(stacked), dtype=np.int32)
    layers = layers.reshape(*stacked, *[1] * (whole.ndim - len(stacked)))
    layers = np.broadcast_to(layers, whole.shape)
    with jax.ensure_compile_time_eval():
        for made in steps:
            layers = made.primitive.bind(layers, **made.params) if made.primitive.name in _MOVES else layers
    layers = np.asarray(layers)
    return whole, int(layers.flat[0]) if layers.size and (layers == layers.flat[0]).all() else None


def _observed(see: See, path: str, named: Mapping[str, Any], call: Callable[[], Any]) -> Any:
    """See a call: its arguments, then what it gives."""
    see.given(path, named)
    for name, value in named.items():
        see.see(path, f"in.{name}", value)
    out = call()
    see.see(path, "out", out)
    return out
