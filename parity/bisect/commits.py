"""The first bad commit of a repository, found by `git bisect run` in a temporary worktree.

The user's checkout, index and branches are not touched. The command counts as good with exit code 0 and bad with 1;
with any other code, or killed by a signal, its commit is skipped. `git bisect run` alone takes 2 to 127 for bad, and so
would convict a commit for a wrong option.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.errors import InconclusiveError, UsageError

JUDGE = """\
unset $(git rev-parse --local-env-vars)
commit=$(git rev-parse HEAD)
( {command} )
code=$?
git -c core.hooksPath=/dev/null checkout --quiet --force --detach $commit && git clean --quiet -ffdx
case $code in 0|1) exit $code;; esac
echo $commit $code >> {skipped}
exit 125
"""
"""Runs the command at a commit, restores the checkout, which git judges by its HEAD, and maps the exit code for git."""

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for an interrupted command and what it started."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full hash and the first line of its message."""

    sha: str
    subject: str

    def __str__(self) -> str:
        return f"{self.sha[:12]} '{self.subject}'"


def first_bad(good: str, bad: str, command: Sequence[str]) -> tuple[list[Commit], dict[str, str]]:
    """Search between two revisions of the repository in the current folder.

    Args:
        command: its words; runs at the top of each checkout.

    Returns:
        The first bad commit; several, oldest first, if skipped commits hide it. The hash of each skipped commit -> why.

    Raises:
        UsageError: no repository, an unknown revision, or an end at which the command does not say what it should.
        InconclusiveError: git could not finish the search.
    """
    if shutil.which("git") is None:
        raise UsageError("git is not on PATH. Install it")
    _git("rev-parse", "--git-dir")
    old, new = _commit("GOOD", good), _commit("BAD", bad)
    if old == new:
        raise UsageError(f"GOOD and BAD are the same commit: {old}")
    common = _git("merge-base", old.sha, new.sha, check=False).strip()
    if common != old.sha:
        turned = "BAD is an ancestor of GOOD: exchange them"
        advice = turned if common == new.sha else "`git merge-base` finds their common ancestor"
        raise UsageError(f"GOOD {old} is not an ancestor of BAD {new}. {advice}")
    scratch = Path(tempfile.mkdtemp(prefix="parity-bisect-"))
    tree, judge, skipped = scratch / "tree", scratch / "judge", scratch / "skipped"
    judge.write_text(JUDGE.format(command=shlex.join(command), skipped=shlex.quote(str(skipped))))
    try:
        _git("worktree", "add", "--quiet", "--detach", str(tree), old.sha)
        for name, commit, expected in (("GOOD", old, 0), ("BAD", new, 1)):
            _git("checkout", "--quiet", "--detach", commit.sha, folder=tree)
            if (code := _run(["sh", str(judge)], tree)) != expected:
                why = _skipped(skipped).get(commit.sha, f"exit code {code}")
                raise UsageError(
                    f"{name} {commit} is not {name.lower()}: the command ended with {why}, expected {expected}. "
                    "A checkout holds committed files only"
                )
        # Checks out the commit to try first; the search is over if there is none between the two.
        _git("bisect", "start", new.sha, old.sha, folder=tree)
        if not (found := _candidates(tree)):
            _run([*GIT, "bisect", "run", "sh", str(judge)], tree)
            print(file=sys.stderr)  # git does not end its last line
            found = _candidates(tree)
        if not found:
            raise InconclusiveError("git bisect stopped before it found a commit; its messages are above")
        return [_commit(sha, sha) for sha in found], _skipped(skipped)
    finally:
        _git("worktree", "remove", "--force", "--force", str(tree), check=False)  # twice: it may still be locked
        shutil.rmtree(scratch, ignore_errors=True)


GIT = ("git", "-c", "core.hooksPath=/dev/null")
"""The user's hooks are for their own checkout."""


def _git(*arguments: str, folder: Path | None = None, check: bool = True) -> str:
    """What git prints.

    Raises:
        UsageError: it fails, with `check`.
    """
    words, environment = [*GIT, *arguments], _environment()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    if check and done.returncode:
        raise UsageError(f"git {arguments[0]}: {(done.stderr.strip().splitlines() or ['failed'])[0]}")
    return done.stdout


def _environment() -> dict[str, str]:
    """This process's environment without what would lead git to another repository, as within a hook."""
    local = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True).stdout.split()
    return {name: value for name, value in os.environ.items() if name not in local}


def _commit(end: str, revision: str) -> Commit:
    sha = _git("rev-parse", "--verify", "--quiet", "--end-of-options", revision, check=False).strip()
    shown = _git("log", "--no-walk", "--no-show-signature", "--format=%H %s", sha, check=False) if sha else ""
    if not shown:
        raise UsageError(f"{end}: there is no commit '{revision}'. `git log` lists them")
    sha, _, subject = shown.rstrip("\n").partition(" ")
    return Commit(sha, subject)


def _candidates(tree: Path) -> list[str]:
    """The first bad commit by git's own log, or the commits that may be it, oldest first; none during a search."""
    log = _git("bisect", "log", folder=tree)
    return re.findall(r"^# (?:possible )?first bad commit: \[(\w+)\]", log, re.MULTILINE)[::-1]


def _skipped(notes: Path) -> dict[str, str]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    codes = {sha: int(code) for sha, code in map(str.split, lines)}
    killed = signal.valid_signals()
    return {sha: f"signal {code - 128}" if code - 128 in killed else f"exit code {code}" for sha, code in codes.items()}


def _run(words: Sequence[str], folder: Path) -> int:
    """Run with both outputs on stderr, in a process group of its own, which is ended if parity is interrupted."""
    process = subprocess.Popen(
        words, cwd=folder, env=_environment(), stdin=subprocess.DEVNULL, stdout=2, process_group=0
    )
    try:
        return process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or zombies alone
            os.killpg(process.pid, signal.SIGTERM)
            end = time.monotonic() + GRACE
            while time.monotonic() < end:
                time.sleep(0.05)
                process.poll()
                os.killpg(process.pid, 0)
            os.killpg(process.pid, signal.SIGKILL)  # what the command started may ignore SIGTERM
        process.wait()
        raise
