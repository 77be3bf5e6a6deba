"""`parity bisect steps`: the first step that differs by itself, and the one from which the free run does."""

from __future__ import annotations

import hashlib
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
    PromptOption,
    ReferenceOption,
    Stage1Option,
)
from parity.errors import UsageError
from parity.models.names import DEFAULT_MODEL
from parity.settings import parse

if TYPE_CHECKING:
    from rich.console import Console

    from parity.bisect.state import Probe
    from parity.bisect.steps import Found
    from parity.golden import Golden
    from parity.report.progress import Say

STEPS = 50
"""Steps of a run that none were given for."""


def steps(
    golden: Annotated[
        str | None, typer.Option(metavar="GOLDEN", help="Of the reference, with floors; without it one is recorded.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Built-in model, folder in diffusers layout, or hub name; else the golden's.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help=f"Denoising steps, by default {STEPS}; else the golden's.")] = None,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    every: Annotated[bool, typer.Option("--all", help="Run every step from the reference's latents.")] = False,
    free: Annotated[bool, typer.Option("--free/--no-free", help="Walk the free run too.")] = True,
    stage1: Stage1Option = None,
    prompt: PromptOption = None,
    seed: Annotated[int | None, typer.Option(help="Of the initial noise, by default 0; else the golden's.")] = None,
    state: StateOption = None,
    restart: RestartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the first step whose noise_pred is beyond its floor on the reference's own latents.

    Then the step from which the free run is. What the state file knows is of the code and the weights it was asked
    with: --restart after changing them.
    """
    from parity.bisect.state import State
    from parity.bisect.steps import bisect_steps
    from parity.commands.run import check_common
    from parity.golden import Golden
    from parity.paths.extras import quieten, require_extras
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    ours, theirs = parse("torch", reference or []), parse("torchax", candidate or [])
    if golden is not None:
        given = {"--steps": steps, "--seed": seed, "--reference": reference or None}
        for option in (name for name, value in given.items() if value is not None):
            raise UsageError(f"{option} and --golden exclude each other: the golden has its own")
    count, number = STEPS if steps is None else steps, 0 if seed is None else seed
    check_common(steps=count, seed=number, stage1=stage1, prompt=prompt)
    found_golden = Golden.open(golden) if golden is not None else None
    name = model or (found_golden.provenance.model if found_golden is not None else DEFAULT_MODEL)
    question = {"model": name, "inputs": inputs_by_content(stage1, prompt), "candidate": settings_in_words(theirs)}
    if found_golden is not None:
        question["golden"] = content_of(found_golden)
    else:
        question |= {"steps": str(count), "seed": str(number), "reference": settings_in_words(ours)}
    quieten()
    console, errors = make_consoles()
    with State.open(state or default_state("steps", question), "steps", question, restart) as opened:
        say_state(errors, opened.path, len(opened.probes))
        with progress(errors, quiet=not errors.is_terminal) as say:
            say("loading torch and diffusers")
            require_extras()
            from parity.bisect.steps_judge import (
                Carried,
                Recording,
                StepsJudge,
                load_against,
                record_reference,
                steps_of,
            )

            beside = opened.path.with_name(f"{opened.path.name}.golden")
            if found_golden is None:
                recording = Recording(beside, name, ours, count, number, stage1, prompt)
                found_golden = record_reference(recording, restart, say)
            total = steps_of(found_golden)
            if not found_golden.complete:
                errors.print(f"'{found_golden.name}' is not complete: {plural(total, 'step')} of it", markup=False)
            say("loading the candidate")
            carried = Carried(opened.path.with_name(f"{opened.path.name}.latents"))
            judge = StepsJudge(found_golden, load_against(found_golden, name, theirs, stage1, prompt), carried)
            walk = judge.free if free else None
            found = bisect_steps(total, judge.alone, walk, opened, _Told(errors, say), every=every)
            carried.forget()
        path = opened.path
    if as_json:
        print(json.dumps(document(found, total, path), indent=1))
    else:
        console.print(text(found, total, free), soft_wrap=True, markup=False)


def content_of(golden: Golden) -> str:
    """A golden by content: the checksums of its parts."""
    parts = "".join(part.sha256 for part in golden.manifest.parts)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


class _Told:
    """Says what happens on stderr; see `parity.bisect.steps.Told`."""

    def __init__(self, errors: Console, say: Say) -> None:
        self._errors, self._say = errors, say

    def probing(self, how: str, step: int) -> None:
        self._say(f"running step {step} alone" if how == "alone" else f"the free run, from step {step} on")

    def judged(self, probe: Probe, left: int) -> None:
        how, step = probe.subject
        told = f"step {step} {'alone' if how == 'alone' else 'of the free run'}: {word(probe.outcome)}"
        self._errors.print(f"{told} ({probe.evidence}); {plural(left, 'step')} left", soft_wrap=True, markup=False)


def _steps(found: Found, how: str, outcome: str) -> list[int]:
    return sorted(int(p.subject[1]) for p in found.probes if p.subject[0] == how and word(p.outcome) == outcome)


def document(found: Found, total: int, state: Path) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "format": FORMAT,
        "bisected": "steps",
        "steps": total,
        "first_alone": found.alone,
        "first_free": found.free,
        **{how: {name: _steps(found, how, name) for name in ("good", "bad", "skipped")} for how in ("alone", "free")},
        "probes": [
            {
                "how": p.subject[0],
                "step": int(p.subject[1]),
                "outcome": word(p.outcome),
                "evidence": p.evidence,
                "seconds": p.seconds,
            }
            for p in found.probes
        ],
        "state": str(state),
    }


def text(found: Found, total: int, free: bool) -> str:
    """The answer in words, after what was seen, sorted."""
    lines = []
    for how, called in (("alone", "alone"), ("free", "of the free run")):
        for name in ("good", "bad", "skipped"):
            held = _steps(found, how, name)
            lines += [f"{name}, {called}: {', '.join(map(str, held))}"] if held else []
    probes = f"({plural(len(found.probes), 'probe')} of {plural(total, 'step')})"
    if found.alone is None:
        first = "run from the reference's latents no step was seen to differ"
        made = ": what differs is made between the steps (initial latents, scheduler), or adds up"
        first += made if found.free is not None else ""
    else:
        first = f"run from the reference's latents the first step that differs is {found.alone}"
    ran = f"the free run leaves its floor at step {found.free}" if found.free is not None else "the free run stays"
    return "\n".join([*lines, f"{first}; {ran} {probes}" if free else f"{first} {probes}"])
