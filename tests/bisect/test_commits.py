"""`parity bisect GOOD BAD -- COMMAND` on real repositories: what it finds and refuses, and what it leaves: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from parity import cli

Bisect = Callable[..., tuple[int, str, str]]
HERE = "n=$(cat number); test $n -lt 5"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def line(folder: Path, size: int) -> Path:
    """A repository with `commit 0` to `commit SIZE` on `main`, each with its number in the file `number`."""
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    stream = ""
    for i in range(size + 1):
        stream += (
            f"commit refs/heads/main\nmark :{i + 1}\ncommitter n <e> {10**9 + i} +0000\ndata <<END\ncommit {i}\nEND\n"
        )
        stream += f"from :{i}\n" * (i > 0) + f"M 100644 inline number\ndata <<END\n{i}\nEND\n"
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input=stream.encode(), check=True)
    git(folder, "checkout", "--quiet", "main")
    return folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worktrees go where the test can see what is left of them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bisect:
    """`bisect(repo, GOOD, BAD, "--", ...)`: exit code, stdout and stderr."""

    def call(repo: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(repo)
        monkeypatch.setattr("sys.argv", ["parity", "bisect", *arguments])
        capfd.readouterr()
        code = cli.main()
        return code, *capfd.readouterr()

    return call


def left_over(repo: Path) -> list[str]:
    """What a search must not leave: worktrees, its own references, temporary files."""
    worktrees = git(repo, "worktree", "list").splitlines()[1:]
    return worktrees + git(repo, "for-each-ref", "refs/bisect").splitlines() + os.listdir(repo.parent / "tmp")


@pytest.mark.parametrize(
    ("size", "command", "said"),
    [
        (8, HERE, "first bad commit: {5}"),
        (64, HERE, "first bad commit: {5}"),
        (1, "test $(cat number) = 0", "first bad commit: {1}"),
        (8, f"{HERE} && exit 0; test $n != 6 || exit 2; exit 1", "first bad commit: {5}"),
        (8, f"test $(cat number) != 4 || exit 2; {HERE}", "{4}, {5}"),
        (8, f"test $(cat number) != 2 || kill -9 $$; {HERE}", "first bad commit: {5}"),
        (8, f"test $(cat number) != 3 || no-such-command; {HERE}", "first bad commit: {5}"),
        # A command that changes its checkout: the next commit is judged as committed.
        (8, f"test ! -e left || exit 1; touch left; {HERE}; code=$?; echo 9 > number; exit $code", "commit: {5}"),
        (8, f"{HERE}; code=$?; git checkout --quiet HEAD^; exit $code", "first bad commit: {5}"),
        (8, f"{HERE}; code=$?; echo 9 > number; git commit --quiet -am 9; exit $code", "first bad commit: {5}"),
        (8, f"case $(cat number) in [3-7]) exit 125;; esac; {HERE}", "{3}, {4}, {5}, {6}, {7}, {8}"),
    ],
)
def test_what_is_found(size: int, command: str, said: str, tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", size)
    shas = git(repo, "log", "--reverse", "--format=%H").split()
    code, out, _ = bisect(repo, "main~" + str(size), "main", "--", "sh", "-c", command)
    named = [f"{sha[:12]} 'commit {i}'" for i, sha in enumerate(shas)]
    if said.startswith("{"):
        candidates = [line.removeprefix("candidate: ") for line in out.splitlines()[:-1]]
        assert (code, ", ".join(candidates)) == (125, said.format(*named))
        assert "skipped commits hide the first bad one" in out.splitlines()[-1]
    else:
        assert (code, said.format(*named) in out.splitlines()[-1]) == (0, True)
    assert left_over(repo) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [("exit 2", "exit code 2"), ("kill -9 $$", "signal 9"), ("x-x", "exit code 127"), ("exit 255", "exit code 255")],
)
def test_skipped_commits_are_counted_and_convict_nobody(how: str, why: str, tmp_path: Path, bisect: Bisect) -> None:
    """Exit code 2 is parity's for a wrong option: `git bisect run` alone would call such a commit bad."""
    repo = line(tmp_path / "repo", 8)
    words = ("--", "sh", "-c", f"case $(cat number) in 4) {how}; exit;; esac; test $(cat number) -lt 7")
    code, out, _ = bisect(repo, "main~8", "main", *words)
    assert (code, out.splitlines()[-1].endswith(f"'commit 7'; 1 commit skipped (1 x {why})")) == (0, True)
    document = json.loads(bisect(repo, "main~8", "main", "--format", "json", *words)[1])
    assert document["first_bad"] == git(repo, "rev-parse", "main~1").strip()
    assert document["skipped"] == [{"commit": git(repo, "rev-parse", "main~4").strip(), "why": why}]


def test_the_users_checkout_is_not_touched(tmp_path: Path, bisect: Bisect, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = line(tmp_path / "repo", 8)
    (repo / "number").write_text("uncommitted")
    (repo / "staged").write_text("staged")
    git(repo, "add", "staged")
    (repo / "untracked").write_text("untracked")
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)

    def users() -> list[object]:
        files = {p.name: p.read_text() for p in repo.iterdir() if p.is_file()}
        return [files, *(git(repo, *words) for words in (["status", "--porcelain"], ["reflog"], ["branch", "-a"]))]

    before = users()
    with monkeypatch.context() as hooks:  # as inside a hook
        hooks.setenv("GIT_DIR", "/nowhere")
        hooks.setenv("GIT_INDEX_FILE", "/nowhere")
        code, out, err = bisect(repo, "main~8", "main", "--", "sh", "-c", HERE)
    assert (code, "'commit 5'" in out) == (0, True), err
    assert users() == before
    assert not (tmp_path / "hooked").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["v9", "main", "--", "true"], "GOOD: there is no commit 'v9'"),
        (["main~1", "main^{tree}", "--", "true"], "BAD: there is no commit 'main^{tree}'"),
        (["--", "--output=x", "main", "true"], "GOOD: there is no commit '--output=x'"),
        (["main", "main~0", "--", "true"], "are the same commit"),
        (["main", "main~1", "--", "true"], "BAD is an ancestor of GOOD: exchange them"),
        (["orphan", "main", "--", "true"], "`git merge-base` finds their common ancestor"),
        (["main~2", "main", "--", "false"], "'commit 1' is not good: the command ended with exit code 1, expected 0"),
        (["main~2", "main", "--", "true"], "'commit 3' is not bad: the command ended with exit code 0, expected 1"),
        (["main~2", "main", "--", "no-such-command"], "'commit 1' is not good: the command ended with exit code 127"),
        (["main~2", "main", "--", "sh", "-c", "exit $(cat number)"], "'commit 1' is not good: the command ended with"),
        (["main~3", "main", "--", "sh", "-c", "exit $(cat number)"], "'commit 3' is not bad: the command ended with"),
        (["main~2", "main"], "give two commits and a command"),
        (["main~2", "main", "--format", "junit", "--", "true"], "'junit' is not one of 'json', 'markdown', 'text'"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments: list[str], why: str, tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 3)
    git(repo, "tag", "orphan", git(repo, "commit-tree", "HEAD^{tree}", "-m", "unrelated").strip())
    code, out, err = bisect(repo, *arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert left_over(repo) == []


def test_outside_a_repository(tmp_path: Path, bisect: Bisect) -> None:
    code, _, err = bisect(tmp_path, "main~2", "main", "--", "true")
    assert (code, "not a git repository" in err) == (2, True)


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGTERM, ""), (signal.SIGINT, "sleep 0.5; touch {}/cleaned; exit")]
)
def test_an_interrupted_search_leaves_nothing(number: signal.Signals, ends: str, tmp_path: Path) -> None:
    """Also not the command's children, one of which ignores SIGTERM, and one of which takes its time to end; within
    `git bisect run`, at commit 4 of 8."""
    repo = line(tmp_path / "repo", 8)
    child = f"sh -c 'trap \"{ends.format(tmp_path)}\" TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done'"
    words = ["main~8", "main", "--", "sh", "-c", f"test $(cat number) != 4 || {child}; {HERE}"]
    parity = subprocess.Popen(
        [sys.executable, "-m", "parity", "bisect", *words], cwd=repo, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(left_over(repo)) > 1
    parity.send_signal(number)
    _, err = parity.communicate(timeout=60)
    assert parity.returncode == 128 + number
    assert err.splitlines()[-1] == f"parity: {'interrupted' if number == signal.SIGINT else 'terminated'}"
    assert left_over(repo) == []
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()
    assert (tmp_path / "cleaned").exists() == bool(ends)
