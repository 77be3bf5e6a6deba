"""What parity says of a pitfall: both sides recorded, compared and explained, as the commands do it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import judge
from pitfall import Pitfall, Side, Told

import parity
from parity.causes.explain import ExplainRequest, explain
from parity.compare.diff import diff
from parity.errors import ParityError

Outcome = Literal["named", "found", "passes", "not seen"]


def told(pitfall: Pitfall, folder: Path) -> Told:
    """What parity says.

    Args:
        folder: an empty one.
    """
    with _silent():
        if pitfall.told is not None:
            return pitfall.told(folder)
        assert pitfall.sides is not None
        record(pitfall.sides, folder)
        return _compared(str(folder / "reference"), str(folder / "candidate"))


def record(sides: Callable[[bool], Side], folder: Path) -> None:
    """Both sides, recorded."""
    side = sides(True)
    for _ in parity.record(folder / "reference", **side.parts, **side.options):
        side.go()
    side = sides(False)
    with parity.record(folder / "candidate", **side.parts, like=folder / "reference", **side.options):
        side.go()


def _compared(reference: str, candidate: str) -> Told:
    try:
        found = diff(reference, candidate)
        if found.verdict == "fail":
            found = explain(ExplainRequest(reference, candidate), judge.Here(), judge.quiet)
    except ParityError as error:
        return Told(verdict="refused", sentences=(str(error),))
    causes = [text for c in found.causes for text in (c.cause, *(w.detail for w in c.witnesses))]
    notes = [note.text for note in found.notes]
    checks = [f"{check.check}: {check.detail}" for check in found.preflight if check.verdict == "fail"]
    place = "" if found.origin is None else f"step {found.origin.key.step} {found.origin.key.site}"
    return Told(verdict=found.verdict, sentences=(*causes, *notes, *checks, str(found.reason)), place=place)


def outcome(pitfall: Pitfall, said: Told) -> Outcome:
    """How well that is: the right verdict with the words that were written down, the verdict alone, neither."""
    if said.verdict != pitfall.verdict:
        return "not seen"
    if not pitfall.says:
        return "passes"
    return "named" if any(all(word in text for word in pitfall.says) for text in said.sentences) else "found"


def sentence(pitfall: Pitfall, said: Told) -> str:
    """The sentence that counts, cut to a line; else the first."""
    chosen = [text for text in said.sentences if all(word in text for word in pitfall.says)] if pitfall.says else []
    return next(iter([*chosen, *said.sentences]), "").strip()


@contextlib.contextmanager
def _silent() -> Iterator[Any]:
    """What a recording says on stderr is of its script."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
