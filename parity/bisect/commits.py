"""Which commit of a repository brought a difference, with any command as the judge.

How. `git bisect`'s search on the graph of commits: a good commit acquits all that it contains, a bad one convicts
itself or something it contains; of what is left the commit that halves it best is tried, where that one cannot be
judged the next best. Every finished probe is in the state file before the next begins, and everything known is read
from there: a killed search goes on with the probe it was killed in.

Cost. ceil(log2 n) probes of n commits on a line, about as many on a graph; more where commits cannot be judged. The
two ends are believed, unless they are asked to be checked: that adds two probes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parity.bisect.ddmin import Outcome
from parity.bisect.repository import Commit, Repository, Worktree
from parity.bisect.state import Probe, State
from parity.errors import UsageError


@dataclass(frozen=True, slots=True)
class Judged:
    """What an oracle says of one commit.

    Attributes:
        outcome: the answer. evidence: one line that says why.
        doubtful: whether the question may be at fault, not the commit: the command is not there, say.
    """

    outcome: Outcome
    evidence: str
    doubtful: bool = False


class Oracle(Protocol):
    """Judges what is checked out in a folder."""

    def __call__(self, tree: Path, log: Path) -> Judged:
        """Judge `tree`; what is printed meanwhile goes to the file `log`.

        Raises:
            UnjudgedError: the search must stop here.
        """
        ...


class Told(Protocol):
    """Hears how the search comes along."""

    def probing(self, commit: Commit) -> None: ...

    def judged(self, commit: Commit, outcome: Outcome, evidence: str, log: Path, left: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The answer.

    Attributes:
        first_bad: None where it cannot be told.
        candidates: the commits that may be it, oldest first; only `first_bad` where it is known.
        good, bad, skipped: what was probed, oldest first. probes: all of them, in order.
        searched: commits there were to search.
    """

    first_bad: Commit | None
    candidates: tuple[Commit, ...]
    good: tuple[Commit, ...]
    bad: tuple[Commit, ...]
    skipped: tuple[Commit, ...]
    probes: tuple[Probe, ...]
    searched: int


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


def bisect_commits(
    repository: Repository,
    good: Commit,
    bad: Commit,
    oracle: Oracle,
    state: State,
    told: Told,
    check_ends: bool = False,
) -> Found:
    """Find the first bad commit.

    Args:
        good, bad: as `ends` gives them. state: open; answers what was probed before.

    Raises:
        UsageError: an end is not what it was said to be, or the command cannot be run.
        UnjudgedError: the oracle stops the search; it can be resumed.
    """
    mark = "parity-bisect-" + hashlib.sha256(str(state.path).encode()).hexdigest()[:16]
    with repository.worktree(mark) as tree:
        search = _Search(repository, good, bad, state)
        probing = _Probing(search, oracle, tree, told)
        if check_ends:
            probing.judge(good, "good")
            probing.judge(bad, "bad")
        while (commit := search.next()) is not None:
            probing.judge(commit)
    return search.found()


class _Search:
    """What is known, derived from the state file alone."""

    def __init__(self, repository: Repository, good: Commit, bad: Commit, state: State) -> None:
        self.repository, self.good, self.bad, self.state = repository, good, bad, state
        self.commits = repository.between(good, bad)
        self._by_sha = {c.sha: c for c in (good, *self.commits)}
        for probe in state.probes:
            if len(probe.subject) != 1 or probe.subject[0] not in self._by_sha:
                raise UsageError(f"{state.path}: a probe in it is of no commit between the two; see --restart")

    def probed(self, outcome: Outcome) -> list[str]:
        return [p.subject[0] for p in self.state.probes if p.outcome == outcome]

    def left(self) -> tuple[str, ...]:
        """The commits that may be the first bad one, the best to try first and a bad one last."""
        # Each bad one is contained in the one before, but for the end, which may be checked at any time.
        bad = [self.bad.sha, *(sha for sha in self.probed("bad") if sha != self.bad.sha)]
        return self.repository.by_use(bad[-1], [self.good.sha, *self.probed("good")])

    def next(self) -> Commit | None:
        """What to try; None where nothing is left to be tried."""
        probed = {p.subject[0] for p in self.state.probes}
        return next((self._by_sha[sha] for sha in self.left()[:-1] if sha not in probed), None)

    def progress(self) -> str:
        left = len(self.left())
        steps = math.ceil(math.log2(left))
        return f"{left} of {len(self.commits)} left, about {steps} probe{'s' * (steps != 1)}" if left > 1 else "found"

    def found(self) -> Found:
        left = self._in_order(self.left())
        return Found(
            first_bad=left[0] if len(left) == 1 else None,
            candidates=left,
            good=self._in_order(self.probed("good")),
            bad=self._in_order(self.probed("bad")),
            skipped=self._in_order(self.probed("unresolved")),
            probes=tuple(self.state.probes),
            searched=len(self.commits),
        )

    def _in_order(self, shas: Sequence[str]) -> tuple[Commit, ...]:
        wanted = set(shas)
        return tuple(commit for sha, commit in self._by_sha.items() if sha in wanted)


class _Probing:
    """Checks commits out and asks the oracle, each once."""

    def __init__(self, search: _Search, oracle: Oracle, tree: Worktree, told: Told) -> None:
        self.search, self.state, self.oracle, self.tree, self.told = search, search.state, oracle, tree, told
        self.logs = self.state.path.with_name(self.state.path.name + ".logs")

    def log(self, commit: Commit) -> Path:
        return self.logs / f"{commit.sha[:12]}.log"

    def judge(self, commit: Commit, said: Outcome | None = None) -> None:
        """Judge a commit, unless that was done before, and keep the outcome.

        Raises:
            UsageError: it is not what was said; then nothing is kept.
        """
        if self.state.outcome(commit.sha) is not None:
            return
        begun = time.monotonic()
        self.told.probing(commit)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.tree.checkout(commit.sha)
        judged = self.oracle(self.tree.path, self.log(commit))
        seconds = round(time.monotonic() - begun, 3)
        if said is not None and judged.outcome != said:
            raise UsageError(
                f"--{said} {commit} is {judged.outcome}: {judged.evidence}; a checkout holds committed files alone, "
                f"so a script that is not committed needs its full path; the log is {self.log(commit)}"
            )
        if judged.doubtful and said is None:
            # As git does: a command that is not even there at the good commit would convict every commit.
            self.judge(self.search.good, "good")
        self.state.add(Probe((commit.sha,), judged.outcome, judged.evidence, seconds))
        self.told.judged(commit, judged.outcome, judged.evidence, self.log(commit), self.search.progress())
