"""A stage outside the loop, compared by itself as the loop is: the same checks, floors, closer looks and verdict.

What differs is what a comparison of the loop says about steps: the reason names the stage and its worst output in their
place, and settings in which the sides differ are reported once, for the whole run.

Several results become one here: those of a run's stages, or of the encoders of its text stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parity.compare.reason import Note, Output, Reason
from parity.compare.result import Check, Result
from parity.paths.plan import Ends, Start
from parity.paths.side import Openers, Pair
from parity.records import LOOP
from parity.runs.compare import run
from parity.runs.request import Request, Say
from parity.runs.stream import Rounds, Sink
from parity.settings import differences


def compare_stage(
    request: Request, openers: Openers, say: Say, own: Mapping[str, Pair[Start]]
) -> tuple[Result, dict[str, Pair[Ends]]]:
    """Compare one stage; returns its result and what the sides of each check came to.

    Args:
        request: of one stage, with its own sites and settings. own: check -> each side's explicit inputs.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    kept = Rounds(Sink())
    name = f"{request.stage} {request.part}".rstrip()

    def told(text: str, done: int | None = None, total: int | None = None) -> None:
        say(f"{name}: {text}")

    result = run(request, told, kept, own, openers)
    why = _why(result, request.stage)
    notes = tuple(n for n in result.notes if not n.setting)
    return dataclasses.replace(result, preflight=(), differing_settings=(), checks=(), notes=notes, why=why), kept.ends


def _why(result: Result, name: str) -> Reason:
    """The reason of a stage: its outputs stand where the loop's would."""
    outputs = [d for d in result.sites if d.key.module == LOOP and not d.key.is_apart]
    worst = max(outputs, key=lambda d: d.distance.rel_l2, default=None)
    output = None if worst is None else Output(worst.key.port, worst.distance)
    return dataclasses.replace(result.why, stage=name, output=output, outputs_match=False, precision=False)


def with_checks(result: Result, checks: tuple[Check, ...], stage: str) -> Result:
    """The result with these checks before it; the first that fails decides."""
    bad = next((c for c in checks if c.verdict == "fail"), None)
    result = dataclasses.replace(result, preflight=(*result.preflight, *checks))
    if bad is None or result.verdict == "fail":
        return result
    why = Reason(kind="preflight", check=bad.check, detail=bad.detail, stage=stage)
    return dataclasses.replace(result, verdict="fail", failed="preflight", why=why)


def merged(found: Sequence[tuple[str, Result]], request: Request) -> Result:
    """One result of several by name, in their order: the first that fails decides, then the first inconclusive."""
    results = [result for _, result in found]

    def first(verdict: str) -> Result | None:
        return next((r for r in results if r.verdict == verdict), None)

    decides = first("fail") or first("inconclusive")
    base = next((r for name, r in found if name == "transformer"), results[0])
    notes = [note for r in results for note in r.notes]
    if decides is None:
        why, decides = Reason(kind="agrees", together=tuple(r.why for r in results)), base
    else:
        why = decides.why
        others = [(name, r) for name, r in found if r is not decides and r.verdict == "fail"]
        notes += [Note(f"{name} fails too: {r.reason}") for name, r in others]

    def joined(of: Callable[[Result], tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(item for r in results for item in of(r))

    return dataclasses.replace(
        base,
        verdict=decides.verdict,
        failed=decides.failed,
        why=why,
        origin=decides.origin,
        closer=decides.closer,
        differing_settings=differences(request.reference, request.candidate),
        preflight=joined(lambda r: r.preflight),
        sites=joined(lambda r: tuple(r.sites)),
        stages=joined(lambda r: r.stages),
        frames=joined(lambda r: r.frames),
        notes=tuple(notes),
    )
