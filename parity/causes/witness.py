"""What a witness is: asked with the evidence, it tells causes, and notes of what it could not tell.

    @witness("many_steps")
    def many_steps(evidence: Evidence) -> Iterator[Cause | Note]:
        if len(evidence.found.steps) > 50:
            yield Note("there are many steps")

A file in `parity/causes/witnesses/` that registers one is all that a new one takes. The three kinds are asked in the
order of what they can prove, so that a later one sees what the earlier ones found; within a kind by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from parity.causes.evidence import Evidence, Need
from parity.compare.reason import Note
from parity.compare.result import Cause

Kind = Literal["swap", "fault", "measured"]
KINDS: tuple[Kind, ...] = ("swap", "fault", "measured")
"""The candidate run again with a value changed; its error among those of known faults; what the records show."""

Ask = Callable[[Evidence], Iterable[Cause | Note]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A registered witness.

    Attributes:
        name: no other has it. kind: decides when it is asked, and how its causes are merged with the others'.
        needs: without which it is not asked. ask: the function itself.
    """

    name: str
    kind: Kind
    needs: frozenset[Need]
    ask: Ask

    def __call__(self, evidence: Evidence) -> Iterable[Cause | Note]:
        """What it has to say."""
        return self.ask(evidence)


_REGISTERED: dict[str, Witness] = {}


def witness(name: str, *, kind: Kind = "measured", needs: Iterable[Need] = ()) -> Callable[[Ask], Witness]:
    """Register a witness under a name.

    Raises:
        ValueError: there is another one of that name.
    """

    def keep(ask: Ask) -> Witness:
        if name in _REGISTERED:
            raise ValueError(f"two witnesses are registered as '{name}'")
        _REGISTERED[name] = Witness(name=name, kind=kind, needs=frozenset(needs), ask=ask)
        return _REGISTERED[name]

    return keep


def witnesses() -> tuple[Witness, ...]:
    """All witnesses, in the order in which they are asked."""
    from parity.causes import witnesses as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return tuple(sorted(_REGISTERED.values(), key=lambda w: (KINDS.index(w.kind), w.name)))
