"""A user's git repository, looked at and checked out elsewhere; their working tree, index and branches are not touched.

Problem. A bisection moves through hundreds of commits while the user has uncommitted work.

How. Every commit is checked out in a temporary worktree outside the repository, without its hooks, and cleaned of
everything that git does not track, so that an outcome depends on the commit alone. The worktree is locked with a mark
of who uses it, and its user holds a lock on a file beside it: one that a killed process left behind is found by its
mark, is not held, and is removed, and so is a command that still runs in it.

Cost. One checkout of the whole tree to begin with; then what changes between commits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.bisect.shell import end_orphan
from parity.errors import UsageError

_LOCAL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE",
)  # fmt: skip
"""Variables that would lead git, and a command run in the worktree, to the repository they were started from."""

_SCRATCH, _HELD = "parity-bisect-", "held"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its full name and the first line of its message."""

    sha: str
    subject: str

    def __str__(self) -> str:
        return f"{self.sha[:12]} '{self.subject}'"


def _is_held(file: Path) -> bool:
    """Whether a process holds the lock; the kernel gives it up with the process, however that ends."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def environment(**more: str) -> dict[str, str]:
    """This process's environment for a command that runs in a worktree."""
    return {**{name: value for name, value in os.environ.items() if name not in _LOCAL}, **more}


class Repository:
    """A repository by any folder in it.

    Raises:
        UsageError: on making it, if there is none or no git.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise UsageError("bisecting commits needs git, and there is none on PATH: install it")
        if not folder.is_dir():
            raise UsageError(f"--repo: there is no folder '{folder}'")
        self.folder = folder
        self.name = self._git("rev-parse", "--path-format=absolute", "--git-common-dir").strip()

    def commit(self, revision: str, option: str) -> Commit:
        """The commit that a revision names.

        Raises:
            UsageError: it names none; `option` says where it was given.
        """
        # In two steps: to `:/text` a suffix would belong to the text.
        found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        if not found.returncode:
            found = self._run("rev-parse", "--verify", "--quiet", f"{found.stdout.strip()}^{{commit}}")
        if found.returncode:
            raise UsageError(f"{option}: '{revision}' names no commit of {self.name}; `git log` lists them")
        return self._log("--no-walk", found.stdout.strip())[0]

    def is_ancestor(self, old: Commit, new: Commit) -> bool:
        """Whether `new` contains `old`."""
        done = self._run("merge-base", "--is-ancestor", old.sha, new.sha)
        if done.returncode not in (0, 1):
            raise self._failed(done)
        return done.returncode == 0

    def between(self, good: Commit, bad: Commit) -> tuple[Commit, ...]:
        """What `bad` contains and `good` does not, oldest first, merged branches side by side."""
        return self._log("--topo-order", "--reverse", bad.sha, f"^{good.sha}")

    def by_use(self, bad: str, goods: Sequence[str]) -> tuple[str, ...]:
        """The commits that may be the first bad one, `bad` last; whose test tells most comes first.

        git's own weights: for each commit the smaller of how many others it contains and how many it does not, so
        that branches and merges are halved as a line is.
        """
        listed = self._git("rev-list", "--bisect-all", bad, *(f"^{good}" for good in goods))
        found = [line.split(maxsplit=1)[0] for line in listed.splitlines()]
        return (*(sha for sha in found if sha != bad), bad)

    @contextlib.contextmanager
    def worktree(self, mark: str) -> Iterator[Worktree]:
        """A worktree of its own, removed at the end; ones that killed searches left behind go first.

        Args:
            mark: who uses it, one word.
        """
        for left in self._left():
            end_orphan(left.parent)
            self._remove(left)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        tree = scratch / "tree"
        held = os.open(scratch / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            self._git("worktree", "add", "--detach", "--no-checkout", "--lock", "--reason", mark, str(tree))
            yield Worktree(self, tree)
        finally:
            os.close(held)
            self._remove(tree)

    def _left(self) -> list[Path]:
        """The worktrees of searches that were killed."""
        found = []
        for entry in self._git("worktree", "list", "--porcelain").split("\n\n"):
            fields = dict(line.partition(" ")[::2] for line in entry.splitlines())
            tree = Path(fields.get("worktree", ""))
            if fields.get("locked", "").startswith(_SCRATCH) and tree.parent.name.startswith(_SCRATCH):
                found += [tree] * (not _is_held(tree.parent / _HELD))
        return found

    def _remove(self, tree: Path) -> None:
        if tree.parent.name.startswith(_SCRATCH):  # made by `worktree`, with nothing else in it
            shutil.rmtree(tree.parent, ignore_errors=True)
        self._run("worktree", "remove", "--force", "--force", str(tree))  # twice: it is locked

    def _log(self, *arguments: str) -> tuple[Commit, ...]:
        lines = self._git("-c", "log.showSignature=false", "log", "--format=%H %s", *arguments).splitlines()
        return tuple(Commit(sha, _printable(subject)) for sha, _, subject in (line.partition(" ") for line in lines))

    def _git(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            raise self._failed(done)
        return done.stdout

    def _run(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        # Hooks of the user's (post-checkout) are for their working tree.
        command = ["git", "-C", str(folder or self.folder), "-c", "core.hooksPath=/dev/null", *arguments]
        return subprocess.run(
            command,
            env=environment(GIT_OPTIONAL_LOCKS="0"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )

    def _failed(self, done: subprocess.CompletedProcess[str]) -> UsageError:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        hint = "; --repo names the repository's folder" if "not a git repository" in lines[0] else ""
        return UsageError(f"{self.folder}: git says: {_printable(lines[0])}{hint}")


@dataclass(frozen=True, slots=True)
class Worktree:
    """A temporary checkout. Attributes: path: its folder."""

    repository: Repository
    path: Path

    def checkout(self, sha: str) -> None:
        """Make the folder what a commit holds, and nothing else.

        Raises:
            UsageError: git cannot: no space, a filter that fails, files that cannot be removed.
        """
        for arguments in (("checkout", "--quiet", "--force", "--detach", sha), ("clean", "-ffdxq")):
            done = self.repository._run(*arguments, folder=self.path)
            if done.returncode:
                raise self.repository._failed(done)


def _printable(text: str) -> str:
    """Control characters of a message of somebody else's must not reach the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
