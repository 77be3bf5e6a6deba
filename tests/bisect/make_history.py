"""Repositories with a history made to measure, written in one go by `git fast-import`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Made:
    """A commit to be made.

    Attributes:
        subject: its message, distinct. files: written by it, content by name.
        parents: subjects; the commit made before it, where left out.
    """

    subject: str
    files: Mapping[str, str] = field(default_factory=dict)
    parents: tuple[str, ...] | None = None


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def repository(folder: Path, commits: Sequence[Made]) -> Path:
    """A repository with these commits, the last one checked out on `main`."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    marks: dict[str, int] = {}
    stream = []
    for mark, made in enumerate(commits, start=1):
        parents = made.parents if made.parents is not None else (commits[mark - 2].subject,) * (mark > 1)
        stream += ["commit refs/heads/main", f"mark :{mark}", f"committer n <e> {10**9 + mark} +0000"]
        stream += [f"data {len(made.subject.encode())}", made.subject]
        stream += [f"{word} :{marks[p]}" for word, p in zip(["from", *["merge"] * 15], parents, strict=False)]
        for name, content in {"number": str(mark), **made.files}.items():
            stream += [f"M 100644 inline {name}", f"data {len(content.encode())}", content]
        marks[made.subject] = mark
    whole = "\n".join(stream) + "\n"
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input=whole.encode(), check=True)
    git(folder, "checkout", "--quiet", "main")
    return folder


def line(folder: Path, size: int, files: Mapping[int, Mapping[str, str]]) -> Path:
    """`commit 0` to `commit size` in a line; `files` by number."""
    return repository(folder, [Made(f"commit {i}", files.get(i, {})) for i in range(size + 1)])


def named(folder: Path) -> dict[str, str]:
    """The full name of each commit by its subject."""
    lines = git(folder, "log", "--all", "--format=%H %s").splitlines()
    return dict(reversed(entry.split(" ", 1)) for entry in lines)
