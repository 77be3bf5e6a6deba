"""One pitfall of a port: two sides as tiny real code, and what parity has to say of them.

Where a pitfall lies in a script, both sides are scripts, recorded where they run. What is no number at all (a model
that is gone, a component that is not there) is a function that gives what parity said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["fail", "pass", "unjudged", "refused"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a pitfall.

    Attributes:
        parts: what `parity.record` is given. go: the script. options: more of what `parity.record` takes.
    """

    parts: Mapping[str, Any]
    go: Callable[[], object]
    options: Mapping[str, Any] = field(default_factory=dict)


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
    sides: Callable[[bool], Side] | None = None
    told: Callable[[Path], Told] | None = None
