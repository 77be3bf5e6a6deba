"""`parity bisect`: the commit or the settings that make a comparison fail.

Exit codes: 0 found, 125 skipped commits hide the first bad one, 2 wrong usage. Progress goes to stderr; stdout has the
answer alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from parity.commands.options import Generation, Listed, Sides, command
from parity.errors import UsageError
from parity.paths.worker.extras import check_extras, quieten, require_one_process
from parity.report.document import Facts, Listing, counted
from parity.report.output import console, progress, tell
from parity.runs.request import Checks, Isolation

CANNOT_BE_TOLD = 125


@command
def bisect(
    good: Annotated[str | None, typer.Argument(metavar="GOOD", help="A commit at which the command succeeds.")] = None,
    bad: Annotated[str | None, typer.Argument(metavar="BAD", help="A later commit at which it fails.")] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Exit code 0: good, 1: bad, any other: skip.", show_default=False),
    ] = None,
    *,
    settings: Annotated[
        bool, typer.Option("--settings", help="Find the fewest settings of the candidate that make the run fail.")
    ] = False,
    generation: Generation,
    sides: Sides,
    checks: Annotated[Checks, typer.Option(help="As for `parity run`.")] = "both",
    isolate: Annotated[Isolation, typer.Option(help="As for `parity run`.")] = "none",
    output: Listed,
) -> int:
    """Find the commit, or the settings, that make a comparison fail.

    A commit is found by `git bisect run`: the command runs at the top of a temporary checkout; your own is not touched.
    The other options are those of the run with --settings.
    """
    if settings and good is not None:
        raise UsageError("--settings searches the settings of a run: it takes no commits")
    if settings:
        return _settings(generation, sides, checks, isolate, output)
    if good is None or bad is None or not words:
        raise UsageError("give two commits and a command, parity bisect GOOD BAD -- COMMAND; or --settings")
    if (generation, sides, checks, isolate) != (Generation(), Sides(), "both", "none"):
        raise UsageError("the options of a run are for --settings: between commits the COMMAND has its own")
    return _commits(good, bad, words, output)


def _settings(generation: Generation, sides: Sides, checks: Checks, isolate: Isolation, output: Listed) -> int:
    """The fewest settings of the candidate that make the run fail."""
    from parity.bisect.settings import OUTCOMES, Probe, by_run, fewest, plan

    require_one_process()
    quieten()
    request = generation.request(sides, isolate=isolate, checks=checks)
    searched = plan(request.reference, request.candidate, request.ports.candidate or request.ports.reference)
    check_extras()

    def heard(probe: Probe) -> None:
        tell(f"with {probe.words}: {probe.outcome} ({probe.evidence})")

    errors = console(stderr=True)
    with progress(errors, quiet=not errors.is_terminal) as say:
        culprits, probes = fewest(searched, by_run(request, say), heard)
    by_outcome = sorted(probes, key=lambda probe: OUTCOMES.index(probe.outcome))
    facts: list[tuple[str, str]] = [(probe.outcome, probe.words) for probe in by_outcome]
    if searched.kept:
        facts.append(("the candidate's own in every run", ", ".join(searched.kept)))
    changes = "; ".join(f"{swap.setting}: {swap.without} -> {swap.candidate}" for swap in culprits)
    answer = f"the run fails{' together' * (len(culprits) > 1)} with {changes}"
    facts.append(("", answer if culprits else "no setting is at fault: the run fails without any of them"))
    document = {
        "bisected": "settings",
        "culprits": [asdict(swap) for swap in culprits],
        "searched": [asdict(swap) for swap in searched.swaps],
        "kept": searched.kept,
        "probes": [asdict(probe) for probe in probes],
    }
    output.show(Listing(document, (Facts(tuple(facts)),)))
    return 0


def _commits(good: str, bad: str, words: list[str], output: Listed) -> int:
    """The first bad commit."""
    from parity.bisect.commits import first_bad

    candidates, passed_over = first_bad(good, bad, words)
    first = candidates[0] if len(candidates) == 1 else None
    reasons = Counter(passed_over.values())
    told = ", ".join(f"{count} x {why}" for why, count in reasons.items())
    skipped = f"; {counted(reasons.total(), 'commit')} skipped ({told})" * bool(reasons)
    if first is None:
        facts = [("candidate", str(commit)) for commit in candidates]
        facts.append(("", f"cannot be told: skipped commits hide the first bad one among these{skipped}"))
    else:
        facts = [("first bad commit", f"{first}{skipped}")]
    document = {
        "bisected": "commits",
        "first_bad": None if first is None else first.sha,
        "subject": None if first is None else first.subject,
        "candidates": [commit.sha for commit in candidates],
        "skipped": [{"commit": sha, "why": why} for sha, why in passed_over.items()],
    }
    output.show(Listing(document, (Facts(tuple(facts)),)))
    return 0 if first else CANNOT_BE_TOLD
