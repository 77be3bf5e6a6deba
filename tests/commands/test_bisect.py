"""`parity bisect commits` on real repositories: few probes, killed and resumed, the user's working tree left alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from tests.bisect.make_history import Made, git, line, named, repository
from tests.support.made import pair

pytestmark = pytest.mark.slow

FAULT = {"broken": "yes"}
WHOLE = "test ! -e broken"
Bisect = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State files and worktrees go where the test can see what is left of them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bisect:
    """`bisect(repo, "--run", CMD, ...)`: exit code, stdout, stderr of `parity bisect commits`, in this process."""

    def call(repo: Path, *arguments: object) -> tuple[int, str, str]:
        given = [] if "--good" in arguments else ["--good", ":/commit 0$"]
        monkeypatch.setattr("sys.argv", ["parity", *command(repo, *given, *arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, out, err

    return call


def command(repo: Path, *arguments: object) -> list[str]:
    return ["bisect", "commits", "--repo", str(repo), *map(str, arguments)]


def subjects(repo: Path, shas: list[str]) -> list[str]:
    by_sha = {sha: subject for subject, sha in named(repo).items()}
    return [by_sha[sha] for sha in shas]


def found(repo: Path, result: tuple[int, str, str]) -> tuple[str, dict[str, Any]]:
    """The subject of the first bad commit, and the document."""
    code, out, err = result
    assert code == 0, err
    document = json.loads(out)
    return subjects(repo, [document["first_bad"]])[0], document


def test_64_commits_in_at_most_7_probes_killed_and_resumed_with_a_dirty_tree(tmp_path: Path) -> None:
    repo = line(tmp_path / "repo", 64, {41: FAULT})
    (repo / "number").write_text("uncommitted")
    (repo / "staged").write_text("staged")
    git(repo, "add", "staged")
    (repo / "untracked").write_text("untracked")

    def users() -> list[object]:
        files = {p.name: p.read_text() for p in repo.iterdir() if p.is_file()}
        return [
            files,
            *(git(repo, *words.split()) for words in ("status --porcelain", "reflog", "branch -a", "stash list")),
        ]

    before = users()
    runs = tmp_path / "runs"
    # The 4th probe kills parity itself. `left` shows that nothing but the commit's files is there.
    judge = (
        f"git rev-parse HEAD >> {runs}; test $(wc -l < {runs}) != 4 || kill -9 $PPID; "
        f"test ! -e left || exit 124; touch left; echo looking; {WHOLE}"
    )
    given = ("--good", "HEAD~64", "--bad", "main", "--run", judge, "--state", tmp_path / "state.json", "--json")
    call = [sys.executable, "-m", "parity.cli", *command(repo, *given)]
    environment = {**os.environ, "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere"}  # as inside a hook

    killed = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == ""
    known = json.loads((tmp_path / "state.json").read_text())["probes"]
    assert len(known) == 3
    assert len(git(repo, "worktree", "list").splitlines()) == 2

    resumed = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    subject, document = found(repo, (resumed.returncode, resumed.stdout, resumed.stderr))
    assert subject == "commit 41"
    assert len(document["probes"]) <= 7
    assert [p["commit"] for p in document["probes"]][:3] == [p["subject"][0] for p in known]
    probed = runs.read_text().splitlines()
    assert len(probed) == len(document["probes"]) + 1  # but for the one it was killed in, none was repeated
    assert len(set(probed)) == len(document["probes"])
    assert f"state: {tmp_path}/state.json; 3 probes known from before" in resumed.stderr
    assert "commit 41': bad (exit code 1); found\n    looking\n" in resumed.stderr
    good, bad = subjects(repo, document["good"]), subjects(repo, document["bad"])
    assert [int(s.split()[1]) < 41 for s in good + bad] == [True] * len(good) + [False] * len(bad)
    assert good == sorted(good, key=lambda s: int(s.split()[1]))

    assert users() == before
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert os.listdir(tmp_path / "tmp") == []
    assert sorted(p.name for p in tmp_path.glob("*state*")) == ["state.json", "state.json.logs"]


@pytest.mark.parametrize("first", [1, 2, 32, 33, 63, 64])
def test_wherever_the_fault_is(first: int, tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 64, {first: FAULT})
    subject, document = found(repo, bisect(repo, "--run", WHOLE, "--json"))
    assert subject == f"commit {first}"
    assert len(document["probes"]) <= 6
    again = found(repo, bisect(repo, "--run", "exit 1", "--json"))[1]  # another question, another state
    assert again["state"] != document["state"]
    assert subjects(repo, [again["first_bad"]]) == ["commit 1"]


def test_progress_and_the_sorted_answer(tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 4, {2: {**FAULT, "log": "\x1b[31mred"}})
    code, out, err = bisect(repo, "--run", f"test ! -e log || cat log; {WHOLE}")
    sha = {subject: sha[:12] for subject, sha in named(repo).items()}
    assert code == 0
    assert out.splitlines() == [
        f"good: {sha['commit 1']} 'commit 1'",
        f"bad: {sha['commit 2']} 'commit 2'",
        f"first bad commit: {sha['commit 2']} 'commit 2' (2 probes of 4 commits)",
    ]
    assert err.splitlines()[1:] == [
        f"commit {sha['commit 2']} 'commit 2': bad (exit code 1); 2 of 4 left, about 1 probe",
        r"    \x1b[31mred",
        f"commit {sha['commit 1']} 'commit 1': good (exit code 0); found",
    ]
    code, same, err = bisect(repo, "--run", f"test ! -e log || cat log; {WHOLE}")
    assert (code, same) == (0, out)
    assert err.splitlines()[0].endswith("; 2 probes known from before (--restart forgets them)")
    assert len(err.splitlines()) == 1
    assert len(bisect(repo, "--run", f"test ! -e log || cat log; {WHOLE}", "--restart")[2].splitlines()) == 4


@pytest.mark.parametrize("fault", ["side 3", "main 5", "merge", "after 2"])
def test_merged_branches(fault: str, tmp_path: Path, bisect: Bisect) -> None:
    """A fault on a merged branch is found there; one of the merge itself is the merge's; a line would miss both."""
    names = [
        "commit 0",
        *(f"main {i}" for i in range(8)),
        *(f"side {i}" for i in range(8)),
        "merge",
        "after 0",
        "after 1",
    ]
    names += ["after 2", "after 3"]
    parents = {"side 0": ("commit 0",), "merge": ("main 7", "side 7")}
    # fast-import takes a merge's files from its first parent: the branch's fault has to be named again.
    faulty = {fault, "merge"} if fault.startswith("side") else {fault}
    repo = repository(tmp_path / "repo", [Made(n, FAULT if n in faulty else {}, parents.get(n)) for n in names])
    subject, document = found(repo, bisect(repo, "--run", WHOLE, "--json"))
    assert subject == fault
    assert document["searched"] == 21
    assert len(document["probes"]) <= math.ceil(math.log2(21)) + 1


def test_commits_that_cannot_be_judged_are_gone_round(tmp_path: Path, bisect: Bisect) -> None:
    files = {30: {"unbuildable": "1"}, 36: {"unbuildable": "0"}, 41: FAULT}
    repo = line(tmp_path / "repo", 64, files)
    judge = f"test $(cat unbuildable || echo 0) = 0 || exit 125; {WHOLE}"
    subject, document = found(repo, bisect(repo, "--run", judge, "--json"))
    assert subject == "commit 41"
    assert "commit 32" in subjects(repo, document["skipped"])


def test_where_only_skipped_ones_are_left_it_cannot_be_told(tmp_path: Path, bisect: Bisect) -> None:
    files = {30: {"unbuildable": "1"}, 33: FAULT, 36: {"unbuildable": "0"}}
    repo = line(tmp_path / "repo", 64, files)
    judge = f"test $(cat unbuildable || echo 0) = 0 || exit 125; {WHOLE}"
    code, out, _ = bisect(repo, "--run", judge, "--json")
    document = json.loads(out)
    assert (code, document["first_bad"]) == (125, None)
    assert subjects(repo, document["candidates"]) == [f"commit {i}" for i in range(30, 37)]
    assert subjects(repo, document["skipped"]) == [f"commit {i}" for i in range(30, 36)]
    code, out, _ = bisect(repo, "--run", judge)
    assert code == 125
    assert "cannot be told" in out
    assert out.splitlines()[-1].endswith("'commit 36'")


def test_a_command_that_is_killed_stops_the_search_and_convicts_nobody(tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 8, {5: FAULT})
    judge = f"test -e {tmp_path}/memory || {{ touch {tmp_path}/memory; kill -9 $$; }}; {WHOLE}"
    code, out, err = bisect(repo, "--run", judge)
    assert (code, out) == (125, "")
    assert "ended with signal 9, which is no judgement" in err
    assert found(repo, bisect(repo, "--run", judge, "--json"))[0] == "commit 5"
    code, _, err = bisect(repo, "--run", "exit 128")
    assert code == 125
    assert "ended with exit code 128" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_command_and_removes_the_worktree(number: signal.Signals, tmp_path: Path) -> None:
    """The command's children are ended with it, also one that is deaf to SIGTERM."""
    repo = line(tmp_path / "repo", 8, {5: FAULT})
    judge = f"(trap '' TERM; echo $BASHPID; exec sleep 60) > {tmp_path}/deaf & echo $$ > {tmp_path}/judge; sleep 60"
    given = command(repo, "--good", ":/commit 0$", "--run", f'exec bash -c "{judge}"'.replace("$", r"\$"))
    parity = subprocess.Popen([sys.executable, "-m", "parity.cli", *given], stderr=subprocess.PIPE, text=True)
    pids = [int(written(tmp_path / name)) for name in ("judge", "deaf")]
    assert len(git(repo, "worktree", "list").splitlines()) == 2
    parity.send_signal(number)
    _, err = parity.communicate(timeout=60)
    assert parity.returncode == 128 + number
    assert err.splitlines()[-1] == f"parity: {'interrupted' if number == signal.SIGINT else 'terminated'}"
    for pid in pids:
        assert ended(pid)
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert os.listdir(tmp_path / "tmp") == []


def written(file: Path) -> str:
    """What another process writes to a file, once it is there."""
    for _ in range(600):
        if file.is_file() and file.read_text().endswith("\n"):
            return file.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{file} was not written")


def ended(pid: int) -> bool:
    """Whether a process is no more, or waits to be reaped by whoever adopted it."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100):
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.05)
    return False


def test_a_command_that_is_nowhere_is_the_users_mistake_and_one_that_is_gone_is_a_fault(
    tmp_path: Path, bisect: Bisect
) -> None:
    repo = line(tmp_path / "repo", 8, {0: {"tool": "exit 0\n"}, 5: FAULT})
    code, out, err = bisect(repo, "--run", "no-such-command-anywhere", "--state", tmp_path / "s")
    assert (code, out) == (2, "")
    assert "'commit 0' is bad: exit code 127" in err
    assert "a checkout holds committed files alone" in err
    assert json.loads((tmp_path / "s").read_text())["probes"] == []
    judge = "test ! -e broken && sh ./tool || exit 127"
    subject, document = found(repo, bisect(repo, "--run", judge, "--json"))
    assert subject == "commit 5"
    probed = [p["commit"] for p in document["probes"]]
    assert len(probed) == len(set(probed))
    assert subjects(repo, probed).count("commit 0") == 1  # tried once, though more than one commit gave 127
    assert len(document["bad"]) > 1


def test_ends_are_checked_where_asked(tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 8, {5: FAULT})
    subject, document = found(repo, bisect(repo, "--run", WHOLE, "--check-ends", "--json"))
    assert subject == "commit 5"
    assert subjects(repo, [p["commit"] for p in document["probes"]])[:2] == ["commit 0", "commit 8"]
    assert len(bisect(repo, "--run", WHOLE, "--check-ends")[2].splitlines()) == 1  # known, all of it
    known = found(repo, bisect(repo, "--run", f"true; {WHOLE}", "--json"))[1]["probes"]
    subject, document = found(repo, bisect(repo, "--run", f"true; {WHOLE}", "--check-ends", "--json"))
    assert subject == "commit 5"
    assert document["probes"][:-2] == known
    for judge, said in (("exit 1", "--good"), ("exit 0", "--bad")):
        code, _, err = bisect(repo, "--run", judge, "--check-ends")
        assert code == 2
        assert err.splitlines()[-1].startswith(f"parity: {said} ")


def test_a_golden_judges(tmp_path: Path, bisect: Bisect) -> None:
    reference, same = pair(tmp_path / "same")
    _, apart = pair(tmp_path / "apart", fault=1e4)
    files = {0: {"path": same}, 3: {"path": "/nowhere"}, 4: {"path": same}, 6: {"path": apart}}
    repo = line(tmp_path / "repo", 8, files)
    judge = ("--golden", reference, "--record", 'cp -r "$(cat path)" "$PARITY_OUT"')
    subject, document = found(repo, bisect(repo, *judge, "--json"))
    assert subject == "commit 6"
    evidence = {subjects(repo, [p["commit"]])[0]: p["evidence"] for p in document["probes"]}
    assert evidence["commit 6"].startswith("fail: first divergence: blocks.1 output (step 1, cond)")
    assert evidence["commit 4"].startswith("pass: ")
    assert os.listdir(tmp_path / "tmp") == []
    code, _, err = bisect(repo, "--golden", reference, "--record", "true")
    assert code == 2  # not eight skipped commits
    assert "$PARITY_OUT: there is no golden here" in err


def test_wrong_usage_is_a_sentence(tmp_path: Path, bisect: Bisect) -> None:
    repo = line(tmp_path / "repo", 3, {})
    (tmp_path / "empty").mkdir()
    git(repo, "branch", "fork", "HEAD~1")
    git(repo, "commit-tree", "HEAD^{tree}", "-m", "unrelated")
    orphan = git(repo, "commit-tree", "HEAD^{tree}", "-m", "unrelated").strip()
    run = ("--run", "true")
    wrong: list[tuple[Path, tuple[object, ...], str]] = [
        (repo, ("--good", "v9", *run), "--good: 'v9' names no commit of"),
        (repo, ("--good", "HEAD^{tree}", *run), "names no commit of"),
        (repo, ("--good", "--output=x", *run), "--good: '--output=x' names no commit of"),
        (repo, ("--good", "HEAD", *run), "are the same commit"),
        (repo, ("--good", "HEAD", "--bad", "fork", *run), "they seem to be exchanged"),
        (repo, ("--good", orphan, *run), "is not an ancestor of --bad"),
        (repo, (), "give --run CMD, or --golden REFERENCE with --record CMD"),
        (repo, ("--run", " "), "give --run CMD, or --golden REFERENCE with --record CMD"),
        (repo, (*run, "--golden", "g", "--record", "r"), "give one of the two"),
        (repo, ("--golden", "g"), "needs --record"),
        (repo, ("--record", "r"), "needs --record"),
        (repo, ("--golden", "g", "--record", "r"), "there is no golden here"),
        (tmp_path / "empty", run, "git says: fatal: not a git repository"),
        (tmp_path / "nowhere", run, "there is no folder"),
        (repo, (*run, "--state", tmp_path / "empty"), "not a regular file"),
    ]
    for folder, given, why in wrong:
        code, out, err = bisect(folder, *given)
        assert (code, out) == (2, ""), given
        assert err.startswith("parity: "), given
        assert why in err, given
    state = ("--state", tmp_path / "state")
    assert bisect(repo, *state, "--run", "true")[0] == 0
    code, _, err = bisect(repo, *state, "--run", "false")
    assert code == 2
    assert "this state file belongs to another question: run is 'true' there and 'false' here" in err
    (tmp_path / "state").write_text("{}")
    code, _, err = bisect(repo, *state, "--run", "true")
    assert code == 2
    assert "not a state file of a bisection, or damaged" in err
