"""One pitfall of a port: two sides as tiny real code, and what parity has to say of them.

A pitfall is a function: its docstring says what both sides do, and what parity has to say is written down above it.
Where it lies in a script, both sides are scripts, recorded where they run. What is no number at all (a model that is
gone, a component that is not there) is a function that gives what parity said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import judge
from change import Scene, said

from parity.errors import ParityError

Verdict = Literal["fail", "pass", "inconclusive", "refused"]
Outcome = Literal["named", "found", "passes", "not seen"]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What parity said.

    Attributes:
        verdict: of the comparison; `refused` where there was none. sentences: its reason, causes and notes.
        place: the first divergence, empty for none.
    """

    verdict: str
    sentences: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Pitfall:
    """See the module's docstring.

    Attributes:
        number, title: in diffusers' list. what: what both sides do here, in two lines at most.
        verdict: the right one. says: words that one sentence has to have, all of them; none where the verdict says it.
        sides: whether the reference is wanted -> that side. told: in place of sides, takes an empty folder.
    """

    number: int
    title: str
    what: str
    verdict: Verdict = "fail"
    says: tuple[str, ...] = ()
    sides: Callable[[bool], Scene] | None = None
    told: Callable[[Path], Told] | None = None

    def words_in(self, text: str) -> bool:
        return all(word in text for word in self.says)


def pitfall(number: int, title: str, *says: str, verdict: Verdict = "fail") -> Callable[[Callable[..., Any]], Pitfall]:
    """Make a function a pitfall.

    It takes whether the reference is wanted and returns a side, a script or a scene. One that is refused has no sides:
    it takes an empty folder and returns what parity said.
    """

    def row(function: Callable[..., Any]) -> Pitfall:
        def sides(right: bool) -> Scene:
            side = function(right)
            return side if isinstance(side, Scene) else side.scene()

        run = {"told": function} if verdict == "refused" else {"sides": sides}
        return Pitfall(number=number, title=title, what=said(function), verdict=verdict, says=says, **run)

    return row


def told(pitfall: Pitfall, folder: Path) -> Told:
    """What parity says, as its commands do.

    Args:
        folder: an empty one.
    """
    with judge.silent():
        if pitfall.told is not None:
            return pitfall.told(folder)
        assert pitfall.sides is not None
        try:
            result, why = judge.recorded(pitfall.sides, folder)
        except ParityError as error:
            return Told(verdict="refused", sentences=(str(error),))
    found = why or result
    causes = [text for c in found.causes for text in (c.cause, c.fix, *(w.detail for w in c.evidence))]
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
    return "named" if any(map(pitfall.words_in, said.sentences)) else "found"
