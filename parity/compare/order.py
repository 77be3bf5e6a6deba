"""The reference's values in another order inside a port: whether what reads them agrees.

A right port may have the image before the text in its attention, or the columns of a rotary table laid out otherwise.
That is no fault if the next values that are compared match again: the output of the nearest module around it, or the
input of the module called next. The output of a module that only hands on its input (a gate of zero) shows nothing, and
the whole model's output is so far away that it counts only where the port's parameters lie otherwise too. Nothing is
fitted: what reads a value decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from parity.compare.births import above, beyond
from parity.compare.result import SiteDiff
from parity.records import ATTENTION, LOOP, Key

ORDER = 0.1
"""Relative L2 distance above which two tensors may hold the same values in another order: below it noise of that size
moves neither extremes nor norm by more than rounding may."""

SHARP = 1e-3
"""Share of a difference that a floor may be for what reads it to have decided; in 16 bits it is far wider."""
EXTREME = 3.0
"""How much more than the elements on average an extreme one may be moved by rounding."""
_TOGETHER = {"in.query": {"in.key"}, "in.key": {"in.query", "in.value"}, "in.value": {"in.key"}}


def asked_by(key: Key) -> Key | None:
    """Of what an attention call gives, the queries, whose rows it has, however near to each other these are."""
    own = key.module.rpartition(".")[2] == ATTENTION and key.port == "out"
    return replace(key, site=f"{key.module}:in.query") if own else None


def turned_together(key: Key, turned: Container[Key], seen: Container[Key]) -> bool:
    """Whether what an attention call is given is in another order with another of its inputs: keys as queries are, in
    heads that lie otherwise, or as values are, in rows that do. A wrong rotation of one keeps its norm too.

    Args:
        turned: what may be in another order. seen: all that was compared.
    """
    others = _TOGETHER.get(key.port, ()) if key.module.rpartition(".")[2] == ATTENTION else ()
    beside = [replace(key, site=f"{key.module}:{port}") for port in others]
    return any(other in turned for other in beside) or not any(other in seen for other in beside)


@dataclass
class Around:
    """The sites of a step by the modules around them.

    Attributes:
        sites: in execution order. hands_on: whether the reference's module gives what it is given, by branch and path.
        laid_out: whether parameters of the port lie otherwise.
    """

    sites: Sequence[SiteDiff]
    hands_on: Callable[[str, str], bool]
    laid_out: bool
    _agrees: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for d in self.sites:
            if not (d.key.is_input or d.key.is_apart or d.key.module == LOOP):
                place = d.key.branch, d.key.module
                self._agrees[place] = self._agrees.get(place, True) and _agrees(d)

    def undone(self, i: int) -> bool:
        """Whether what reads a site's values agrees."""
        key = self.sites[i].key
        around = self._nearest(key)
        if around is None:
            return False
        if self._agrees[key.branch, around] and (around or self.laid_out) and not self.hands_on(key.branch, around):
            return True
        later = (
            d
            for d in self.sites[i + 1 :]
            if d.key.is_input and (d.key.step, d.key.branch) == (key.step, key.branch)
            and d.key.module != key.module and self._nearest(d.key) == around and all(d.dtypes)
        )  # fmt: skip
        after = next(later, None)
        return around != "" and after is not None and _agrees(after)

    def _nearest(self, key: Key) -> str | None:
        """The nearest module around one whose output was seen."""
        return next((m for m in above(key.module) if (key.branch, m) in self._agrees), None)


def _agrees(d: SiteDiff) -> bool:
    return d.verdict == "pass" and all(d.dtypes) and not beyond(d)
