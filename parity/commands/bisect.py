"""`parity bisect`: what brought a difference. Each search has a state file and is resumed where it was stopped.

Exit codes: 0 found, 125 it cannot be told, 2 wrong usage. Progress goes to stderr; stdout has the answer alone.

Cost. Starting: numpy and typer; the searches import what they need when they run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.commands.options import Chosen, Generation, Output, Prompt, Search, Sides, Stage1, choose
from parity.commands.run import FORCINGS, ROUNDS
from parity.commands.unfold import command
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.paths.extras import check_extras, quieten, require_extras
from parity.report.document import Facts, Listing
from parity.report.output import tell
from parity.settings import LAYOUT, Settings

if TYPE_CHECKING:
    from parity.bisect.commits import Judge
    from parity.bisect.report import Report
    from parity.bisect.state import State
    from parity.report.progress import Say

STEPS = 50
"""Steps of a run for `steps` without --steps."""

app = typer.Typer(
    no_args_is_help=True, help="Find what brought a difference. An interrupted search is resumed where it was stopped."
)


class _Listener:
    """Prints progress on stderr; see `parity.bisect.search.Listener`.

    Attributes:
        say: names what is being done.
    """

    def __init__(self, say: Say) -> None:
        self.say = say

    def trying(self, text: str) -> None:
        self.say(text)

    def judged(self, text: str, details: list[str]) -> None:
        for line in (text, *(f"    {line}" for line in details)):
            tell(line)


Run = Callable[["State", _Listener], "Report"]


def _search(kind: str, question: Mapping[str, str], run: Run, where: Search, output: Output) -> int:
    """Open the state file, search, print the answer; returns the exit code."""
    from parity.bisect.report import plural
    from parity.bisect.state import State

    quieten()
    with State.open(where.state, kind, question, where.restart) as opened:
        known = len(opened.probes)
        kept = f"; {plural(known, 'probe')} known from before (--restart forgets them)" if known else ""
        tell(f"state: {opened.path}{kept}")
        with output.working("opening the state", quiet=not sys.stderr.isatty()) as say:
            report = run(opened, _Listener(say))
    output.show(Listing(report.document(opened.path), (Facts(tuple(("", line) for line in report.lines)),)))
    return report.exit_code


def _load(listen: _Listener) -> None:
    """Check that the models' packages are there; they take seconds to import."""
    listen.say("loading torch and diffusers")
    require_extras()


def _question(
    generation: Generation, model: str, reference: Settings, candidate: Settings, **more: str
) -> dict[str, str]:
    """What an outcome depends on, whatever is searched."""
    from parity.bisect.question import inputs_by_content, settings_in_words

    return {
        "model": model,
        "steps": str(generation.steps),
        "seed": str(generation.seed),
        **more,
        "inputs": inputs_by_content(generation.stage1, generation.prompt),
        "reference": settings_in_words(reference),
        "candidate": settings_in_words(candidate),
    }


@app.command()
@command
def settings(
    generation: Generation,
    sides: Sides,
    where: Search,
    output: Output,
    rounds: Annotated[str, typer.Option(help="As for `parity run`: both, structure or precision.")] = "both",
    forcing: Annotated[str, typer.Option(help="As for `parity run`: none, step or module.")] = "none",
) -> int:
    """Find the fewest settings of the candidate that make the run fail.

    The state file holds outcomes of today's code and weights: --restart after changing them.
    """
    from parity.bisect import settings as subject
    from parity.bisect.question import ports_by_content
    from parity.bisect.search import search
    from parity.bisect.strategy import strategy
    from parity.bisect.swaps import plan

    generation.require_one_input()
    choose("--forcing", forcing, FORCINGS)
    choose("--rounds", rounds, ROUNDS)
    quieten()
    ports, reference, candidate = sides.load(generation.model)
    for chosen in (reference, candidate):
        chosen.require_stages(("transformer",))
    searched = plan(reference, candidate, ports.candidate or ports.reference)
    model = str(sides.reference_path) if ports.alone else generation.name
    question = _question(generation, model, reference, candidate, rounds=rounds, forcing=forcing)
    if ports.any:
        question["ports"] = ports_by_content(ports.reference, ports.candidate)

    def run(opened: State, listen: _Listener) -> Report:
        check_extras()
        from parity.runs.request import Request

        request = Request(
            model=model,
            reference=reference,
            candidate=candidate,
            steps=generation.steps,
            seed=generation.seed,
            stage1=generation.stage1,
            prompt=generation.prompt,
            forcing=forcing,
            rounds=rounds,
            ports=ports,
        )
        differing = subject.DifferingSettings(searched, subject.by_run(request, listen.say))
        return differing.report(search(differing, strategy("ddmin_unless_none"), opened, listen))

    return _search("settings", question, run, where, output)


@app.command()
@command
def modules(
    generation: Generation,
    sides: Chosen,
    where: Search,
    output: Output,
    step: Annotated[int, typer.Option(help="Step to probe, from the reference's latents.")] = 0,
    within: Annotated[
        str, typer.Option(metavar="MODULE", help="Search this module's children, not the top module's.")
    ] = "",
) -> int:
    """Find the fewest modules of the candidate that have to be replaced for noise_pred to be within its floor.

    The state file holds outcomes of today's code and weights: --restart after changing them.
    """
    from parity.bisect.modules import Modules
    from parity.bisect.search import search
    from parity.bisect.strategy import strategy

    reference, candidate = sides.settings()
    generation.require_one_input()
    if not 0 <= step < generation.steps:
        raise UsageError(f"--step must be from 0 to {generation.steps - 1} (--steps {generation.steps}), found {step}")

    def run(opened: State, listen: _Listener) -> Report:
        aligned = [name for name in LAYOUT if reference[name] != candidate[name]]
        if aligned:
            tell(f"the reference's in every run: {', '.join(aligned)}")
        _load(listen)
        from parity.bisect.transplant import transplant
        from parity.runs.request import Request

        request = Request(
            model=generation.name,
            reference=reference,
            candidate=candidate,
            steps=generation.steps,
            seed=generation.seed,
            stage1=generation.stage1,
            prompt=generation.prompt,
        )
        pair = transplant(request, step, within, listen.say)
        subject = Modules(pair.modules, pair.judge, pair.outside)
        return subject.report(search(subject, strategy("fewest"), opened, listen), pair.left_out, aligned)

    question = _question(generation, generation.name, reference, candidate, step=str(step), within=within)
    return _search("modules", question, run, where, output)


@app.command()
@command
def steps(
    sides: Chosen,
    where: Search,
    output: Output,
    golden: Annotated[
        str | None,
        typer.Option(metavar="GOLDEN", help="Golden of the reference, with floors; default: one is recorded."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Built-in model, folder in diffusers layout, or hub name; else the golden's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help=f"Number of denoising steps; default: the golden's, or {STEPS}.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the initial noise; default: the golden's, or 0.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every step from the reference's latents.")] = False,
    free: Annotated[bool, typer.Option("--free/--no-free", help="Walk the free run too.")] = True,
    stage1: Stage1 = None,
    prompt: Prompt = None,
) -> int:
    """Find the first step whose noise_pred is beyond its floor on the reference's own latents.

    Then the first step of the free run that is. The state file holds outcomes of today's code and weights: --restart
    after changing them.
    """
    from parity.bisect.question import golden_by_content
    from parity.bisect.report import plural
    from parity.bisect.steps import search_steps
    from parity.golden import Golden

    reference, candidate = sides.settings()
    if golden is not None:
        for option, value in (("--steps", steps), ("--seed", seed), ("--reference", sides.reference or None)):
            if value is not None:
                raise UsageError(f"{option} and --golden exclude each other: the golden has its own")
    recorded = Golden.open(golden) if golden is not None else None
    generation = Generation(
        model=model or (recorded.provenance.model if recorded is not None else DEFAULT_MODEL),
        steps=STEPS if steps is None else steps,
        seed=seed or 0,
        stage1=stage1,
        prompt=prompt,
    )
    generation.require_one_input()
    question = _question(generation, generation.name, reference, candidate)
    if recorded is not None:
        question = {name: question[name] for name in ("model", "inputs", "candidate")}
        question["golden"] = golden_by_content(recorded)

    def run(opened: State, listen: _Listener) -> Report:
        _load(listen)
        from parity.bisect import steps_judge as judging

        path, name = opened.path, generation.name
        wanted = judging.Recording(
            path.with_name(f"{path.name}.golden"), name, reference, generation.steps, generation.seed, stage1, prompt
        )
        truth = recorded or judging.record_reference(wanted, where.restart, listen.say)
        total = judging.steps_of(truth)
        if not truth.complete:
            tell(f"'{truth.name}' is not complete: {plural(total, 'step')} of it")
        listen.say("loading the candidate")
        carried = judging.Carried(path.with_name(f"{path.name}.latents"))
        judge = judging.StepsJudge(truth, judging.load_against(truth, name, candidate, stage1, prompt), carried)
        found = search_steps(total, judge, opened, listen, every=every, free=free)
        carried.forget()
        return found.report()

    return _search("steps", question, run, where, output)


@app.command()
@command
def commits(
    where: Search,
    output: Output,
    good: Annotated[str, typer.Option(metavar="REV", help="A commit that is good.")],
    bad: Annotated[str, typer.Option(metavar="REV", help="A later one that is bad.")] = "HEAD",
    run: Annotated[
        str | None,
        typer.Option(
            metavar="CMD", help="Command to judge a checkout, as for `git bisect run`: 0 good, 125 skip, 1-127 bad."
        ),
    ] = None,
    golden: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="Golden that judges what --record writes.")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Command to record a checkout's golden to the folder $PARITY_OUT."),
    ] = None,
    repo: Annotated[Path, typer.Option(metavar="DIR", help="Any folder of the repository.")] = Path("."),
    check_ends: Annotated[
        bool, typer.Option("--check-ends", help="Try --good and --bad first: two more probes.")
    ] = False,
) -> int:
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

    return _search("commits", question, find, where, output)


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
