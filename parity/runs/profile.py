"""Profiles of both sides: the transformer's calls of the first step, each under its own library's profiler.

Made after the comparison, from sides loaded anew, so that nothing of it is measured by, or changes, what is judged.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parity.errors import UsageError
from parity.paths.plan import LOOP_STAGE, Plan
from parity.paths.worker.openers import Workers
from parity.runs.request import Request, Say
from parity.runs.sides import ready


def folders(where: Path) -> dict[str, Path]:
    """A folder for each role, made.

    Raises:
        UsageError: they cannot be made.
    """
    found = {role: where.resolve() / role for role in ("reference", "candidate")}
    for folder in found.values():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--profile: cannot make '{folder}': {error.strerror}") from None
    return found


def profile(request: Request, say: Say, where: Path) -> None:
    """Write both profiles.

    Raises:
        UsageError: bad input, or a side failed.
    """
    into = folders(where)
    given = request.ports.openers
    with Workers() as own, ready(replace(request, stages=(LOOP_STAGE,)), given or own, say) as both:
        for side in (both.sides.reference, both.sides.candidate):
            say(f"profiling the {side.role}")
            for _ in side.observe(Plan(profile=str(into[side.role])), steps=(0, 1)):
                pass
