"""The line of a stage outside the loop, from its judged sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.judge import AFTER, beyond
from parity.compare.reason import Reason
from parity.compare.result import NAN, Distance, Result, SiteDiff, StageDiff, Verdict
from parity.golden.records import LOOP

BEFORE = "text"
"""The stage before the loop, recorded at step -1 as the one after it is."""


def stage_diff(judged: Result, name: str, in_chain: Distance | None = None) -> StageDiff:
    """The line of a stage, for its worst output."""
    outputs = [d for d in judged.sites if d.key.module == LOOP and d.key.stage == name and not d.key.is_padding]
    worst = max(outputs, key=lambda d: d.distance.ratio, default=None)
    nothing = Distance(NAN, NAN, NAN)
    by_itself = nothing if worst is None else worst.distance
    output = "" if worst is None else worst.key.port
    return StageDiff(name, output, by_itself, in_chain or nothing, judged.verdict, judged.why)


def recorded_stages(result: Result) -> tuple[StageDiff, ...]:
    """The lines of a diff of two goldens: each side's encoders were given the same tokens, and its decoder the latents
    of its own loop."""
    found = []
    for name in (BEFORE, AFTER):
        sites = [d for d in result.sites if d.key.stage == name]
        if not sites:
            continue
        failed = _failed(sites)
        why = Reason(kind="output" if failed else "agrees", stage=name, sites=len(sites))
        line = stage_diff(result, name)
        if name == AFTER:
            line = replace(line, by_itself=line.in_chain, in_chain=line.by_itself)
        verdict: Verdict = "unjudged" if result.verdict == "unjudged" else "fail" if failed else "pass"
        found.append(replace(line, verdict=verdict, why=why))
    return tuple(found)


def _failed(sites: Sequence[SiteDiff]) -> bool:
    decides = [d for d in sites if d.verdict == "fail"]
    return any(d.birth in ("input", "module") or (d.key.module == LOOP and beyond(d)) for d in decides)
