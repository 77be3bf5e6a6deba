"""The modules that lie beside a port's file: importable while its code runs, and out of another port's way.

Problem. Two ports in one process may have modules of the same names beside them, so what one imports is taken out of
`sys.modules` once it is loaded. A function that imports within (`build`, `call`) would then find no such module, or
load a second copy of it, whose classes are others.

How. What was taken out is kept with the port, and put back while its code runs. An environment in the port's folder is
no part of it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from parity.hooks.implementations import INSTALLED

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
            if name in modules or _is_beside(folder, name):
                modules[name] = sys.modules.pop(name)
        sys.modules.update(others)


_PYTHON = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"])}
"""Where Python itself lies, and what is installed for it."""


def _is_beside(folder: Path, name: str) -> bool:
    """Whether a module is a file of the folder's own: not installed there, and not parity's."""
    origin = getattr(sys.modules[name], "__file__", None)
    if not origin or name.partition(".")[0] == "parity":
        return False
    return lies_in(folder, str(Path(origin).resolve()))


@functools.cache
def lies_in(folder: Path, name: str) -> bool:
    """Whether a file is of a port's own: in its folder, and neither installed there nor Python's."""
    file = Path(name)
    if not file.is_relative_to(folder) or not INSTALLED.isdisjoint(file.relative_to(folder).parts):
        return False
    return not any(file.is_relative_to(path) for path in _PYTHON if not folder.is_relative_to(path))
