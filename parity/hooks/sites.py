"""Choosing sites: which modules and ports are observed, decided from names alone.

A pure planner: it sees module paths, never a model, so that every rule is tested in microseconds. The executor is
`parity.hooks.tap`.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parity.errors import UsageError
from parity.records import ATTENTION, above, is_attention

WHOLE = "whole"
"""Start of the port of a value that is held as it is, all rows in the side's own order: `whole.out`."""


@dataclass(frozen=True, slots=True)
class Held:
    """Which values are held as they are.

    Attributes:
        ports: `in`, `out` or both. modules: whose; empty for all.
        each, most: bytes of one value and of all of one call of the model: by default, on a model of production size,
            time embeddings and what follows from them, on a small one everything.
    """

    ports: frozenset[str]
    modules: frozenset[str] = frozenset()
    each: int = 1 << 23
    most: int = 1 << 28

    def of(self, module: str) -> bool | None:
        """Whether a module's are held, or those of an attention call of it; None where its module is asked for as a
        whole."""
        module = module.removesuffix(f".{ATTENTION}")
        if not self.modules or module in self.modules:
            return True
        return None if any(module.startswith(f"{whole}.") for whole in self.modules) else False


OUTPUTS, EVERYTHING = Held(frozenset({"out"})), Held(frozenset({"in", "out"}))


def is_block(path: str) -> bool:
    """Whether a module is an item of one of the top module's lists: `transformer_blocks.3`."""
    parts = path.split(".")
    return len(parts) == 2 and parts[1].isdecimal()


def _is_outermost(path: str) -> bool:
    """Whether a module is an item of a list that lies in no other list's items: `vae.decoder.up_blocks.0`."""
    *above, last = path.split(".")
    return len(above) > 1 and last.isdecimal() and not any(map(str.isdecimal, above))


def block_of(path: str) -> str | None:
    """The block a module lies in (or is), or None."""
    head = ".".join(path.split(".")[:2])
    return head if is_block(head) else None


@dataclass(frozen=True, slots=True)
class SitePlan:
    """Which sites are observed, and of which the value itself is kept.

    Attributes:
        choice: `blocks`, `all`, `none` or a glob over `module` or `module:port`.
        values: globs of the sites whose values are kept whole; empty for none.
        modules: the chosen modules; the top module is `""`.
        whole: which values, of chosen modules or not, are held as they are, for a reference that is to follow them
            (`parity.paths.follow`); None for none.
    """

    choice: str
    values: tuple[str, ...]
    modules: frozenset[str]
    whole: Held | None = None

    @property
    def must_fire(self) -> frozenset[str]:
        """Modules whose silence is an error. Choosing all chooses none in particular: some are never called."""
        return frozenset() if self.choice == "all" else self.modules

    @property
    def globs(self) -> tuple[str, ...]:
        """The sites named by the user; each must be seen, attention calls and single ports too."""
        return self.values if self.choice in ("blocks", "all", "none") else (self.choice, *self.values)

    def wants_module(self, path: str) -> bool:
        """Whether any port of a module (or of an attention call, `<module>.attention`) may be observed."""
        if path in self.modules:
            return True
        if not is_attention(path):
            return False
        owner, *around = above(path)  # a port's block may make the call of a module that it does not have
        if self.choice == "blocks":
            return owner in self.modules or block_of(path) is not None
        if self.choice != "all":
            return self.wants_port(path, "*")
        return owner in self.modules or any(module in self.modules for module in around if module)

    def wants_port(self, path: str, port: str) -> bool:
        """Whether this port of a chosen module is observed."""
        if self.choice in ("blocks", "all"):
            return True
        return matches(self.choice, path, port) or self.wants_value(path, port)

    def wants_value(self, path: str, port: str) -> bool:
        return any(matches(glob, path, port) for glob in self.values)


def matches(glob: str, path: str, port: str) -> bool:
    """Whether a glob names this site: `module`, `module:port` or `module:in` for all inputs; port `*` is any."""
    module_glob, colon, port_glob = glob.partition(":")
    if not fnmatch.fnmatchcase(path, module_glob):
        return False
    if not colon or port == "*":
        return True
    return fnmatch.fnmatchcase(port, port_glob) or port.split("@")[0].split(".")[0] == port_glob


def plan_sites(modules: Iterable[str], choice: str, values: tuple[str, ...] = (), *, trunk: str = "") -> SitePlan:
    """Plan the observation of a model.

    Args:
        modules: paths of the modules that can be called (lists of modules are not), the top one `""`.
        choice: `blocks`: the top module, its children, the items of its lists and their attention calls; where it has
            no lists itself, as what wraps a model, the items of the outermost lists inside;
            `all`: every module; `none`: no module, only the loop's own values; else a glob.
        values: globs of sites to keep whole; each must match a module too.
        trunk: the child of the top module that holds its blocks (`decoder`); `""` where the top module does.

    Raises:
        UsageError: a glob matches no module; the nearest names are listed.
    """
    paths = list(modules)
    if choice == "blocks":
        inside = {p: p.removeprefix(f"{trunk}.") for p in paths}
        chosen = [p for p, q in inside.items() if q.count(".") == 0 or is_block(q)]
        if not trunk and not any(map(is_block, paths)):
            chosen += [p for p in paths if _is_outermost(p)]
    elif choice in ("all", "none"):
        chosen = paths if choice == "all" else []
    else:
        chosen = _expand(choice, paths)
    kept = (path for glob in values for path in _expand(glob, paths))
    return SitePlan(choice, values, frozenset([*chosen, *kept]))


def split_sites(
    stages: Mapping[str, Iterable[str]], choice: str, values: tuple[str, ...]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Stage -> its own choice and values: a glob goes to each stage that has a module it names.

    One that no stage answers goes to all of them, so that planning it says what is near.

    Args:
        stages: stage -> paths of its modules.
    """
    held = {name: list(modules) for name, modules in stages.items()}

    def takes(name: str, glob: str) -> bool:
        return meets(glob, held[name]) or not any(meets(glob, modules) for modules in held.values())

    return {
        name: (
            choice if choice in ("blocks", "all", "none") or takes(name, choice) else "none",
            tuple(glob for glob in values if takes(name, glob)),
        )
        for name in held
    }


def meets(glob: str, paths: list[str]) -> bool:
    """Whether a glob names a module, or attention calls of one."""
    module = glob.partition(":")[0]
    # Attention calls are no modules: a glob of theirs names the module that makes them.
    globs = {module, module.removesuffix(ATTENTION).removesuffix(".")}
    return any(fnmatch.fnmatchcase(path, g) for path in paths for g in globs)


def _expand(glob: str, paths: list[str]) -> list[str]:
    module = glob.partition(":")[0]
    if not meets(glob, paths):
        near = difflib.get_close_matches(module, paths, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise UsageError(f"no module matches the site '{glob}'{hint}")
    return [path for path in paths if fnmatch.fnmatchcase(path, module)]
