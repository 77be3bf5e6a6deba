"""The reference's values in another order.

A right port may have the image before the text in its attention, or the columns of a rotary table laid out otherwise.
That is no fault if the next values that are compared match again: the output of the nearest module around it, or, of
what an attention call is given and gives, the input of the module called next. The output of a module that only hands
on its input (a gate of zero) shows nothing, and the whole model's output is so far away that it counts only where the
port's parameters lie otherwise too, or for what the model makes once and what its blocks hand on where all between
agrees, or is in another order as well: a rotary table that is laid out otherwise, tokens that stand otherwise in all
blocks. Nothing is fitted: what reads a value decides. A batch may have its branches in another order, and what holds
several at once too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from parity.compare.measured import Measured
from parity.compare.result import SiteDiff
from parity.compare.sites import Sites, beyond
from parity.records import ATTENTION, LOOP, Key, above
from parity.transforms import as_factor

SHARP = 1e-3
"""Share of a difference that a floor may be for what reads it to have decided; in 16 bits it is far wider."""

_TOGETHER = {"in.query": {"in.key"}, "in.key": {"in.query", "in.value"}, "in.value": {"in.key"}}


def excuse_batches(step: Measured, sites: Sites) -> None:
    """Of a candidate whose batch has another order, what was not taken apart by branch is not compared where it may
    be the reference's in another order."""
    for at in folded(step, sites):
        if step.same_values(at[0], 1.0, least=0.0):
            for i in at:
                note = "not taken apart by guidance branch, whose order is another in the candidate's batch"
                sites[i] = replace(sites[i], verdict="not compared", note=note)


def folded(step: Measured, sites: Sites) -> Iterator[list[int]]:
    """The calls that differ and hold several branches at once, as frames that are folded into the batch: the same
    stands for each of them."""
    calls: dict[tuple[str, int], list[int]] = {}
    for i in sites.where("pass", beyond=True):
        key = step.meeting.places[i].key
        if key.branch:
            calls.setdefault((key.site, key.call), []).append(i)
    for at in calls.values():
        rows, many = (sites[at[0]].shapes[0] or (0,))[0], len(at)
        if rows > many > 1 and rows % many == 0 and len({step.held_bytes(i) for i in at}) == 1:
            yield at


def excuse_other_orders(step: Measured, sites: Sites) -> None:
    """Inside a port the reference's values in another order are not compared: where the parameters lie so too, then
    also times their factor, or where what reads the values agrees."""
    far = [i for i in sites.where("pass", beyond=True) if step.meeting.own[i]]
    for i in far:
        same = [factor for factor in step.meeting.laid_out.get(i, ()) if step.same_values(i, factor)]
        if same:
            how = "in another order" if same[0] == 1.0 else f"times {as_factor(same[0])}"
            note = f"the reference's values {how}, as its parameters are"
            sites[i] = replace(sites[i], verdict="not compared", note=note)
    far = [i for i in far if sites[i].verdict == "pass"]
    turned = {sites[i].key: i for i in far if step.same_values(i, 1.0)}
    turned |= {sites[i].key: i for i in far if asked_by(sites[i].key) in turned}
    if not turned:
        return
    around, seen = Around(tuple(sites), step.hands_on, bool(step.meeting.laid_out), turned), {d.key for d in sites}
    undone: set[tuple[bytes, bytes]] = set()
    for key, i in turned.items():
        sharp = sites[i].distance.floor <= SHARP * sites[i].distance.rel_l2  # what reads it shows the order undone
        handed_on = step.held_bytes(i) in undone
        if handed_on or ((sharp or turned_together(key, turned, seen)) and around.undone(i)):
            undone |= {both for both in [step.held_bytes(i)] if both[0]}
            note = "the reference's values in another order, and what reads them agrees"
            sites[i] = replace(sites[i], verdict="not compared", note=note)


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
        laid_out: whether parameters of the port lie otherwise. turned: what may be in another order.
    """

    sites: Sequence[SiteDiff]
    hands_on: Callable[[str, str], bool]
    laid_out: bool
    turned: Container[Key] = ()
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
        parts = key.module.split(".")
        of_a_block = len(parts) == 2 and parts[1].isdecimal() and not self.hands_on(key.branch, around)
        if (len(parts) == 1 or of_a_block) and self._agrees[key.branch, around]:
            later = (d for d in self.sites[i + 1 :] if d.key.branch in (key.branch, "") and all(d.dtypes))
            return all(d.verdict != "pass" or _agrees(d) or d.key in self.turned for d in later)
        if key.module.rpartition(".")[2] != ATTENTION:
            return False  # what is called next need not read it, as keys are none of what queries are made of
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
