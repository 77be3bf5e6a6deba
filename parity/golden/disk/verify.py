"""All that is wrong with a golden, reported and not raised."""

from __future__ import annotations

import os
from dataclasses import dataclass

from parity.errors import UsageError
from parity.golden.disk.format import MANIFEST
from parity.golden.disk.inputs import FILE, read_inputs
from parity.golden.disk.read import Golden


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
    where, found = f"{golden.name}/{MANIFEST}", []
    if not golden.complete:
        held = ", ".join(map(str, golden.steps)) or "none"
        message = f"{where}: the recording was not finished (steps held: {held}); go on with --resume"
        found.append(Problem(MANIFEST, message))
    elif not golden.steps:
        found.append(Problem(MANIFEST, f"{where}: it holds no steps at all; record it again"))
    for part in golden.manifest.parts:
        try:
            golden.read_step(part.step)
        except UsageError as error:
            found.append(Problem(part.file, str(error)))
    try:
        read_inputs(golden)
    except UsageError as error:
        found.append(Problem(FILE, str(error)))
    return found
