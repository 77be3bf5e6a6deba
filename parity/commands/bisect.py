"""`parity bisect`: what brought a difference. Each search has a state file and is resumed where it was stopped.

Exit codes: 0 found, 125 it cannot be told, 2 wrong usage. Progress goes to stderr; stdout has the answer alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from parity.bisect.report import CANNOT_BE_TOLD, FORMAT, plural
from parity.commands.parts.choices import FORCINGS, ROUNDS, one_of
from parity.commands.parts.options import (
    Generation,
    Output,
    Search,
    Sides,
    choose,
)
from parity.commands.parts.unfold import command
from parity.paths.worker.extras import check_extras, quieten, require_one_process
from parity.report.document import Facts, Listing
from parity.report.output import consoles, tell
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.bisect.report import Report
    from parity.bisect.state import State
    from parity.report.progress import Say
    from parity.runs.request import Request

app = typer.Typer(
    no_args_is_help=True, help="Find what brought a difference. An interrupted search is resumed where it was stopped."
)


class _Listener:
    """Prints progress on stderr; see `parity.bisect.search.Listener`. Attributes: say: names what is being done."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def trying(self, text: str) -> None:
        self.say(text)

    def judged(self, text: str, details: list[str]) -> None:
        for line in (text, *(f"    {line}" for line in details)):
            tell(line)


def _search(
    kind: str, question: Mapping[str, str], find: Callable[[State, _Listener], Report], kept: Search, output: Output
) -> int:
    """Open the state file, search, print the answer."""
    from parity.bisect.state import State
    from parity.report.progress import progress

    require_one_process()
    quieten()
    with State.open(kept.state, kind, question, kept.restart) as state:
        known = f"; {plural(len(state.probes), 'probe')} known from before (--restart forgets them)"
        tell(f"state: {state.path}{known if state.probes else ''}")
        errors = consoles()[1]
        with progress(errors, quiet=not errors.is_terminal) as say:
            report = find(state, _Listener(say))
    output.show(Listing(report.document(state.path), (Facts(report.facts),)))
    return report.exit_code


def _question(generation: Generation, reference: Settings, candidate: Settings) -> dict[str, str]:
    """What a run of both sides depends on."""
    from parity.bisect.question import inputs_by_content, settings_in_words

    generation.require_one_input()
    return {
        "model": generation.name,
        "steps": str(generation.steps),
        "seed": str(generation.seed),
        "inputs": inputs_by_content(generation.stage1, generation.prompt),
        "reference": settings_in_words(reference),
        "candidate": settings_in_words(candidate),
    }


def _request(generation: Generation, reference: Settings, candidate: Settings) -> Request:
    from parity.runs.request import Request

    return Request(
        model=generation.name,
        reference=reference,
        candidate=candidate,
        steps=generation.steps,
        seed=generation.seed,
        stage1=generation.stage1,
        prompt=generation.prompt,
    )


@app.command()
@command
def settings(
    *,
    generation: Generation,
    sides: Sides,
    rounds: Annotated[str, one_of(ROUNDS, "As for `parity run`.")] = "both",
    forcing: Annotated[str, one_of(FORCINGS, "As for `parity run`.")] = "none",
    kept: Search,
    output: Output,
) -> int:
    """Find the fewest settings of the candidate that make the run fail.

    The state file holds outcomes of today's code and weights: --restart after changing them.
    """
    from parity.bisect.question import ports_by_content
    from parity.bisect.search import search
    from parity.bisect.settings import DifferingSettings, by_run
    from parity.bisect.strategy import strategy
    from parity.bisect.swaps import plan

    choose("--forcing", forcing, FORCINGS)
    choose("--rounds", rounds, ROUNDS)
    quieten()
    ports, reference, candidate = sides.load(generation.model)
    generation = replace(generation, model=str(sides.reference_path)) if ports.alone else generation
    for chosen in (reference, candidate):
        chosen.require_stages(("transformer",))
    searched = plan(reference, candidate, ports.candidate or ports.reference)
    question = {**_question(generation, reference, candidate), "rounds": rounds, "forcing": forcing}
    if ports.any:
        question["ports"] = ports_by_content(ports.reference, ports.candidate)

    def find(state: State, listen: _Listener) -> Report:
        check_extras()
        request = replace(_request(generation, reference, candidate), forcing=forcing, rounds=rounds, ports=ports)
        subject = DifferingSettings(searched, by_run(request, listen.say))
        return subject.report(search(subject, strategy("ddmin_unless_none"), state, listen))

    return _search("settings", question, find, kept, output)


@app.command()
@command
def commits(
    *,
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit at which the command succeeds.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later commit at which it fails.")],
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="After --. Exit code 0: good, 1: bad, any other: skip.")
    ],
    output: Output,
) -> int:
    """Find the first bad commit with `git bisect run`.

    The command runs at the top of a temporary checkout; your own is not touched.
    """
    from parity.bisect.commits import first_bad

    found = first_bad(good, bad, words)
    first = found.candidates[0] if len(found.candidates) == 1 else None
    reasons = Counter(found.skipped.values())
    told = ", ".join(f"{count} x {why}" for why, count in reasons.items())
    skipped = f"; {plural(reasons.total(), 'commit')} skipped ({told})" * bool(reasons)
    if first is None:
        facts = [("candidate", str(commit)) for commit in found.candidates]
        facts.append(("", f"cannot be told: skipped commits hide the first bad one among these{skipped}"))
    else:
        facts = [("first bad commit", f"{first}{skipped}")]
    document = {
        "format": FORMAT,
        "bisected": "commits",
        "first_bad": None if first is None else first.sha,
        "subject": None if first is None else first.subject,
        "candidates": [commit.sha for commit in found.candidates],
        "skipped": [{"commit": sha, "why": why} for sha, why in found.skipped.items()],
    }
    output.show(Listing(document, (Facts(tuple(facts)),)))
    return 0 if first else CANNOT_BE_TOLD
