"""Where an agreeing free run leaves doubt, so that a module should be run on the reference's own inputs.

Problem. Floors of the free run hold what rounding grows to on its way through the network. On a tiny Wan one block's
floor is 8e-6 where the block's own rounding is 2e-7, so an error of its own of 1.5e-5, 60 times what it may be, is
within three floors there.

How. A site that is above its floor, though not beyond its limits, and well above what came into its module, is
doubtful. Its module's local error then decides; doubt alone convicts nobody. numpy only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parity.compare.judge import call_of, input_severities, severity
from parity.compare.result import SiteDiff
from parity.golden.records import LOOP

DOUBT = 1.0
"""Severity from which a site is doubtful: above its floor. Of innocent pairs in float32 hardly a site is
(docs/fault-bench.md: the largest ratio of all variants is 1.04)."""

GROWTH = 3.0
"""How much above its inputs: a block that only hands on what it was given has a ratio like theirs."""

MOST = 4
"""Modules that are run at most; each costs the candidate a compilation."""


def doubtful(sites: Sequence[SiteDiff], modules: Collection[str]) -> tuple[str, ...]:
    """The modules, of those that can be run alone, whose own error should be measured; in execution order.

    Args:
        sites: of one step, judged, none of them beyond its limits. modules: by path, without the top one.
    """
    inputs = input_severities(sites)
    seen: dict[str, float] = {}
    found: list[str] = []
    for d in sites:
        if d.key.is_padding or d.key.module == LOOP or d.verdict != "pass":
            continue
        mine = severity(d)
        before = max(seen.get(d.key.branch, 0.0), seen.get("", 0.0))
        given = before if d.key.is_input else inputs.get(call_of(d.key), before)
        seen[d.key.branch] = max(before, mine)
        if mine <= DOUBT or mine <= GROWTH * given:
            continue
        inner = d.key.module.rpartition(".")[0] if d.key.is_input else d.key.module
        module = _nearest(inner, modules)
        if module and module not in found:
            found.append(module)
    return tuple(found[:MOST])


def _nearest(module: str, modules: Collection[str]) -> str:
    """This module or the nearest above it that can be run alone; an attention call's is the module that makes it."""
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return module
