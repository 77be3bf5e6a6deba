"""The commands as functions: what `parity run`, `diff` and `explain` do, their answer as a value.

Each side runs in a process of its own, as on the command line. Progress is not shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from parity.compare.diff import Auto
from parity.compare.diff import diff as diff_goldens
from parity.errors import UsageError
from parity.face.result import Result
from parity.face.texts import Settings, texts
from parity.golden.rename import NONE, load_rename
from parity.paths.worker.extras import check_extras
from parity.paths.worker.openers import Workers
from parity.runs.request import Request

Where = str | os.PathLike[str]


def _quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


def run(
    model: str | None = None,
    *,
    reference: Settings | None = None,
    candidate: Settings | None = None,
    reference_path: str | None = None,
    candidate_path: str | None = None,
    steps: int = 1,
    seed: int = 0,
    prompt: str | None = None,
    stage1: Where | None = None,
    inputs: Where | None = None,
    like: Where | None = None,
    sites: str = "blocks",
    values: Sequence[str] = (),
    rounds: Literal["structure", "precision", "both"] = "both",
    forcing: Literal["none", "step", "module"] = "none",
    stages: Sequence[str] = ("transformer",),
    out: Where | None = None,
    overwrite: bool = False,
) -> Result:
    """Run the reference and the candidate side by side: `parity run`.

    Args:
        model: built-in model, folder in diffusers layout or hub name; None for the default, or for a reference port
            with inputs of its own. reference, candidate: settings by name, `{"attention.mask": "none"}`.
        reference_path, candidate_path: ports, `FILE:FUNCTION`. like: a golden, whose model, steps, seed, embeddings and
            noise are taken. The others: as the options of `parity run`.

    Raises:
        UsageError: bad input. UnjudgedError: a chosen site never fired, or a setting was ignored.
    """
    from parity.commands.parts.keep import KeepRun
    from parity.commands.parts.like import alike
    from parity.commands.parts.options import Generation
    from parity.runs.load import load_ports
    from parity.runs.request import Ports
    from parity.runs.stages.run import run_stages

    check_extras(torchax=True)
    generation = Generation(model=model, steps=steps, seed=seed, prompt=prompt, stage1=_path(stage1))
    generation.require_one_input()
    generation, alike_to = alike(None if like is None else str(like), generation, {"inputs": _path(inputs)})
    if like is not None and "text" in stages:
        raise UsageError("with text among the stages the prompt is encoded: leave like or text out")
    with Workers() as openers:
        ports = Ports(openers=openers)
        if reference_path is not None or candidate_path is not None:
            ports = load_ports(reference_path, candidate_path, model, 60.0, openers)
        ours, theirs = ports.settings(texts(reference), texts(candidate))
        for settings in (ours, theirs):
            settings.require_stages(tuple(stages))
        request = Request(
            model=str(reference_path) if ports.alone else generation.name,
            reference=ours,
            candidate=theirs,
            steps=generation.steps,
            seed=generation.seed,
            stage1=_path(stage1),
            prompt=prompt,
            sites=sites,
            values=tuple(values),
            forcing=forcing,
            rounds=rounds,
            inputs=_path(inputs),
            ports=ports,
            stages=tuple(stages),
            like=alike_to,
        )
        kept = None if out is None else KeepRun(Path(out), request, overwrite)
        result = run_stages(request, _quiet, kept)
        if kept is not None:
            result = result.noted(*kept.notes)
            kept.result(result)
            result = result.noted(*kept.problems)
        return Result.of(result)


def diff(reference: Where, candidate: Where, *, rename: Where | Literal["auto"] | None = None) -> Result:
    """Compare two goldens: `parity diff`.

    Args:
        reference, candidate: folders or URLs. rename: file of rename rules, or `auto` to propose them.

    Raises:
        UsageError: a golden is missing or damaged.
    """
    rules = NONE if rename is None else Auto() if rename == "auto" else load_rename(str(rename))
    return Result.of(diff_goldens(reference, candidate, rename=rules))


def explain(
    run_or_reference: Where,
    candidate: Where | None = None,
    *,
    model: str | None = None,
    stage1: Where | None = None,
    prompt: str | None = None,
    reference_path: str | None = None,
    candidate_path: str | None = None,
) -> Result:
    """The causes of a difference, as `result.causes`: `parity explain`.

    Args:
        run_or_reference: a run that was kept (`run(..., out=DIR)`), or the reference golden with `candidate` beside it.
        model: of two goldens, None for theirs. stage1, prompt: what they were recorded with, where it was not the
            model's example prompt. reference_path, candidate_path: the ports of a kept run, named again.

    Raises:
        UsageError: no such run or golden.
    """
    from parity.causes.explain import ExplainRequest, of_run
    from parity.causes.explain import explain as find_causes

    if candidate is None and (model, stage1, prompt) != (None, None, None):
        raise UsageError("a kept run holds its own model, stage1 and prompt: leave them out")
    with Workers() as openers:
        if candidate is None:
            request = of_run(
                Path(run_or_reference), openers, {"reference": reference_path, "candidate": candidate_path}
            )
        else:
            request = ExplainRequest(
                reference=str(run_or_reference),
                candidate=str(candidate),
                model=model,
                stage1=_path(stage1),
                prompt=prompt,
            )
        return Result.of(find_causes(request, openers, _quiet))


def _path(where: Where | None) -> Path | None:
    return None if where is None else Path(where)
