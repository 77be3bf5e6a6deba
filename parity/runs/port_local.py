"""Modules of a loaded candidate run alone, whoever wrote it: parity's own path, or a port that is a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parity.errors import UsageError
from parity.golden.records import Record
from parity.hooks.calls import Call
from parity.paths.loaded import Loaded
from parity.paths.local import observe, rerun
from parity.paths.port_load import Entry, failures
from parity.paths.ported import Ported
from parity.paths.reference import TorchBackend


class Modules(Protocol):
    """A candidate's modules by the reference's names."""

    def has(self, module: str) -> bool: ...

    def records(self, call: Call, step: int) -> list[Record]:
        """What the module gives for a call of the reference's, observed at its outputs."""
        ...


def require_local(side: Loaded) -> None:
    """Refuse a candidate whose modules cannot be run one at a time.

    Raises:
        UsageError: a port in JAX, or one whose modules take their arrays in another layout.
    """
    family: Any = side.family
    if not isinstance(family, Ported):
        return
    take = "take --forcing none or step"
    if hasattr(side.backend, "seen"):
        raise UsageError(
            f"--forcing module calls the candidate's modules one at a time, and {family.entry.named} is a port in JAX: "
            f"its names are of values, not of modules that could be called; {take}"
        )
    if family.channels_last:
        raise UsageError(
            f"--forcing module hands the reference's inputs to the candidate's modules, and those of "
            f"{family.entry.named} have channels last; {take}"
        )


def local_modules(side: Loaded, reference: Loaded | None = None) -> Modules:
    """The modules of a candidate that `require_local` lets pass.

    Args:
        reference: whose calls they are run on, with rows in its order; None where they stand in the candidate's.
    """
    like: Any = None if reference is None else reference.backend
    family: Any = side.family
    backend: Any = side.backend
    if not isinstance(family, Ported):
        from parity.paths.candidate_local import LocalModules

        return LocalModules(backend, like=like)
    paths = {family.named(path): path for path, _ in backend.module().named_modules() if path}
    if isinstance(backend, TorchBackend):
        return _Guarded(family.entry, _Eager(backend, paths, like or backend), paths)
    from parity.paths.candidate_local import LocalModules

    return _Guarded(family.entry, LocalModules(backend, paths, like), paths)


@dataclass
class _Eager:
    """The modules of a torch port; `like` is the backend in whose order the rows stand."""

    backend: TorchBackend
    paths: Mapping[str, str]
    like: TorchBackend

    def has(self, module: str) -> bool:
        return module in self.paths

    def records(self, call: Call, step: int) -> list[Record]:
        module = self.backend.module().get_submodule(self.paths[call.module])
        with self.backend.scope():
            return observe(self.like, call, rerun(module, call, None), step)


@dataclass
class _Guarded:
    """A port's modules: what they raise, given another module's arguments, becomes one line.

    Raises:
        UsageError: a module cannot be called as the reference's is.
    """

    entry: Entry
    inner: Modules
    paths: Mapping[str, str]

    def has(self, module: str) -> bool:
        return self.inner.has(module)

    def records(self, call: Call, step: int) -> list[Record]:
        doing = f"{self.entry.named}: --forcing module: '{self.paths[call.module]}', called as the reference's is,"
        with failures(doing, self.entry.file):
            return self.inner.records(call, step)
