"""The code of a port's own, among other people's: the modules that lie beside its file, and what it put in the place of
others' functions, and whether anything called it.

Problem. Two ports in one process may have modules of the same names beside them, so what one imports is taken out of
`sys.modules` once it is loaded. A function that imports within (`build`, `call`) would then find no such module, or
load a second copy of it, whose classes are others. And a port replaces a function of a library, and nothing calls the
replacement: another class than the model's, another name, a file imported twice. Or its kernel raises, is caught, and
torch's own runs. Both sides then compute with the same code and agree, and the pass says nothing about the port.

How. What was taken out is kept with the port, and put back while its code runs (`importable`). An environment in the
port's folder is no part of it. Once a port is built, functions of its own files are found where a library or torchax's
operator table has them, or one of two copies of a file. Each is wrapped: it counts its calls and sees errors that it
caught; so do the forwards and attention processors of its own. Not within `torch.compile`: such a port is observed in
an eager call.

Cost. A look at the names of all libraries that compute, some 0.1 seconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from parity.hooks.implementations import INSTALLED, LIBRARIES, described, of_library
from parity.port import Port

Modules = dict[str, ModuleType]
"""A port's own modules by name; grows with what its code imports."""


@contextlib.contextmanager
def importable(folder: Path, modules: Modules) -> Iterator[None]:
    """Within it, files in a folder are imported, and the modules that came from it before are those."""
    others = {name: sys.modules[name] for name in modules if name in sys.modules}
    known = sys.modules.keys() - modules.keys()
    sys.modules.update(modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name in sys.modules.keys() - known:
            file = getattr(sys.modules[name], "__file__", None)
            if name in modules or (file and lies_in(folder, str(Path(file).resolve()))):
                modules[name] = sys.modules.pop(name)
        sys.modules.update(others)


_PYTHON = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"])}
"""Where Python itself lies, and what is installed for it."""
_PARITY = Path(__file__).resolve().parents[2]


@functools.cache
def lies_in(folder: Path, name: str) -> bool:
    """Whether a file is of a port's own: in its folder, and neither installed there nor Python's or parity's."""
    if folder.name not in name:
        return False
    file = Path(name)
    inside = file.is_relative_to(folder) and not file.is_relative_to(_PARITY)
    if not inside or not INSTALLED.isdisjoint(file.relative_to(folder).parts):
        return False
    return not any(file.is_relative_to(path) for path in _PYTHON if not folder.is_relative_to(path))


_ASKED = (StopIteration, LookupError, AttributeError)
"""Errors by which code asks whether something is there."""
Held = tuple[ModuleType | type, str, Callable[..., Any]]
"""Who holds a function, by which name, and the function."""
_FUNCTIONS = ("function", "partial", "PjitFunction")
"""Kinds of callables: Python's, `functools.partial`, and what `jax.jit` makes."""
_RUN = ("forward", "__call__")
"""What runs of a class."""


@dataclass
class Installed:
    """A function in somebody else's place.

    Attributes:
        words: what it is, with its file and line. place: what it replaces; empty for the port's own place. calls: of
            it.
    """

    words: str
    place: str = ""
    calls: int = 0


@dataclass
class Installations:
    """Those of a port.

    Attributes:
        folder: of the port's own files.
    """

    folder: Path
    _found: dict[Callable[..., Any], Installed] = field(default_factory=dict)
    _caught: list[str] = field(default_factory=list)
    _pending: dict[int, tuple[str, type[BaseException]]] = field(default_factory=dict)

    def look(self, port: Port) -> Port:
        """Find and wrap what is installed now; returns the port, which is seen too."""
        for place, (holder, name, function) in [*self._in_libraries(), *self._in_copies()]:
            setattr(holder, name, self._counted(function, place))
        modules = port.module.modules() if isinstance(port.module, torch.nn.Module) else ()
        for kind in dict.fromkeys(type(x) for m in modules for x in (m, vars(m).get("processor"))):
            for holder, name, function in self._of_class(kind):
                setattr(holder, name, self._counted(function))
        if sys.modules.get("torchax") is not None:
            table = sys.modules["torchax"].default_env()._ops
            for operator, entry in list(table.items()):
                if entry.is_user_defined and self._is_own(entry.func):
                    table[operator] = replace(entry, func=self._counted(entry.func, f"torchax's {operator}"))
        in_jax = port.runs == "jax" and port.call is not None and self._is_own(port.call)
        return replace(port, call=self._counted(port.call)) if in_jax and port.call is not None else port

    @property
    def idle(self) -> tuple[str, ...]:
        """Why a pass would not rest on them, one sentence each: nothing called any, or a kernel gave up."""
        placed = [one for one in self._found.values() if one.place]
        gave_up = tuple(f"the port's own {text}: have it raise" for text in self._caught)
        if gave_up or any(one.calls for one in placed):
            return gave_up
        advice = "put it where the model looks, or leave it out"
        return tuple(
            f"{one.words} stands in the place of {one.place} and was called 0 times: {advice}"
            for one in placed
            if _may_compute(one.place)
        )

    def _in_libraries(self) -> Iterator[tuple[str, Held]]:
        loaded = list(sys.modules.items())
        libraries = {path: m for path, m in loaded if isinstance(m, ModuleType) and _is_library(path, m)}
        for path, module in libraries.items():
            for name, x in list(vars(module).items()):
                if self._is_own(x):
                    yield f"{path}.{name}", (module, name, x)
                elif issubclass(type(x), type):  # not `isinstance`, which asks some objects what they are: they warn
                    home = vars(x).get("__module__")
                    if home == path:
                        methods = ((n, f) for n, f in list(vars(x).items()) if type(f) is FunctionType)
                        yield from ((f"{path}.{name}.{n}", (x, n, f)) for n, f in methods if self._is_own(f))
                    elif home not in libraries:  # or it is looked at there
                        yield from ((f"{path}.{name}", held) for held in self._of_class(x))

    def _in_copies(self) -> Iterator[tuple[str, Held]]:
        """Functions of another file in one of two copies of a module, where the other has its own."""
        copies: dict[str, list[ModuleType]] = {}
        for module in {id(m): m for m in sys.modules.values() if isinstance(m, ModuleType)}.values():
            file = _file(module)
            if lies_in(self.folder, file):
                copies.setdefault(str(Path(file).resolve()), []).append(module)
        for file, modules in copies.items():
            for name in {name for m in modules for name in vars(m)} if len(modules) > 1 else ():
                held = [(m, x) for m in modules if isinstance(x := vars(m).get(name), FunctionType)]
                foreign = [(m, x) for m, x in held if str(Path(x.__code__.co_filename).resolve()) != file]
                if foreign and len(foreign) < len(held):
                    yield from ((f"{m.__name__}.{name}", (m, name, x)) for m, x in foreign)

    def _of_class(self, kind: type) -> list[Held]:
        """What runs of a class, where that is the port's own, or a base's of its own."""
        held = ((base, name, vars(base).get(name)) for base in kind.__mro__ for name in _RUN)
        return [(base, name, f) for base, name, f in held if isinstance(f, FunctionType) and self._is_own(f)]

    def _is_own(self, function: Any) -> bool:
        """Whether it is of the port's files, or a decorated or partial one of them."""
        while type(function).__name__ in _FUNCTIONS:
            if isinstance(function, functools.partial):
                function = function.func
                continue
            code = getattr(function, "__code__", None)
            if code is not None and lies_in(self.folder, code.co_filename):
                return not of_library(function)
            function = getattr(function, "__wrapped__", None)
        return False

    def _counted(self, function: Callable[..., Any], place: str = "") -> Callable[..., Any]:
        one = self._found.setdefault(function, Installed(described(function), place))

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            one.calls += 1
            with self._watched():
                return function(*args, **kwargs)

        return counted

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Within it, an error that arrives in code of the port's own is taken note of; unless somebody looks on."""
        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(self._seen)
        try:
            yield
        finally:
            sys.settrace(None)

    def _seen(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What Python tells of a frame (`sys.settrace`): one that an error reaches and that gives a value caught it."""
        code = frame.f_code
        if event == "call" and not lies_in(self.folder, code.co_filename):
            return None
        frame.f_trace_lines = False
        if event == "exception" and not _asks(arg[0], at_once=arg[2].tb_next is None):
            at = f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
            self._pending[id(frame)] = f"{at} caught {arg[0].__name__} and went on with something else", arg[0]
        elif event == "return":
            text, kind = self._pending.pop(id(frame), ("", BaseException))
            asked = issubclass(kind, ImportError) and type(arg) is bool  # whether a package is there
            if text and arg is not None and not asked and text not in self._caught:
                self._caught.append(text)
        return self._seen


def _asks(kind: type[BaseException], *, at_once: bool) -> bool:
    """Whether an error is one by which code asks; so are those of `int(text)` and `list.index`, which raise at once."""
    return issubclass(kind, _ASKED) or (at_once and issubclass(kind, (ValueError, TypeError)))


def _file(module: ModuleType) -> str:
    """Of a module, without asking one that loads itself when it is asked."""
    return str(vars(module).get("__file__") or "")


def _may_compute(place: str) -> bool:
    """Whether what stands in a place is part of a model: not in a package of another kind, as one that downloads."""
    root = place.partition(".")[0]
    module = sys.modules.get(root)
    return root in LIBRARIES or module is None or INSTALLED.isdisjoint(_file(module).split(os.sep))


def _is_library(path: str, module: ModuleType) -> bool:
    """Whether a module is of a library that computes: one that is known, or an installed one that names torch or jax. A
    port's own package may name what the port has."""
    root, names = path.partition(".")[0], vars(module)
    if root in LIBRARIES:
        return root != "parity"
    return ("torch" in names or "jax" in names) and not INSTALLED.isdisjoint(_file(module).split(os.sep))
