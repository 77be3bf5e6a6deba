"""The programs of a step's calls as the compiler left them, observed and not: what observing changes can be read there.

Cost: the program that is not there yet is compiled, and the step runs once with each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parity.golden.records import StepRecords
from parity.hooks.sites import SitePlan
from parity.paths.jax.program import counted
from parity.paths.loop import Loop, call_model
from parity.paths.plan import FIGURES, OBSERVED, UNOBSERVED


def written_step(loop: Loop, step: int, sites: SitePlan | None, folder: Path) -> StepRecords:
    """Write the optimised text of the first call's program, unobserved and with these sites observed.

    Returns:
        No records.
    """
    backend: Any = loop.side.backend
    plans = {UNOBSERVED: None, OBSERVED: sites}
    with backend.scope():
        for plan in plans.values():
            call_model(loop, step, plan)
    figures = {}
    for name, plan in plans.items():
        program = next(p.compiled for ((_, of), _), p in backend.programs.kept.items() if of == plan)
        memory, cost = counted(program)
        figures[name] = {"memory": memory, "cost": cost}
        (folder / f"{name}.hlo").write_text(program.as_text() or "", encoding="utf-8")
    (folder / FIGURES).write_text(json.dumps(figures), encoding="utf-8")
    return StepRecords(step, ())
