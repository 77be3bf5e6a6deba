"""`parity bisect settings`: the fewest of the candidate's differing settings that make `parity run` fail."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
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
    ports_by_content,
    say_state,
    settings_in_words,
    word,
)
from parity.commands.options import (
    CandidateOption,
    CandidatePathOption,
    JsonOption,
    PathTimeoutOption,
    PromptOption,
    ReferenceOption,
    ReferencePathOption,
    SeedOption,
    Stage1Option,
    StepsOption,
)
from parity.errors import UsageError
from parity.models.names import DEFAULT_MODEL
from parity.settings import Settings, parse

if TYPE_CHECKING:
    from rich.console import Console

    from parity.bisect.ddmin import Outcome
    from parity.bisect.settings import Found, Judge, Plan
    from parity.bisect.state import Probe
    from parity.report.progress import Say
    from parity.runs.request import Ports, Request


def settings(
    model: Annotated[
        str | None,
        typer.Option(help=f"Built-in model, folder in diffusers layout, or hub name; default {DEFAULT_MODEL}."),
    ] = None,
    steps: StepsOption = 1,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    rounds: Annotated[str, typer.Option(help="As for `parity run`: both, structure or precision.")] = "both",
    forcing: Annotated[str, typer.Option(help="As for `parity run`: none, step or module.")] = "none",
    stage1: Stage1Option = None,
    prompt: PromptOption = None,
    seed: SeedOption = 0,
    reference_path: ReferencePathOption = None,
    candidate_path: CandidatePathOption = None,
    path_timeout: PathTimeoutOption = 60.0,
    state: StateOption = None,
    restart: RestartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fewest settings of the candidate that make the run fail.

    What the state file knows is of the code and the weights it was asked with: --restart after changing them.
    """
    from parity.bisect.settings import bisect_settings, plan
    from parity.bisect.state import State
    from parity.commands.run import FORCINGS, ROUNDS, check_common
    from parity.paths.extras import quieten, require_extras
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    ports: Ports | None = None
    name = model or DEFAULT_MODEL
    if reference_path is None and candidate_path is None:
        ours, theirs = parse("torch", reference or []), parse("torchax", candidate or [])
    else:
        quieten()
        require_extras()
        from parity.commands.paths import load_paths

        given = (model, reference or [], candidate or [], path_timeout)
        ports, ours, theirs = load_paths(reference_path, candidate_path, *given)
        name = str(reference_path) if ports.alone else name
    for settings in (ours, theirs):
        settings.require_stages(("transformer",))
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt)
    if forcing not in FORCINGS:
        raise UsageError(f"--forcing takes {', '.join(FORCINGS)}, found '{forcing}'")
    if rounds not in ROUNDS:
        raise UsageError(f"--rounds takes {', '.join(ROUNDS)}, found '{rounds}'")
    searched = plan(ours, theirs) if ports is None else _plan(ports, ours, theirs)
    question = {
        "model": name,
        "steps": str(steps),
        "seed": str(seed),
        "rounds": rounds,
        "forcing": forcing,
        "inputs": inputs_by_content(stage1, prompt),
        "reference": settings_in_words(ours),
        "candidate": settings_in_words(theirs),
    }
    if ports is not None:
        question["ports"] = ports_by_content(ports.reference, ports.candidate)
    quieten()
    console, errors = make_consoles()
    with State.open(state or default_state("settings", question), "settings", question, restart) as opened:
        say_state(errors, opened.path, len(opened.probes))
        with progress(errors, quiet=not errors.is_terminal) as say:
            say("loading torch and diffusers")
            require_extras()
            from parity.runs.request import Request

            request = Request(name, ours, theirs, steps, seed, stage1, forcing=forcing, prompt=prompt, rounds=rounds)
            request = request if ports is None else replace(request, ports=ports)
            found = bisect_settings(searched, _judge(request, say), opened, _Told(errors, say))
        path = opened.path
    if as_json:
        print(json.dumps(document(found, searched, path), indent=1))
    else:
        console.print(text(found, searched), soft_wrap=True)


def _plan(ports: Ports, ours: Settings, theirs: Settings) -> Plan:
    """What can be varied where a port takes part: what the candidate's port knows."""
    from parity.bisect.port_plan import plan_of_port

    entry = ports.candidate or ports.reference
    assert entry is not None
    return plan_of_port(entry, ours, theirs)


def _judge(request: Request, say: Say) -> Judge:
    """Judges by a run."""
    from parity.runs.compare import run

    outcomes: dict[str, Outcome] = {"pass": "good", "fail": "bad", "unjudged": "unresolved"}

    def judge(candidate: Settings) -> tuple[Outcome, str]:
        result = run(replace(request, candidate=candidate), say)
        return outcomes[result.verdict], f"{result.verdict}: {result.reason}"

    return judge


class _Told:
    """Says what happens on stderr; see `parity.bisect.settings.Told`."""

    def __init__(self, errors: Console, say: Say) -> None:
        self._errors, self._say = errors, say

    def probing(self, names: tuple[str, ...]) -> None:
        self._say(f"running with {listed(names)}")

    def judged(self, probe: Probe, left: int) -> None:
        told = f"with {listed(probe.subject)}: {word(probe.outcome)} ({probe.evidence})"
        self._errors.print(f"{told}; {plural(left, 'setting')} left", soft_wrap=True)


def listed(names: tuple[str, ...]) -> str:
    """Names for a sentence."""
    return ", ".join(names) or "none of the settings"


def document(found: Found, searched: Plan, state: Path) -> dict[str, Any]:
    """What `--json` prints: settings in the order of `parity models`, probes in the order they were made."""
    sorted_out = {
        name: [list(p.subject) for p in found.probes if word(p.outcome) == name] for name in ("good", "bad", "skipped")
    }
    return {
        "format": FORMAT,
        "bisected": "settings",
        "culprits": [asdict(swap) for swap in found.culprits],
        "searched": [asdict(swap) for swap in searched.swaps],
        "kept": list(searched.kept),
        "probes": [
            {"settings": list(p.subject), "outcome": word(p.outcome), "evidence": p.evidence, "seconds": p.seconds}
            for p in found.probes
        ],
        **sorted_out,
        "state": str(state),
    }


def text(found: Found, searched: Plan) -> str:
    """The answer in words, after what was seen, sorted."""
    lines = []
    for name in ("good", "bad", "skipped"):
        held = [p for p in found.probes if word(p.outcome) == name]
        lines += [f"{name}:", *(f"  {listed(p.subject)}" for p in held)] if held else []
    if searched.kept:
        lines.append(f"the candidate's own in every run: {listed(searched.kept)}")
    probes = f"({plural(len(found.probes), 'probe')} of {plural(len(searched.swaps), 'setting')})"
    if not found.culprits:
        return "\n".join([*lines, f"no setting is at fault: the run fails without any of them {probes}"])
    changes = "; ".join(f"{swap.setting}: {swap.without} -> {swap.candidate}" for swap in found.culprits)
    together = " together" if len(found.culprits) > 1 else ""
    return "\n".join([*lines, f"the run fails{together} with {changes} {probes}"])
