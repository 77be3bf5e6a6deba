"""`parity bisect commits`: the first bad commit of a repository, with any command or a golden as the judge."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parity.commands.bisect_common import (
    FORMAT,
    RestartOption,
    StateOption,
    default_state,
    plural,
    say_state,
    word,
)
from parity.commands.options import JsonOption
from parity.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from parity.bisect.commits import Found, Oracle
    from parity.bisect.ddmin import Outcome
    from parity.bisect.repository import Commit
    from parity.report.progress import Say

CANNOT_BE_TOLD = 125
TAIL_LINES, TAIL_BYTES = 10, 8192


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
    from parity.bisect.commits import bisect_commits, ends
    from parity.bisect.repository import Repository
    from parity.bisect.state import State
    from parity.report.console import make_consoles
    from parity.report.progress import progress

    oracle, question = _oracle(run, golden, record)
    repository = Repository(repo)
    first, last = ends(repository, good, bad)
    question = {"repository": repository.name, "good": first.sha, "bad": last.sha, **question}
    console, errors = make_consoles()
    with State.open(state or default_state("commits", question), "commits", question, restart) as opened:
        say_state(errors, opened.path, len(opened.probes))
        with progress(errors, quiet=not errors.is_terminal) as say:
            found = bisect_commits(repository, first, last, oracle, opened, _Told(errors, say), check_ends)
        path = opened.path
    if as_json:
        print(json.dumps(document(found, path), indent=1))
    else:
        console.print(text(found), soft_wrap=True)
    raise typer.Exit(0 if found.first_bad else CANNOT_BE_TOLD)


def _oracle(run: str | None, golden: str | None, record: str | None) -> tuple[Oracle, dict[str, str]]:
    """The judge, and what of it belongs to the question.

    Raises:
        UsageError: options that do not fit together; the golden cannot be read.
    """
    from parity.bisect.oracles import ByCommand, ByGolden

    if run is not None and (golden is not None or record is not None):
        raise UsageError("--run judges by an exit code, --golden with --record by a golden: give one of the two")
    if (golden is None) != (record is None):
        raise UsageError("--golden REFERENCE needs --record CMD, which writes a checkout's golden to $PARITY_OUT")
    if not (run or record or "").strip():
        raise UsageError("nothing judges a commit: give --run CMD, or --golden REFERENCE --record CMD")
    if golden is not None and record is not None:
        from parity.golden import Golden

        parts = "".join(part.sha256 for part in Golden.open(golden).manifest.parts)
        content = hashlib.sha256(parts.encode()).hexdigest()[:16]
        return ByGolden(golden, record), {"golden": content, "record": record}
    assert run is not None
    return ByCommand(run), {"run": run}


class _Told:
    """Says what happens on stderr; see `parity.bisect.commits.Told`."""

    def __init__(self, errors: Console, say: Say) -> None:
        self._errors, self._say = errors, say

    def probing(self, commit: Commit) -> None:
        self._say(f"commit {commit}")

    def judged(self, commit: Commit, outcome: Outcome, evidence: str, log: Path, left: str) -> None:
        self._errors.print(f"commit {commit}: {word(outcome)} ({evidence}); {left}", soft_wrap=True)
        if outcome == "bad":
            for line in tail(log):
                self._errors.print(f"    {line}", soft_wrap=True)


def tail(log: Path) -> list[str]:
    """The last lines of a log, without control characters."""
    with log.open("rb") as opened:
        opened.seek(max(0, os.path.getsize(log) - TAIL_BYTES))
        lines = opened.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    return ["".join(char if char.isprintable() else " " for char in line) for line in lines]


def document(found: Found, state: Path) -> dict[str, Any]:
    """What `--json` prints: commits by their full names; lists of commits oldest first, probes in order."""
    return {
        "format": FORMAT,
        "bisected": "commits",
        "first_bad": found.first_bad and found.first_bad.sha,
        "subject": found.first_bad and found.first_bad.subject,
        "candidates": [commit.sha for commit in found.candidates],
        "searched": found.searched,
        "probes": [
            {"commit": p.subject[0], "outcome": word(p.outcome), "evidence": p.evidence, "seconds": p.seconds}
            for p in found.probes
        ],
        "good": [commit.sha for commit in found.good],
        "bad": [commit.sha for commit in found.bad],
        "skipped": [commit.sha for commit in found.skipped],
        "state": str(state),
    }


def text(found: Found) -> str:
    """The answer in words: what was seen, sorted, and the first bad commit last, where it is still on the screen."""
    lines = []
    for name, held in (("good", found.good), ("bad", found.bad), ("skipped", found.skipped)):
        lines += [f"{name}:", *(f"  {commit}" for commit in held)] if held else []
    probes = f"{plural(len(found.probes), 'probe')} of {plural(found.searched, 'commit')}"
    if found.first_bad is not None:
        return "\n".join([*lines, f"first bad commit: {found.first_bad} ({probes})"])
    lines.append(f"cannot be told ({probes}): only skipped commits are left; the first bad one is one of")
    return "\n".join([*lines, *(f"  {commit}" for commit in found.candidates)])
