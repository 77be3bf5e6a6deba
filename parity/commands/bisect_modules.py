"""`parity bisect modules`: the fewest modules whose replacement by the reference's restores parity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parity.commands.bisect_common import (
    FORMAT,
    RestartOption,
    StateOption,
    default_state,
    inputs_by_content,
    plural,
    say_state,
    settings_in_words,
    word,
)
from parity.commands.options import (
    CandidateOption,
    JsonOption,
    ModelOption,
    PromptOption,
    ReferenceOption,
    SeedOption,
    Stage1Option,
)
from parity.errors import UsageError
from parity.models.names import DEFAULT_MODEL
from parity.settings import LAYOUT, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from parity.bisect.modules import Found
    from parity.bisect.state import Probe
    from parity.report.progress import Say


def modules(
    model: ModelOption = DEFAULT_MODEL,
    steps: Annotated[int, typer.Option(help="Denoising steps of the schedule.")] = 1,
    step: Annotated[int, typer.Option(help="The step that is probed, from the reference's latents.")] = 0,
    within: Annotated[
        str, typer.Option(metavar="MODULE", help="Search this module's children, not the top module's.")
    ] = "",
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    stage1: Stage1Option = None,
    prompt: PromptOption = None,
    seed: SeedOption = 0,
    state: StateOption = None,
    restart: RestartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fewest modules of the candidate that have to be replaced for noise_pred to be within its floor.

    What the state file knows is of the code and the weights it was asked with: --restart after changing them.
    """
    from parity.bisect.modules import bisect_modules
    from parity.bisect.state import State
    from parity.commands.run import check_common
    from parity.paths.extras import quieten, require_extras
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    ours, theirs = parse("torch", reference or []), parse("torchax", candidate or [])
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt)
    if not 0 <= step < steps:
        raise UsageError(f"--step must be from 0 to {steps - 1} (--steps {steps}), found {step}")
    question = {
        "model": model,
        "steps": str(steps),
        "step": str(step),
        "within": within,
        "seed": str(seed),
        "inputs": inputs_by_content(stage1, prompt),
        "reference": settings_in_words(ours),
        "candidate": settings_in_words(theirs),
    }
    quieten()
    console, errors = make_consoles()
    with State.open(state or default_state("modules", question), "modules", question, restart) as opened:
        say_state(errors, opened.path, len(opened.probes))
        aligned = [name for name in LAYOUT if ours[name] != theirs[name]]
        if aligned:
            errors.print(f"the reference's in every run: {', '.join(aligned)}")
        with progress(errors, quiet=not errors.is_terminal) as say:
            say("loading torch and diffusers")
            require_extras()
            from parity.bisect.transplant import transplant
            from parity.runs.request import Request

            request = Request(model, ours, theirs, steps, seed, stage1, prompt=prompt)
            made = transplant(request, step, within, say)
            found = bisect_modules(made.modules, made.judge, opened, _Told(errors, say, made.modules), made.outside)
        path = opened.path
    if as_json:
        print(json.dumps(document(found, made.modules, made.left_out, aligned, path), indent=1))
    else:
        console.print(text(found, made.modules, made.left_out, aligned), soft_wrap=True, markup=False)


class _Told:
    """Says what happens on stderr; see `parity.bisect.modules.Told`."""

    def __init__(self, errors: Console, say: Say, names: tuple[str, ...]) -> None:
        self._errors, self._say, self._names = errors, say, names

    def probing(self, replaced: tuple[str, ...]) -> None:
        self._say(f"running with {listed(replaced, self._names)} replaced")

    def judged(self, probe: Probe, left: int) -> None:
        told = f"{listed(probe.subject, self._names)} replaced: {word(probe.outcome)} ({probe.evidence})"
        self._errors.print(f"{told}; {plural(left, 'module')} left", soft_wrap=True, markup=False)


def listed(replaced: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Modules for a sentence: runs of neighbours by their ends."""
    if not replaced:
        return "none"
    at = {name: i for i, name in enumerate(names)}
    runs: list[list[str]] = []
    for name in replaced:
        if runs and at.get(name, -1) == at.get(runs[-1][-1], -3) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]} ({len(run)})" for run in runs)


def document(
    found: Found, names: tuple[str, ...], left_out: Mapping[str, str], aligned: list[str], state: Path
) -> dict[str, Any]:
    """What `--json` prints: modules in execution order, probes in the order they were made."""
    sorted_out = {
        name: [list(p.subject) for p in found.probes if word(p.outcome) == name] for name in ("good", "bad", "skipped")
    }
    return {
        "format": FORMAT,
        "bisected": "modules",
        "culprits": list(found.culprits),
        "searched": list(names),
        "aligned": aligned,
        "left_out": [{"module": name, "why": why} for name, why in left_out.items()],
        "probes": [
            {"replaced": list(p.subject), "outcome": word(p.outcome), "evidence": p.evidence, "seconds": p.seconds}
            for p in found.probes
        ],
        **sorted_out,
        "state": str(state),
    }


def text(found: Found, names: tuple[str, ...], left_out: Mapping[str, str], aligned: list[str]) -> str:
    """The answer in words, after what was seen, sorted."""
    lines = []
    for name in ("good", "bad", "skipped"):
        held = [p for p in found.probes if word(p.outcome) == name]
        lines += [f"{name}:", *(f"  {listed(p.subject, names)} replaced" for p in held)] if held else []
    if aligned:
        lines.append(f"the reference's in every run: {', '.join(aligned)}")
    lines += [f"cannot be replaced: {name}: {why}" for name, why in left_out.items()]
    probes = f"({plural(len(found.probes), 'probe')} of {plural(len(names), 'module')})"
    return "\n".join([*lines, f"replacing {', '.join(found.culprits)} restores parity {probes}"])
