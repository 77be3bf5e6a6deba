"""Every command that writes and needs no model, killed at every call that changes the disk, and at moments between.

After each kill: what has a name is whole, old or new; a golden is marked unfinished; no process is left; and the same
command, typed again, ends as one that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.golden import Golden
from parity.report.formats.json import dumps
from parity.report.result_json import to_json
from tests.kills.forked import CODES, KILLS, SIGNALS, Ended, forked, left_of, warmed
from tests.support.made import REFERENCE, pair, walk, write
from tests.support.results import RESULT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are forked")]
Files = dict[str, bytes]


def nothing(folder: Path) -> None:
    del folder


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that writes.

    Attributes:
        words: of its command line, in the folder that `make` fills. writes: files that are old or whole.
        golden: folder of a golden that it writes. code: of a run that nobody kills. check: what else must hold after a
            kill.
    """

    words: Sequence[str]
    make: Callable[[Path], object] = nothing
    writes: Sequence[str] = ()
    golden: str = ""
    code: int = 0
    check: Callable[[Path], None] = nothing


def halves(folder: Path) -> None:
    """Two goldens of two steps each, of one run."""
    steps = [walk(i).steps()[0] for i in range(4)]
    provenance = replace(REFERENCE, steps=4)
    write(folder / "first", provenance, steps[:2])
    write(folder / "second", provenance, steps[2:])


def compared(folder: Path) -> None:
    (folder / "diff.json").write_text(dumps(to_json(RESULT)))
    (folder / "old.html").write_text("<p>an older page</p>")


def kept(folder: Path) -> None:
    """A kept run, by hand."""
    folder.joinpath("run").mkdir()
    pair(folder / "run", fault=100.0)
    request = dict.fromkeys(("stage1", "prompt", "model", "inputs", "reference_path", "candidate_path"))
    (folder / "run" / "request.json").write_text(json.dumps(request))
    (folder / "run" / "result.json").write_text(dumps(to_json(RESULT)))


COMMANDS = {
    "diff reports": Command(
        words=["diff", "reference", "candidate", "--junit", "out/j.xml", "--markdown", "m.md"],
        make=lambda folder: pair(folder, fault=100.0),
        writes=["out/j.xml", "m.md"],
        code=1,
    ),
    "report": Command(words=["report", "diff.json"], make=compared, writes=["diff.html"]),
    "report over a page": Command(words=["report", "diff.json", "--html", "old.html"], make=compared,
                                  writes=["old.html"]),
    "report of a run": Command(words=["report", "run"], make=kept, writes=["run/report.html"]),
    "init": Command(words=["init", "port.py"], writes=["port.py"]),
    "init script": Command(words=["init", "port.py", "--script"], writes=["port.py"]),
    "merge": Command(words=["merge", "out", "first", "second"], make=halves, golden="out"),
}  # fmt: skip


def files(folder: Path) -> Files:
    return {
        str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file() and ".git" not in f.parts
    }


@dataclass(frozen=True)
class Trial:
    """A command, and what it does when nobody kills it.

    Attributes:
        base: an empty folder. before, whole: its files before and after.
    """

    command: Command
    base: Path
    before: Files
    whole: Files
    calls: int
    seconds: float

    @classmethod
    def of(cls, command: Command, base: Path) -> Trial:
        warm, folder = base / "warm", base / "whole"
        for made in (warm, folder):
            made.mkdir()
            command.make(made)
        assert warmed(command.words, warm) == command.code
        before = files(folder)
        ended = forked(command.words, folder)
        assert ended.code == command.code, ended.said
        assert ended.calls > 5
        return cls(command, base, before, files(folder), ended.calls, ended.seconds)

    def kill(self, number: int, at: int = 0, after: float | None = None) -> None:
        """Kill it, look at what is left, and run it again."""
        command, folder = self.command, self.base / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command.make(folder)
        killed = forked(command.words, folder, number, at, after)
        self._ended_well(killed, number, folder)
        done = forked(command.words, folder)
        if command.words[0] in ("init", "merge") and self._is_whole(folder):
            assert done.code in (2, command.code), done.said  # it was done, and is never overwritten
        else:
            assert done.code == command.code, done.said
        now = {name: content for name, content in files(folder).items() if not _hidden(name)}
        expected = {name: content for name, content in self.whole.items() if not _hidden(name)}
        assert now.keys() == expected.keys()
        assert now == expected

    def _is_whole(self, folder: Path) -> bool:
        now = files(folder)
        return all(now.get(name) == content for name, content in self.whole.items() if not _hidden(name))

    def _ended_well(self, killed: Ended, number: int, folder: Path) -> None:
        command = self.command
        assert killed.code in (*CODES[signal.Signals(number)], command.code), killed.said
        assert "Traceback" not in killed.said
        assert "defect" not in killed.said
        assert left_of(killed.group) == []
        now = files(folder)
        if number != signal.SIGKILL:
            # A lock that nobody holds counts for nothing: a signal may come between taking it and the `try` behind it.
            left = [name for name in now if _hidden(name) and not name.endswith(".lock")]
            assert left == [], "something temporary was left"
        for name in command.writes:
            content = now.get(name, self.before.get(name))
            assert content is None or content in (self.before.get(name), self.whole[name]), f"half of {name}"
            assert killed.code != command.code or content == self.whole[name]
        if command.golden:
            _unfinished_or_whole(folder / command.golden, self._is_whole(folder))
        command.check(folder)


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _unfinished_or_whole(golden: Path, whole: bool) -> None:
    if not (golden / "golden.json").exists():
        with pytest.raises(UsageError, match="no golden here"):
            Golden.open(golden)
        return
    found = Golden.open(golden)
    assert not found.complete or whole
    for step in found.steps:
        found.read_step(step)


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_where_it_writes(name: str, tmp_path: Path) -> None:
    trial = Trial.of(COMMANDS[name], tmp_path)
    points = range(1, trial.calls + 1)
    for number in SIGNALS:
        lot = random.Random(f"{name} {number}")
        for at in points if len(points) <= KILLS else sorted(lot.sample(points, KILLS)):
            trial.kill(number, at=at)


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment(name: str, tmp_path: Path) -> None:
    trial = Trial.of(COMMANDS[name], tmp_path)
    for number in SIGNALS:
        lot = random.Random(f"{name} {number}")
        for _ in range(min(KILLS, 20)):
            trial.kill(number, after=lot.uniform(0.0, trial.seconds))
