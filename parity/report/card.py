"""What a reader of a comparison must not miss: a card of a dozen lines, and beside it what the verdict rests on.

The card has the verdict, the first divergence, the likeliest cause, what it costs in bits, and what to type next. A
terminal shows it last, where the eye is; a page first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parity.compare.result import EVIDENCE, Cause, Checked, Note, Origin, Result, SettingDifference, StepDiff
from parity.golden.records import Key
from parity.report.document import Facts

_BIRTHS = {
    "input": "introduced at the input (it differs, its producer matches)",
    "module": "introduced in the module (its inputs match, its output differs)",
    "propagated": "propagated from differences before it",
}


def card(result: Result, following: Sequence[str] = ()) -> Facts:
    """The ten seconds.

    Args:
        following: commands to go on with.
    """
    verdict = f"{result.verdict} ({result.failed})" if result.failed else result.verdict
    rows = [("verdict", f"{verdict}: {result.model}" if result.model else verdict)]
    if result.reason:
        rows.append(("reason", result.reason))
    if result.origin is not None:
        rows.append(("first divergence", _origin(result.origin, result)))
    if result.causes:
        more = len(result.causes) - 1
        rows.append(("top cause", _cause(result.causes[0]) + (f" (and {more} more)" if more else "")))
    rows += [("check", _checked(found)) for found in result.checks]
    if not result.checks and (bits := _bits(result.steps)):
        rows.append(("bits", bits))
    rows += [("next", command) for command in following]
    return Facts(tuple(rows))


def context(result: Result) -> Facts:
    """Differing settings, causes with their evidence, and notes."""
    rows = [("differs", _difference(d, result.notes)) for d in result.differing_settings]
    for c in result.causes:
        rows.append(("cause", _cause(c)))
        rows += [("evidence", f"{EVIDENCE[w.kind]}: {w.detail}") for w in c.evidence]
    differing = {d.setting for d in result.differing_settings}
    rows += [("note", note.text) for note in result.notes if note.setting not in differing]
    return Facts(tuple(rows))


def _cause(cause: Cause) -> str:
    return cause.cause if math.isnan(cause.share) else f"{cause.share:.0%}: {cause.cause}"


def _checked(found: Checked) -> str:
    """`pass: logic, noise_pred agrees in 18.4 of 24 bits`: the worst step's."""
    bits = _bits(found.steps)
    return f"{found.verdict}: {found.name}" + (f", {bits}" if bits else "")


def _bits(steps: Sequence[StepDiff]) -> str:
    """`noise_pred agrees in 18.4 of 24 bits at step 3`: the worst step's; empty where no step has any."""
    worst = min((step for step in steps if step.bits_of), key=lambda step: step.bits, default=None)
    if worst is None:
        return ""
    where = f" at step {worst.step}" if len(steps) > 1 else ""
    return f"noise_pred agrees in {worst.bits:.1f} of {worst.bits_of} bits{where}"


def _origin(origin: Origin, result: Result) -> str:
    how = _BIRTHS[origin.birth]
    if origin.birth == "module" and not result.inputs_compared:
        how = "introduced there or before (its own inputs were not compared)"
    elif origin.birth != "propagated" and result.why.not_compared:
        how = f"introduced there or before, where not all could be compared ({', '.join(result.why.not_compared)})"
    return f"{place(origin.key)} {site_name(origin.key)}, {how}"


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
    """The setting, and after it the notes about it: whether it did harm is said there."""
    text = f"{difference.setting}: {difference.reference} -> {difference.candidate}"
    return "; ".join([text, *(note.text for note in notes if note.setting == difference.setting)])
