"""The commands as functions: what `parity run`, `diff` and `explain` do, their answer as a value.

Each side runs in a process of its own, as on the command line. Progress is not shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from parity.compare.diff import Auto
from parity.compare.diff import diff as diff_goldens
from parity.errors import UsageError
from parity.face.result import Result
from parity.golden.rename import NONE, load_rename
from parity.paths.worker.extras import check_extras
from parity.paths.worker.process import Workers
from parity.report.output import silent
from parity.settings import Value, render

Where = str | os.PathLike[str]
Settings = Mapping[str, Value]
"""Values by name: `{"attention.mask": "none", "jit": False}`."""


def texts(settings: Settings | None) -> list[str]:
    """`NAME=VALUE` of each, as the command line takes it."""
    return [f"{name}={render(value)}" for name, value in (settings or {}).items()]


def run(
    model: str | None = None,
    *,
    reference: Settings | None = None,
    candidate: Settings | None = None,
    port: str | None = None,
    reference_port: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    prompt: str | None = None,
    inputs: Where | None = None,
    sites: str = "blocks",
    values: Sequence[str] = (),
    checks: Literal["logic", "precision", "both"] = "both",
    isolate: Literal["none", "steps"] = "none",
    stages: Sequence[str] | None = None,
    out: Where | None = None,
) -> Result:
    """Run the reference and the candidate side by side: `parity run`.

    Args:
        model: built-in model, folder in diffusers layout or hub name; None for the default, or for a reference port
            with inputs of its own. reference, candidate: settings by name, `{"attention.mask": "none"}`.
        port, reference_port: `FILE.py:FUNCTION`. steps, seed: None for one step from seed 0, or the golden's. inputs:
            what both sides start from: a golden, a port's embeddings or latents, or tensors by argument name. The
            others: as the options of `parity run`.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting was ignored.
    """
    from parity.commands.keep import KeepRun
    from parity.commands.options import Generation, Sides
    from parity.runs.compare import run_stages

    check_extras(torchax=port is None and "device" not in (candidate or {}))
    generation = Generation(model=model, steps=steps, seed=seed, prompt=prompt, inputs=_text(inputs))
    start = generation.read(None if stages is None else ",".join(stages))
    sides = Sides(reference=texts(reference), candidate=texts(candidate), port=port, reference_port=reference_port)
    with Workers() as openers:
        loaded = sides.load(start.model, openers)
        request = start.request(loaded, sites=sites, values=tuple(values), isolate=isolate, checks=checks)
        kept = None if out is None else KeepRun(Path(out), request)
        result = run_stages(request, silent, kept)
        if kept is not None:
            kept.result(result)
            result = result.noted(*kept.problems)
        return Result.of(result)


def diff(
    reference: Where, candidate: Where, *, rename: Where | Literal["auto"] | None = None, steps: int | None = None
) -> Result:
    """Compare two goldens: `parity diff`.

    Args:
        reference, candidate: folders or URLs. rename: file of rename rules, or `auto` to propose them. steps: how many
            are compared; None for all, which an unfinished golden has not.

    Raises:
        UsageError: a golden is missing or damaged.
    """
    rules = NONE if rename is None else Auto() if rename == "auto" else load_rename(str(rename))
    return Result.of(diff_goldens(reference, candidate, rename=rules, steps=steps))


def explain(
    run_or_reference: Where,
    candidate: Where | None = None,
    *,
    model: str | None = None,
    prompt: str | None = None,
    port: str | None = None,
    reference_port: str | None = None,
) -> Result:
    """The causes of a difference, as `result.causes`: `parity explain`.

    Args:
        run_or_reference: a run that was kept (`run(..., out=DIR)`), or the reference golden with `candidate` beside it.
        model: of two goldens, None for theirs. prompt: of goldens that carry no embeddings, where it was not the
            model's own. port, reference_port: of a kept run, named again.

    Raises:
        UsageError: no such run or golden.
    """
    from parity.causes.explain import ExplainRequest, of_run
    from parity.causes.explain import explain as find_causes

    if candidate is None and (model, prompt) != (None, None):
        raise UsageError("a kept run holds its own model and prompt: leave them out")
    with Workers() as openers:
        if candidate is None:
            request = of_run(Path(run_or_reference), openers, {"reference": reference_port, "candidate": port})
        else:
            request = ExplainRequest(
                reference=str(run_or_reference), candidate=str(candidate), model=model, prompt=prompt
            )
        return Result.of(find_causes(request, openers, silent))


def _text(where: Where | None) -> str | None:
    return None if where is None else os.fspath(where)
