"""Checking a golden as a whole: everything that reading would find, and what only the whole shows.

Problem. Before a golden is trusted, committed or uploaded, somebody wants all that is wrong with it, not the first.

How. Every part is read as `Golden.read_step` reads it, and what it raises is collected; then the things that hold
between parts: it was finished, it holds something, its module tree has no loose ends.

Cost. One read of every byte; memory of one part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parity.errors import UsageError
from parity.golden.format import MANIFEST
from parity.golden.read import Golden


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a golden.

    Attributes:
        file: the file it was found in.
        message: what is wrong and what to do, a sentence for people.
    """

    file: str
    message: str


def verify(where: str | os.PathLike[str]) -> list[Problem]:
    """All that is wrong with the golden at a path or URL; empty where it can be trusted.

    Bad data is reported, not raised.
    """
    try:
        golden = Golden.open(where)
    except UsageError as error:
        return [Problem(MANIFEST, str(error))]
    return [*_whole(golden), *_parts(golden)]


def _whole(golden: Golden) -> Iterator[Problem]:
    where = f"{golden.name}/{MANIFEST}"
    if not golden.complete:
        held = ", ".join(map(str, golden.steps)) or "none"
        yield Problem(MANIFEST, f"{where}: the recording was not finished (steps held: {held}); go on with --resume")
    elif not golden.steps:
        yield Problem(MANIFEST, f"{where}: it holds no steps at all; record it again")
    if loose := loose_module(golden.provenance.modules):
        yield Problem(MANIFEST, f"{where}: the module tree is broken at {loose!r}; record it again")


def loose_module(modules: Mapping[str, str]) -> str | None:
    """The first module whose parents do not lead to the root `""`; None where all do."""
    rooted = {""}
    for module in modules:
        chain: list[str] = []
        at = module
        while at not in rooted:
            if at not in modules or at in chain:
                return module
            chain.append(at)
            at = modules[at]
        rooted.update(chain)
    return None


def _parts(golden: Golden) -> Iterator[Problem]:
    for part in golden.manifest.parts:
        try:
            golden.read_step(part.step)
        except UsageError as error:
            yield Problem(part.file, str(error))
