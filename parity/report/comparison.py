"""A comparison as a document: what a person reads of it, in ten seconds.

In this order: the card (`parity.report.card`); preflight; one row a step; one row a block for the step of the first
divergence; the sites that failed (`parity.report.tables`). Only selected here, never computed.

Cost. One pass over the sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parity.compare.independent import closest
from parity.compare.result import Check, Result
from parity.compare.sites import FAILED, Which, among, count, steps_of
from parity.report.card import card, context
from parity.report.document import Facts, Json, Section, Table
from parity.report.result_json import written
from parity.report.tables import blocks_table, failures, frames_table, stages_table, steps_table

_SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison as a document.

    Attributes:
        result: what was found. explained: whether causes were looked for, so that none is an answer.
        following: commands to go on with. details: every row, and what is only propagated.
    """

    result: Result
    explained: bool = False
    following: tuple[str, ...] = ()
    details: bool = False

    @property
    def heading(self) -> str:
        failed = f" ({self.result.failed})" if self.result.failed else ""
        return f"## {_SIGNS[self.result.verdict]} parity: {self.result.verdict}{failed}"

    def json(self) -> Json:
        return {**written(self.result), "next": [command.partition("   #")[0] for command in self.following]}

    def conclusion(self) -> tuple[Section, ...]:
        return _filled(card(self.result, self.following), context(self.result))

    def sections(self) -> tuple[Section, ...]:
        result = self.result
        if self.explained and result.causes and not self.details:  # the tables are those of the comparison before
            return _filled(preflight(result))
        step = shown_step(result)
        outside = {s.stage for s in result.stages}
        loop = among(result.sites, step=step, which=lambda s: s.key.stage not in outside)
        origin = None if result.origin is None or result.origin.key.stage in outside else result.origin
        # A closer look names modules where the first names blocks.
        propagated = count(result.sites, FAILED, frozenset({"propagated"}))
        return _filled(
            preflight(result),
            steps_table(result.steps, step, self.details),
            blocks_table(loop, step, origin, self.details),
            stages_table(result.stages),
            *stage_blocks(result, self.details),
            frames_table(result.frames, self.details),
            failures(closest(result), propagated, self.details),
        )


def _filled(*sections: Section) -> tuple[Section, ...]:
    return tuple(section for section in sections if section.rows)


def preflight(result: Result) -> Facts:
    """The checks that did not pass, then one line for those that did."""
    rest = [check for check in result.preflight if check.verdict != "pass"]
    rows = [("preflight", _check(check)) for check in rest]
    passed = len(result.preflight) - len(rest)
    if passed:
        checks = "check passes" if passed == 1 else "checks pass"
        rows.append(("preflight", f"{passed} {'other ' if rest else ''}{checks}"))
    return Facts(tuple(rows))


def _check(check: Check) -> str:
    return f"{check.verdict}: {check.check}" + (f": {check.detail}" if check.detail else "")


def shown_step(result: Result) -> int | None:
    """The step whose blocks are shown: where the divergence starts, else the first with a failure, else the first."""
    if result.origin is not None and result.origin.key.stage not in {s.stage for s in result.stages}:
        return result.origin.key.step
    failed, every = set(steps_of(result.sites, FAILED)), set(steps_of(result.sites))
    return min(failed or {step for step in every if step >= 0} or every, default=None)


def stage_blocks(result: Result, details: bool) -> Iterator[Table]:
    """The blocks of each stage outside the loop that does not pass."""
    for stage in (s.stage for s in result.stages if s.verdict != "pass"):
        origin = result.origin if result.origin is not None and result.origin.key.stage == stage else None
        table = blocks_table(among(result.sites, step=-1, which=_of(stage)), -1, origin, details)
        yield replace(table, title=f"Blocks of the {stage} stage (worst ratio to the floor)")


def _of(stage: str) -> Which:
    return lambda s: s.key.stage == stage
