"""A comparison as a document: what a person reads of it, in ten seconds.

In this order: the card; preflight; one row a step; one row a block for the step of the first divergence; the sites that
failed (`parity.report.tables`). Only selected here, never computed.

The card is what a reader must not miss, in a dozen lines: the verdict, the first divergence, its kind and effect, the
settings that differ, the likeliest cause, and what to type next; beside it stands what the verdict rests on. A terminal
shows it last, where the eye is; a page first.

Cost. One pass over the sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.independent import closest, differences
from parity.compare.places import place_of
from parity.compare.result import EVIDENCE, HARMLESS, Cause, Distance, Note, Result, SettingDifference, StepDiff
from parity.compare.sites import picked
from parity.records import OUTSIDE
from parity.report.document import Facts, Json, Section, Table, counted
from parity.report.formats.json import written
from parity.report.tables import blocks_table, failures, frames_table, stages_table, steps_table

_KINDS = {
    "preflight": "preflight: seen before anything is computed",
    "logic": "logic: in float32, with every dtype setting neutral",
    "precision": "precision: with the dtypes as given",
}
_FIRST = "first divergence: "
MOST = 12
"""Differences that are listed."""


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

    def json(self) -> Json:
        return {**written(self.result), "next": [command.partition("   #")[0] for command in self.following]}

    def conclusion(self) -> tuple[Section, ...]:
        return card(self.result, self.following), context(self.result)

    def sections(self) -> tuple[Section, ...]:
        result = self.result
        if self.explained and result.causes and not self.details:  # the tables are those of the comparison before
            return (preflight(result),)
        step = shown_step(result)
        outside = {s.stage for s in result.stages}
        loop = (s for s in picked(result.sites, step=step) if s.key.stage not in outside)
        # A closer look names modules where the first names blocks.
        return (
            preflight(result),
            steps_table(result.steps, step, self.details),
            blocks_table(loop, f"step {step}", result.origin, self.details),
            stages_table(result.stages),
            *stage_blocks(result, self.details),
            frames_table(result.frames, self.details),
            failures(closest(result), _propagated(result), self.details),
        )


def preflight(result: Result) -> Facts:
    """The checks that did not pass, then one line for those that did."""
    rest = [check for check in result.preflight if check.verdict != "pass"]
    rows = [("preflight", f"{c.verdict}: {c.check}" + (f": {c.detail}" if c.detail else "")) for c in rest]
    passed = len(result.preflight) - len(rest)
    if passed:
        checks = "check passes" if passed == 1 else "checks pass"
        rows.append(("preflight", f"{passed} {'other ' if rest else ''}{checks}"))
    return Facts(tuple(rows))


def shown_step(result: Result) -> int:
    """The step whose blocks are shown: where the divergence starts, else the first with a failure, else the first."""
    if result.origin is not None and result.origin.key.stage not in {s.stage for s in result.stages}:
        return result.origin.key.step
    failed = min((s.key.step for s in picked(result.sites, "fail")), default=None)
    if failed is not None:
        return failed
    return next((s.key.step for s in result.sites if s.key.step >= 0), OUTSIDE)


def stage_blocks(result: Result, details: bool) -> Iterator[Table]:
    """The blocks of each stage outside the loop that does not pass."""
    for stage in (s.stage for s in result.stages if s.verdict != "pass"):
        outside = (s for s in picked(result.sites, step=OUTSIDE) if s.key.stage == stage)
        yield blocks_table(outside, f"the {stage} stage", result.origin, details)


# --- the card


def card(result: Result, following: Sequence[str] = ()) -> Facts:
    """The ten seconds.

    Args:
        following: commands to go on with.
    """
    steps = f", {len(result.steps)} steps" if len(result.steps) > 1 else ""
    rows = [("verdict", f"{result.verdict}: {result.model}{steps}" if result.model else result.verdict)]
    _, first, rest = result.reason.partition(_FIRST)
    if first and not result.why.together:  # the kind says what comes before
        rows.append(("first divergence", rest))
    elif result.reason:
        rows.append(("reason", result.reason))
    if result.failed is not None:
        agreed = any(check.name == "logic" != result.failed and check.verdict == "pass" for check in result.checks)
        rows.append(("kind", _KINDS[result.failed] + "; the logic check passes" * agreed))
    if effect := _effect(result):
        rows.append(("effect", effect))
    independent = differences(result)
    shown = "; ".join(map(str, independent[:MOST])) + ("; ..." if independent[MOST:] else "")
    if len(independent) > 1:
        rows.append(("differences", f"{len(independent)} independent ones: {shown}"))
    elif "*" in shown:
        rows.append(("differences", f"the same in several blocks: {shown}"))
    if result.differing_settings:
        rows.append(("settings", "; ".join(_difference(d, result.notes) for d in result.differing_settings)))
    guilty = [cause for cause in result.causes if not cause.harmless]
    if guilty:
        rows.append(("cause", guilty[0].cause + (f" (and {len(guilty) - 1} more)" if guilty[1:] else "")))
        rows += [("fix", guilty[0].fix)] if guilty[0].fix else []
    # The last line is a command by itself, to be pasted.
    rows += [("next" if i < len(following) - 1 else "", command) for i, command in enumerate(following)]
    return Facts(tuple(rows))


def context(result: Result) -> Facts:
    """Causes with their evidence, one that several places have once, and notes."""
    rows, same = [], dict[object, list[Cause]]()
    for c in result.causes:
        alike = (c.cause.removeprefix(f"{place_of(c.at)}: "), c.fix, c.setting) if c.at else c.cause
        same.setdefault(alike, []).append(c)
    for c, *more in same.values():
        rows.append(("harmless", c.cause.removeprefix(HARMLESS)) if c.harmless else ("cause", c.cause))
        rows += [("also at", "; ".join(place_of(other.at) for other in more))] if more else []
        rows += [("fix", c.fix)] if c.fix else []
        rows += [("evidence", f"{EVIDENCE[w.kind]}: {w.detail}") for w in c.evidence]
        rows += [("confirm", c.confirm)] if c.confirm else []
    differing = {d.setting for d in result.differing_settings}
    rows += [("note", note.text) for note in result.notes if note.setting not in differing]
    return Facts(tuple(rows))


def _effect(result: Result) -> str:
    """What it does to noise_pred, check by check where several were run, and how far it spreads."""
    if result.why.problem == "not_finite":  # NaN on both sides agrees in every bit
        return ""
    checks = [(f" ({check.name})", _bits(check.steps)) for check in result.checks] or [("", _bits(result.steps))]
    differ = len({text for _, text in checks}) > 1
    bits = dict.fromkeys(text + name * differ for name, text in checks if text)
    spread = _propagated(result)
    behind = [f"{counted(spread, 'tensor')} behind it {'differs' if spread == 1 else 'differ'}"] * (spread > 0)
    return "; ".join([*bits, *behind])


def _propagated(result: Result) -> int:
    """How many sites differ only by what they are given."""
    return sum(s.birth == "propagated" for s in picked(result.sites, "fail"))


def _bits(steps: Sequence[StepDiff]) -> str:
    """`noise_pred agrees in 18.4 of 24 bits at step 3`: the worst step's; empty where no step has any."""
    known = [step for step in steps if step.bits_of and not _of_another_shape(step.noise_pred)]
    worst = min(known, key=lambda step: -math.inf if math.isnan(step.bits) else step.bits, default=None)
    if worst is None:
        return ""
    where = f" at step {worst.step}" if len(steps) > 1 else ""
    if math.isnan(worst.bits):
        return f"noise_pred is not finite{where}"
    return f"noise_pred agrees in {worst.bits:.1f} of {worst.bits_of} bits{where}"


def _of_another_shape(distance: Distance) -> bool:
    return math.isnan(distance.rel_l2) and math.isinf(distance.ratio)


def _difference(difference: SettingDifference, notes: Sequence[Note]) -> str:
    """The setting, and after it the notes about it: whether it did harm."""
    text = f"{difference.setting}: {difference.reference} -> {difference.candidate}"
    return "; ".join([text, *(note.text for note in notes if note.setting == difference.setting)])
