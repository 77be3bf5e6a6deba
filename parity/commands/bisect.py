"""`parity bisect`: what brought a difference. Each search has a state file and is resumed where it was stopped.

Exit codes: 0 found, 125 it cannot be told, 2 wrong usage. Progress goes to stderr; stdout has the answer alone.

Cost. Starting: numpy and typer; the searches import what they need when they run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.options import (
    CandidateOption,
    CandidatePathOption,
    JsonOption,
    ModelOption,
    PathTimeoutOption,
    PromptOption,
    ReferenceOption,
    ReferencePathOption,
    SeedOption,
    Stage1Option,
    StepsOption,
)
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.settings import LAYOUT, parse

if TYPE_CHECKING:
    from rich.console import Console

    from parity.bisect.commits import Judge
    from parity.bisect.report import Report
    from parity.bisect.state import State
    from parity.report.progress import Say

STEPS = 50
"""Steps of a run for `steps` without --steps."""

StateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="State file; by default one of this question in parity's cache.")
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Forget what the state file knows.")]

app = typer.Typer(no_args_is_help=True, help="Find what brought a difference. A killed search goes on where it was.")


class _Listener:
    """Prints progress on stderr; see `parity.bisect.search.Listener`.

    Attributes:
        say: names what is being done. errors: the console of stderr.
    """

    def __init__(self, errors: Console, say: Say) -> None:
        self.errors, self.say = errors, say

    def trying(self, text: str) -> None:
        self.say(text)

    def judged(self, text: str, details: list[str]) -> None:
        for line in (text, *(f"    {line}" for line in details)):
            self.errors.print(line, soft_wrap=True)


Search = Callable[["State", _Listener], "Report"]


def _search(
    kind: str, question: Mapping[str, str], run: Search, state: Path | None, restart: bool, as_json: bool
) -> None:
    """Open the state file, search, print the answer."""
    from parity.bisect.report import plural
    from parity.bisect.state import State
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    console, errors = make_consoles()
    with State.open(state, kind, question, restart) as opened:
        known = len(opened.probes)
        kept = f"; {plural(known, 'probe')} known from before (--restart forgets them)" if known else ""
        errors.print(f"state: {opened.path}{kept}", soft_wrap=True)
        with progress(errors, quiet=not errors.is_terminal) as say:
            report = run(opened, _Listener(errors, say))
    if as_json:
        print(json.dumps(report.document(opened.path), indent=1))
    else:
        console.print(report.text(), soft_wrap=True)
    raise typer.Exit(report.exit_code)


def _load(listen: _Listener) -> None:
    """Check that the models' packages are there; they take seconds to import."""
    from parity.commands.run import require_extras

    listen.say("loading torch and diffusers")
    require_extras()


@app.command()
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
    from parity.bisect import settings as subject
    from parity.bisect.question import inputs_by_content, ports_by_content, settings_in_words
    from parity.bisect.search import search
    from parity.bisect.strategy import strategy
    from parity.bisect.swaps import plan
    from parity.commands.run import FORCINGS, ROUNDS, check_common, quieten, require_extras

    ports, name = None, model or DEFAULT_MODEL
    if reference_path is None and candidate_path is None:
        ours, theirs = parse("torch", reference or []), parse("torchax", candidate or [])
    else:
        quieten()
        require_extras()
        from parity.commands.paths import load_paths

        ports, ours, theirs = load_paths(
            reference_path, candidate_path, model, reference or [], candidate or [], path_timeout
        )
        name = str(reference_path) if ports.alone else name
    for chosen in (ours, theirs):
        chosen.require_stages(("transformer",))
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt)
    for option, value, values in (("--forcing", forcing, FORCINGS), ("--rounds", rounds, ROUNDS)):
        if value not in values:
            raise UsageError(f"{option} takes {', '.join(values)}, found '{value}'")
    searched = plan(ours, theirs, None if ports is None else ports.candidate or ports.reference)
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

    def run(opened: State, listen: _Listener) -> Report:
        _load(listen)
        from parity.runs.pairing import Request

        request = Request(name, ours, theirs, steps, seed, stage1, forcing=forcing, prompt=prompt, rounds=rounds)
        judge = subject.by_run(request if ports is None else replace(request, ports=ports), listen.say)
        differing = subject.DifferingSettings(searched, judge)
        return differing.report(search(differing, strategy("ddmin_unless_none"), opened, listen))

    _search("settings", question, run, state, restart, as_json)


@app.command()
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
    from parity.bisect.modules import Modules
    from parity.bisect.question import inputs_by_content, settings_in_words
    from parity.bisect.search import search
    from parity.bisect.strategy import strategy
    from parity.commands.run import check_common, quieten

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

    def run(opened: State, listen: _Listener) -> Report:
        aligned = [name for name in LAYOUT if ours[name] != theirs[name]]
        if aligned:
            listen.errors.print(f"the reference's in every run: {', '.join(aligned)}")
        _load(listen)
        from parity.bisect.transplant import transplant
        from parity.runs.pairing import Request

        pair = transplant(Request(model, ours, theirs, steps, seed, stage1, prompt=prompt), step, within, listen.say)
        subject = Modules(pair.modules, pair.judge, pair.outside)
        return subject.report(search(subject, strategy("fewest"), opened, listen), pair.left_out, aligned)

    _search("modules", question, run, state, restart, as_json)


@app.command()
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
    from parity.bisect.question import golden_by_content, inputs_by_content, settings_in_words
    from parity.bisect.report import plural
    from parity.bisect.steps import search_steps
    from parity.commands.run import check_common, quieten
    from parity.golden import Golden

    ours, theirs = parse("torch", reference or []), parse("torchax", candidate or [])
    if golden is not None:
        for option, value in (("--steps", steps), ("--seed", seed), ("--reference", reference or None)):
            if value is not None:
                raise UsageError(f"{option} and --golden exclude each other: the golden has its own")
    count, number = STEPS if steps is None else steps, 0 if seed is None else seed
    check_common(steps=count, seed=number, stage1=stage1, prompt=prompt)
    recorded = Golden.open(golden) if golden is not None else None
    name = model or (recorded.provenance.model if recorded is not None else DEFAULT_MODEL)
    question = {"model": name, "inputs": inputs_by_content(stage1, prompt), "candidate": settings_in_words(theirs)}
    if recorded is not None:
        question["golden"] = golden_by_content(recorded)
    else:
        question |= {"steps": str(count), "seed": str(number), "reference": settings_in_words(ours)}
    quieten()

    def run(opened: State, listen: _Listener) -> Report:
        _load(listen)
        from parity.bisect import steps_judge as judging

        path = opened.path
        wanted = judging.Recording(path.with_name(f"{path.name}.golden"), name, ours, count, number, stage1, prompt)
        truth = recorded or judging.record_reference(wanted, restart, listen.say)
        total = judging.steps_of(truth)
        if not truth.complete:
            listen.errors.print(f"'{truth.name}' is not complete: {plural(total, 'step')} of it")
        listen.say("loading the candidate")
        carried = judging.Carried(path.with_name(f"{path.name}.latents"))
        judge = judging.StepsJudge(truth, judging.load_against(truth, name, theirs, stage1, prompt), carried)
        found = search_steps(total, judge, opened, listen, every=every, free=free)
        carried.forget()
        return found.report()

    _search("steps", question, run, state, restart, as_json)


@app.command()
def commits(
    good: Annotated[str, typer.Option(metavar="REV", help="A commit that is good.")],
    bad: Annotated[str, typer.Option(metavar="REV", help="A later one that is bad.")] = "HEAD",
    run: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Judges a checkout, as for `git bisect run`: 0 good, 125 skip, 1-127 bad."),
    ] = None,
    golden: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="Judge by this golden, what --record writes against it.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="CMD", help="Records a checkout's golden to the folder $PARITY_OUT.")
    ] = None,
    repo: Annotated[Path, typer.Option(metavar="DIR", help="Any folder of the repository.")] = Path("."),
    state: StateOption = None,
    restart: RestartOption = False,
    check_ends: Annotated[
        bool, typer.Option("--check-ends", help="Try --good and --bad first: two more probes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the first bad commit, with any command or a golden as the judge.

    Commands run by /bin/sh at the top of a temporary checkout; your working tree is not touched.
    """
    from parity.bisect.commits import checked_out, ends
    from parity.bisect.repository import Repository
    from parity.bisect.search import search
    from parity.bisect.shell import stopped_by_signals
    from parity.bisect.strategy import strategy

    judge, judged_by = _judge(run, golden, record)
    repository = Repository(repo)
    first, last = ends(repository, good, bad)
    question = {"repository": repository.name, "good": first.sha, "bad": last.sha, **judged_by}

    def find(opened: State, listen: _Listener) -> Report:
        with stopped_by_signals(), checked_out(repository, first, last, judge, opened, check_ends) as subject:
            return subject.report(search(subject, strategy("halving"), opened, listen))

    _search("commits", question, find, state, restart, as_json)


def _judge(run: str | None, golden: str | None, record: str | None) -> tuple[Judge, dict[str, str]]:
    """The judge of a commit, and what of it belongs to the question.

    Raises:
        UsageError: options that do not fit together; the golden cannot be read.
    """
    from parity.bisect.oracles import ByCommand, ByGolden
    from parity.bisect.question import golden_by_content
    from parity.golden import Golden

    if run is not None and (golden is not None or record is not None):
        raise UsageError("--run judges by an exit code, --golden with --record by a golden: give one of the two")
    if (golden is None) != (record is None):
        raise UsageError("--golden REFERENCE needs --record CMD, which writes a checkout's golden to $PARITY_OUT")
    if not (run or record or "").strip():
        raise UsageError("give --run CMD, or --golden REFERENCE with --record CMD")
    if golden is not None and record is not None:
        return ByGolden(golden, record), {"golden": golden_by_content(Golden.open(golden)), "record": record}
    return ByCommand(str(run)), {"run": str(run)}
