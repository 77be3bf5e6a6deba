"""Which commit of a repository brought a difference, with any command as the judge.

How. Halving on the graph of commits, in git's own order (`git rev-list --bisect-all`): a good commit clears all that
it contains, a bad one blames itself or something it contains. `git bisect run` itself is not used, since its log is in
the worktree, which a machine that goes away takes with it; it has neither evidence nor seconds, and the first probe
already records a verdict of a command that is not there at all. Here 126 and 127 count once the good end is good.

Cost. ceil(log2 n) probes of n commits on a line, about as many on a graph; more where commits cannot be judged. The
two ends are believed, unless they are asked to be checked: that adds two probes.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parity.bisect.report import CANNOT_BE_TOLD, Report, by_outcome, listing, plural
from parity.bisect.repository import Commit, Repository, Worktree
from parity.bisect.search import Answer, Found, Subject
from parity.bisect.state import Probe, State
from parity.bisect.strategy import Order, Outcome
from parity.errors import ParityError, UsageError

TAIL_LINES, TAIL_BYTES = 10, 8192


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge concludes about one commit.

    Attributes:
        outcome: good, bad or unresolved. evidence: one line that says why.
        doubtful: whether the question may be at fault, not the commit: the command is not there, say.
    """

    outcome: Outcome
    evidence: str
    doubtful: bool = False


class Judge(Protocol):
    """Judges what is checked out in a folder."""

    def __call__(self, tree: Path, log: Path) -> Judged:
        """Judge `tree`; what is printed meanwhile goes to the file `log`.

        Raises:
            UnjudgedError: the search must stop here.
        """


def ends(repository: Repository, good: str, bad: str) -> tuple[Commit, Commit]:
    """The two ends of a search.

    Raises:
        UsageError: an unknown revision, or the bad one does not contain the good one.
    """
    old, new = repository.commit(good, "--good"), repository.commit(bad, "--bad")
    if old == new:
        raise UsageError(f"--good and --bad are the same commit, {old}")
    if not repository.is_ancestor(old, new):
        hint = "they seem to be exchanged" if repository.is_ancestor(new, old) else "`git merge-base` has their fork"
        raise UsageError(f"--good {old} is not an ancestor of --bad {new}: {hint}")
    return old, new


@dataclass(frozen=True)
class Graph(Order[Commit]):
    """Commits, the good end first and the bad one last; what contains a bad one is bad.

    Attributes:
        repository: of the commits.
    """

    repository: Repository | None = None

    def suspects(self, goods: Collection[Commit], bads: Collection[Commit]) -> tuple[Commit, ...]:
        assert self.repository is not None
        *_, smallest = bads  # each is contained in the one before
        by_sha = {commit.sha: commit for commit in self.items}
        return tuple(by_sha[sha] for sha in self.repository.by_use(smallest.sha, [good.sha for good in goods]))


class Commits(Subject[Commit]):
    """The commits between two, each judged in a temporary checkout."""

    noun, phrase = "commit", "commit {}"

    def __init__(self, order: Graph, judge: Judge, tree: Worktree, logs: Path, checked: bool) -> None:
        """Args:
        order: the commits. logs: folder for what judging prints. checked: whether the two ends are tried first.
        """
        self.order, self.checked = order, checked
        self.presumed = {order.items[:1]: "good", order.items[-1:]: "bad"}
        self._judge, self._tree, self._logs = judge, tree, logs
        self._by_sha = {commit.sha: commit for commit in order.items}

    def key(self, items: tuple[Commit, ...]) -> tuple[str, ...]:
        return tuple(commit.sha for commit in items)

    def words(self, key: tuple[str, ...]) -> str:
        return str(self._by_sha[key[0]])

    def probe(self, items: tuple[Commit, ...]) -> Answer[Commit]:
        (commit,) = items
        self._logs.mkdir(parents=True, exist_ok=True)
        self._tree.checkout(commit.sha)
        judged = self._judge(self._tree.path, self._log(commit.sha))
        # As git does: a command that is not even there at the good commit would make every commit bad.
        return Answer(judged.outcome, judged.evidence, self.order.items[:1] if judged.doubtful else ())

    def refusal(self, items: tuple[Commit, ...], outcome: Outcome, evidence: str) -> ParityError:
        return UsageError(
            f"--{self.presumed[items]} {items[0]} is {outcome}: {evidence}; a checkout holds committed files alone, so "
            f"a script that is not committed needs its full path; the log is {self._log(items[0].sha)}"
        )

    def progress(self, left: int) -> str:
        probes = plural(math.ceil(math.log2(left)), "probe")
        return f"{left} of {len(self.order.items) - 1} left, about {probes}" if left > 1 else "found"

    def details(self, probe: Probe) -> list[str]:
        return tail(self._log(probe.subject[0])) if probe.outcome == "bad" else []

    def _log(self, sha: str) -> Path:
        return self._logs / f"{sha[:12]}.log"

    def report(self, found: Found[Commit]) -> Report:
        """The first bad commit, or the commits that may be it, oldest first."""
        first = found.answer[0] if len(found.answer) == 1 else None
        age = {commit.sha: i for i, commit in enumerate(self.order.items)}
        oldest_first = sorted(found.probes, key=lambda p: age[p.subject[0]])
        searched = len(self.order.items) - 1
        probes = f"({plural(len(found.probes), 'probe')} of {plural(searched, 'commit')})"
        answer = [("first bad commit", f"{first} {probes}")]
        if first is None:
            answer = [("", f"cannot be told {probes}: only skipped commits are left; the first bad one is one of")]
            answer += [("candidate", str(commit)) for commit in found.answer]
        return Report(
            kind="commits",
            answer={
                "first_bad": None if first is None else first.sha,
                "subject": None if first is None else first.subject,
                "candidates": [commit.sha for commit in found.answer],
                "searched": searched,
            },
            probes=tuple(({"commit": p.subject[0]}, p) for p in found.probes),
            sorted_out=by_outcome(oldest_first, lambda p: p.subject[0]),
            facts=(*listing(oldest_first, self.words), *answer),
            exit_code=0 if first else CANNOT_BE_TOLD,
        )


@contextlib.contextmanager
def checked_out(
    repository: Repository, good: Commit, bad: Commit, judge: Judge, state: State, checked: bool = False
) -> Iterator[Commits]:
    """The commits from `good` to `bad` as `ends` returns them, with a worktree that is removed in the end.

    Raises:
        UsageError: the state file has other commits.
    """
    order = Graph((good, *repository.between(good, bad)), believed=True, repository=repository)
    if {p.subject for p in state.probes} - {(commit.sha,) for commit in order.items}:
        raise UsageError(f"{state.path}: a probe in it is of no commit between the two; see --restart")
    mark = "parity-bisect-" + hashlib.sha256(str(state.path).encode()).hexdigest()[:16]
    with repository.worktree(mark) as tree:
        yield Commits(order, judge, tree, state.path.with_name(state.path.name + ".logs"), checked)


def tail(log: Path) -> list[str]:
    """The last lines of a log."""
    with log.open("rb") as opened:
        opened.seek(max(0, os.path.getsize(log) - TAIL_BYTES))
        return opened.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
