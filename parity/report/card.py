"""What a reader of a comparison must not miss: a card of a dozen lines, and beside it what the verdict rests on.

The card has the verdict, the first divergence, its kind and effect, the settings that differ, the likeliest cause, and
what to type next. A terminal shows it last, where the eye is; a page first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parity.compare.independent import differences
from parity.compare.result import EVIDENCE, HARMLESS, Note, Result, SettingDifference, StepDiff
from parity.compare.sites import FAILED, count
from parity.records import Key
from parity.report.document import Facts

_KINDS = {
    "preflight": "preflight: seen before anything is computed",
    "logic": "logic: in float32, with every dtype setting neutral",
    "precision": "precision: with the dtypes as given",
}
_FIRST = "first divergence: "
MOST = 6
"""Differences that are listed."""


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
        agreed = any(check.name == "logic" and check.verdict == "pass" for check in result.checks)
        rows.append(("kind", _KINDS[result.failed] + "; the logic check passes" * agreed))
    rows += [("effect", effect) for effect in _effects(result)]
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
    """Causes with their evidence, and notes."""
    rows = []
    for c in result.causes:
        rows.append(("harmless", c.cause.removeprefix(HARMLESS)) if c.harmless else ("cause", c.cause))
        rows += [("fix", c.fix)] if c.fix else []
        rows += [("evidence", f"{EVIDENCE[w.kind]}: {w.detail}") for w in c.evidence]
        rows += [("confirm", c.confirm)] if c.confirm else []
    differing = {d.setting for d in result.differing_settings}
    rows += [("note", note.text) for note in result.notes if note.setting not in differing]
    return Facts(tuple(rows))


def _effects(result: Result) -> list[str]:
    """What it does to noise_pred, check by check where several were run, and how far it spreads."""
    checks: list[tuple[str, str]] = [(check.name, _bits(check.steps)) for check in result.checks]
    checks = checks or [("", _bits(result.steps))]
    differ = len({text for _, text in checks}) > 1
    bits = dict.fromkeys(f"{text} ({name})" if differ else text for name, text in checks if text)
    spread = count(result.sites, FAILED, frozenset({"propagated"}))
    return ["; ".join([*bits, *([f"{spread} tensors behind it differ"] if spread else [])])] if bits or spread else []


def _bits(steps: Sequence[StepDiff]) -> str:
    """`noise_pred agrees in 18.4 of 24 bits at step 3`: the worst step's; empty where no step has any."""
    known = [step for step in steps if step.bits_of]
    worst = min(known, key=lambda step: -math.inf if math.isnan(step.bits) else step.bits, default=None)
    if worst is None:
        return ""
    where = f" at step {worst.step}" if len(steps) > 1 else ""
    if math.isnan(worst.bits):
        return f"noise_pred is not finite{where}"
    return f"noise_pred agrees in {worst.bits:.1f} of {worst.bits_of} bits{where}"


def place(key: Key) -> str:
    """`step 0 cond`; the stage only where it is not the one that nearly every site is in."""
    branch = f" {key.branch}" if key.branch else ""
    if key.step < 0 and key.stage != "transformer":
        return f"{key.stage}{branch}"  # outside the loop
    stage = "" if key.stage == "transformer" else f"{key.stage} "
    return f"{stage}step {key.step}{branch}"


def site_name(key: Key) -> str:
    return key.site + (f" call {key.call}" if key.call else "")


def _difference(difference: SettingDifference, notes: Sequence[Note]) -> str:
    """The setting, and after it the notes about it: whether it did harm."""
    text = f"{difference.setting}: {difference.reference} -> {difference.candidate}"
    return "; ".join([text, *(note.text for note in notes if note.setting == difference.setting)])
