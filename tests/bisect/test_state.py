"""The state file: what was finished outlives a kill; what is foreign, damaged or of another question is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.bisect.state import Probe, State
from parity.errors import UsageError

QUESTION = {"run": "make test", "good": "a" * 40}
PROBES = [
    Probe(subject=("c1",), outcome="good", evidence="exit code 0", seconds=1.25),
    Probe(subject=("x", "y\n\x1b"), outcome="unresolved", evidence="no\udcff", seconds=0.0),
]

OLDER = """{
 "kind": "parity bisect",
 "format": 1,
 "what": "commits",
 "question": {
  "run": "make test",
  "good": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
 },
 "probes": [
  {"subject": ["c1"], "outcome": "good", "evidence": "exit code 0", "seconds": 1.25},
  {"subject": ["x", "y\\n\\u001b"], "outcome": "unresolved", "evidence": "no\\udcff", "seconds": 0.0}
 ]
}
"""
"""As 7841fe6 wrote it."""


def written(path: Path) -> Path:
    with State.open(path, "commits", QUESTION) as state:
        for probe in PROBES:
            state.add(probe)
    return path


def test_what_was_added_is_there_again_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = written(tmp_path / "deep" / "state.json")
    assert os.listdir(path.parent) == ["state.json"]
    with State.open(path, "commits", QUESTION) as state:
        assert state.probes == PROBES
        assert [state.probe(s) for s in (("c1",), ("x", "y\n\x1b"), ("x",))] == [*PROBES, None]
    with State.open(path, "commits", {"another": "question"}, restart=True) as state:
        assert state.probes == []


def test_a_file_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(OLDER)
    with State.open(tmp_path / "s", "commits", QUESTION) as state:
        assert state.probes == PROBES
    assert (tmp_path / "s").read_text() == written(tmp_path / "now").read_text() == OLDER


@pytest.mark.parametrize(
    ("what", "changed", "why"),
    [
        ("commits", {"run": "make"}, "another question: run is 'make test' there and 'make' here"),
        ("commits", {"more": "x"}, "more is None there and 'x' here"),
        ("settings", {}, "it bisects 'commits', not settings"),
    ],
)
def test_another_question_is_refused_word_by_word(what: str, changed: dict[str, str], why: str, tmp_path: Path) -> None:
    path = written(tmp_path / "s")
    with pytest.raises(UsageError, match=why), State.open(path, what, {**QUESTION, **changed}):
        pass


def document(**changes: object) -> str:
    whole = {"kind": "parity bisect", "format": 1, "what": "commits", "question": QUESTION, "probes": []}
    return json.dumps({**whole, **changes})


def probe(**changes: object) -> str:
    return document(probes=[{"subject": ["a"], "outcome": "bad", "evidence": "", "seconds": 1.0, **changes}])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        ("\x80\x04pickle", "not JSON"),
        (document()[:-5], "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "its kind is None"),
        ('{"format": 1, "verdict": "pass"}', "its kind is None"),
        (document(format=2), "reads 1"),
        (document(format="1"), "should be an integer"),
        (document(extra=1), "does not know"),
        (document(question=[]), "the question should be an object"),
        (document(question={"run": 1}), "should be a string"),
        (document(probes={}), "should be a list"),
        (document(probes=[1]), "probe 0 should be an object"),
        (probe(outcome="fine"), "not one of good, bad, unresolved"),
        (probe(outcome=[]), "not one of good, bad, unresolved"),
        (probe(subject="a"), "should be a list"),
        (probe(subject=[1]), "should be a string"),
        (probe(subject=["a" * 5000]), "more than 4096"),
        (probe(seconds="soon"), "should be a number"),
        (probe(evidence=None), "should be a string"),
    ],
)
def test_what_is_no_state_file_is_refused_and_left_as_it_is(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(UsageError) as refused, State.open(path, "commits", QUESTION):
        pass
    assert str(refused.value).startswith(f"{path}: not a state file of a bisection, or damaged: ")
    assert why in str(refused.value)
    assert path.read_text(encoding="latin-1") == content
    assert os.listdir(tmp_path) == ["state.json"]  # no lock is left either


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "not a regular file"), ("", "not a regular file"), ("pipe/state", "File exists")):
        with pytest.raises(UsageError, match=why), State.open(tmp_path / name, "commits", QUESTION):
            pass


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    other = """
import sys
from pathlib import Path
from parity.bisect.state import State
with State.open(Path(sys.argv[1]), "commits", {}):
    pass
"""
    with State.open(path, "commits", QUESTION):
        done = subprocess.run([sys.executable, "-c", other, str(path)], capture_output=True, text=True, check=False)
        assert "another process uses this state file" in done.stderr
    with State.open(path, "commits", QUESTION):
        pass


KILLED = """
import os, signal, sys
from pathlib import Path
from parity.bisect.state import Probe, State

folder, calls, killed_at = Path(sys.argv[1]), 0, 0
def counted(function):
    def call(*args):
        global calls
        calls += 1
        if calls == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call
os.write, os.fsync, os.replace = counted(os.write), counted(os.fsync), counted(os.replace)
while True:
    killed_at += 1
    child = os.fork()
    if not child:
        with State.open(folder / str(killed_at), "w", {}) as state:
            for i in range(2):
                state.add(Probe(subject=(str(i),), outcome="bad", evidence="", seconds=0.0))
        os._exit(0)
    if os.WIFEXITED(os.waitpid(child, 0)[1]):
        break
print(killed_at)
"""


def test_killed_at_every_call_that_changes_the_disk(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=True)
    points = int(done.stdout)
    assert points > 10
    held = []
    for point in range(1, points):
        with State.open(tmp_path / str(point), "w", {}) as state:  # opens, whatever is there
            held.append(len(state.probes))
    assert held == sorted(held)
    assert set(held) == {0, 1, 2}
