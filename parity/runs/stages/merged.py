"""One result of several: of a run's stages, or of the encoders of its text stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from parity.compare.reason import Note, Reason
from parity.compare.result import Result
from parity.runs.request import Request
from parity.settings import differences


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
