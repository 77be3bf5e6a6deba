"""The search on tangled histories, against what is known by construction: what contains a faulty commit is faulty."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from parity.bisect.commits import Judged, checked_out, ends
from parity.bisect.repository import Commit, Repository
from parity.bisect.search import Found, search
from parity.bisect.state import Probe, State
from parity.bisect.strategy import Outcome, strategy
from parity.errors import UsageError
from tests.bisect.make_history import Made, git, named, repository

pytestmark = pytest.mark.slow

SIZE = 40


class Tangle:
    """A history of 40 commits with branches and merges by lot, all of them merged in the end."""

    def __init__(self, folder: Path) -> None:
        lot = random.Random(3)
        parents: list[list[int]] = [[]]
        for i in range(1, SIZE - 1):
            parents.append(sorted({lot.randint(max(0, i - 6), i - 1) for _ in range(lot.choice([1, 2, 2]))}))
        parents.append([i for i in range(SIZE - 1) if not any(i in p for p in parents)])
        assert max(map(len, parents)) > 2
        self.inside = [{i} for i in range(SIZE)]
        for i, direct in enumerate(parents):
            self.inside[i] |= set[int]().union(*(self.inside[p] for p in direct))
        commits = [Made(f"c{i}", {}, tuple(f"c{p}" for p in direct)) for i, direct in enumerate(parents)]
        self.folder = repository(folder, commits)
        self.number = {sha: int(subject[1:]) for subject, sha in named(self.folder).items()}

    def search(self, state: Path, fault: int, skipped: frozenset[int] = frozenset()) -> Found[Commit]:
        def judge(tree: Path, log: Path) -> Judged:
            log.touch()
            here = int((tree / "number").read_text()) - 1
            outcome: Outcome = "unresolved" if here in skipped else "bad" if fault in self.inside[here] else "good"
            return Judged(outcome, "by construction")

        found = Repository(self.folder)
        good, bad = ends(found, ":/^c0$", "main")
        with State.open(state, "commits", {}) as opened, checked_out(found, good, bad, judge, opened) as subject:
            assert len(subject.order.items) == SIZE
            return search(subject, strategy("halving"), opened)


@pytest.fixture(scope="module")
def tangle(tmp_path_factory: pytest.TempPathFactory) -> Tangle:
    return Tangle(tmp_path_factory.mktemp("tangle") / "repo")


def probes_of_git(tangle: Tangle, fault: int) -> int:
    """How many commits `git bisect run` itself tries."""
    bad = [str(i + 1) for i, inside in enumerate(tangle.inside) if fault in inside]
    judge = f"case $(cat number) in {'|'.join(bad)}) exit 1;; esac"
    git(tangle.folder, "bisect", "start", "main", named(tangle.folder)["c0"])
    said = git(tangle.folder, "bisect", "run", "sh", "-c", judge)
    git(tangle.folder, "bisect", "reset")
    return said.count("running ")


def test_every_seventh_fault_is_found_as_fast_as_git_finds_it(tangle: Tangle, tmp_path: Path) -> None:
    ours = gits = 0
    for fault in range(1, SIZE, 7):
        found = tangle.search(tmp_path / str(fault), fault)
        assert [tangle.number[commit.sha] for commit in found.answer] == [fault]
        assert len({p.subject for p in found.probes}) == len(found.probes)
        ours, gits = ours + len(found.probes), gits + probes_of_git(tangle, fault)
    # In all, not one by one: of commits that tell as much git chooses others, and a graph cannot always be halved.
    assert ours <= gits + 3


def test_with_commits_that_cannot_be_judged_the_fault_is_found_or_among_the_candidates(
    tangle: Tangle, tmp_path: Path
) -> None:
    told = 0
    for fault in range(2, SIZE, 7):
        skipped = frozenset(random.Random(fault).sample(range(1, SIZE - 1), SIZE // 3))
        found = tangle.search(tmp_path / str(fault), fault, skipped)
        candidates = {tangle.number[c.sha] for c in found.answer}
        assert fault in candidates
        assert sum(c not in skipped for c in candidates) == 1, "but for one that is bad, all could not be judged"
        told += len(candidates) == 1
    assert 0 < told < len(range(2, SIZE, 7))


def test_a_state_file_that_tells_of_other_commits_is_refused(tangle: Tangle, tmp_path: Path) -> None:
    with State.open(tmp_path / "s", "commits", {}) as state:
        state.add(Probe(subject=("f" * 40,), outcome="bad", evidence="", seconds=0.0))
    with pytest.raises(UsageError, match="a probe in it is of no commit between the two"):
        tangle.search(tmp_path / "s", 5)
    assert len(git(tangle.folder, "worktree", "list").splitlines()) == 1


def test_what_a_killed_search_left_behind_is_cleaned_up(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repo", [Made("one"), Made("two")])
    code = (
        "import sys; from pathlib import Path; from parity.bisect.repository import Repository; "
        "from parity.bisect.shell import run\n"
        "with Repository(Path(sys.argv[1])).worktree('parity-bisect-other') as tree:\n"
        "    tree.checkout('HEAD'); run('echo $$ > ../pid; exec sleep 600', tree.path, Path(sys.argv[2]), {})\n"
    )
    search = subprocess.Popen([sys.executable, "-c", code, str(folder), str(tmp_path / "log")])
    try:
        left = wait_for(lambda: [t for t in worktrees(folder) if (t.parent / "running").exists()])
        pid = int(wait_for(lambda: (left[0].parent / "pid").read_text() if (left[0].parent / "pid").exists() else ""))
        with Repository(folder).worktree("parity-bisect-this"):
            assert left[0].exists(), "it is still in use"
    finally:
        search.kill()
        search.wait()
    assert left[0].exists()
    with Repository(folder).worktree("parity-bisect-this"):
        assert not left[0].parent.exists()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
    assert worktrees(folder) == []


def worktrees(folder: Path) -> list[Path]:
    listed = git(folder, "worktree", "list", "--porcelain").split("\n\n")
    return [Path(entry.split("\n")[0].partition(" ")[2]) for entry in listed if "\nlocked parity-bisect-" in entry]


T = TypeVar("T")


def wait_for(found: Callable[[], T]) -> T:
    for _ in range(1200):
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen")
