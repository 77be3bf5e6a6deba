"""Commands that write, killed at calls that change the disk, in a forked process.

After each kill: what has a name is whole, old or new; a golden is marked unfinished; and the same command, typed again,
ends as one that was never killed. Forked from a process that holds the commands alone: threads of an earlier test hold
locks that a fork would find closed for ever.
"""

from __future__ import annotations

import inspect
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

import pytest

from parity.__main__ import main
from parity.report.document import Listing
from parity.report.formats import render
from parity.report.formats.json import to_json
from parity.signals import terminable
from tests.support.cli import cli
from tests.support.made import pair
from tests.support.results import RESULT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="commands are forked")]

KILLS = int(os.environ.get("KILLS", "3"))
"""Of each command and signal, at calls drawn by lot."""
CODES = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}
CALLS = frozenset(
    ("open", "fdopen", "write", "flush", "close", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir",
     "chmod", "truncate", "ftruncate", "flock", "mkstemp")
)  # fmt: skip
"""Functions in C around which the disk changes."""


def kept(folder: Path) -> None:
    pair(folder / "run", fault=100.0)
    (folder / "run" / "result.json").write_text(render(Listing(to_json(RESULT), ()), "json"))
    (folder / "run" / "report.html").write_text("<p>an older page</p>")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line, what makes the folder that it runs in, the files that are old or whole, and its exit code."""

    words: Sequence[str]
    make: Callable[[Path], object] = lambda folder: None
    writes: Sequence[str] = ()
    code: int = 0


COMMANDS = {
    "diff": Command(
        words=["diff", "reference", "candidate", "--junit", "out/j.xml", "--markdown", "m.md"],
        make=lambda folder: pair(folder, fault=100.0),
        writes=["out/j.xml", "m.md"],
        code=1,
    ),
    "report": Command(words=["report", "run"], make=kept, writes=["run/report.html"]),
    "init": Command(words=["init", "port.py"], writes=["port.py"]),
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def warm(words: Sequence[str], folder: Path) -> int:
    """What a command imports every fork has."""
    return cli(*words, cwd=folder).code


def forked(words: Sequence[str], folder: Path, number: int = 0, at: int = 0) -> tuple[int, str, int]:
    """(exit code, what was said, calls counted) of a command that gets a signal before this call of CALLS, from 1."""
    said, counted = folder.with_name("said"), folder.with_name("counted")
    counted.write_text("0")
    pid = os.fork()
    if pid == 0:
        try:
            run(words, folder, said, counted, number, at)
        finally:
            os._exit(98)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, said.read_text(errors="replace"), int(counted.read_text())


def run(words: Sequence[str], folder: Path, said: Path, counted: Path, number: int, at: int) -> None:
    """The forked process."""
    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["parity", *words]
    calls, begun, began = 0, False, inspect.unwrap(terminable).__code__

    def seen(frame: FrameType, event: str, function: object) -> None:
        nonlocal calls, begun
        begun = begun or (event == "call" and frame.f_code is began)
        if begun and event == "c_call" and _of_the_disk(function):
            calls += 1
            if calls == at:
                os.kill(os.getpid(), number)

    code: object = 0
    try:
        sys.setprofile(seen)
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:  # past every handler of the command line: its user would see a traceback
        os.write(2, f"Traceback: {error!r}".encode())
        code = 99
    finally:
        sys.setprofile(None)
        sys.stdout.flush()
        counted.write_text(str(calls))
        os._exit(code if isinstance(code, int) else 1)


def _of_the_disk(function: object) -> bool:
    if getattr(function, "__name__", "") not in CALLS:
        return False
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__ in ("posix", "fcntl", "io", "_io")
    return isinstance(owner, io.IOBase) and not isinstance(owner, io.StringIO | io.BytesIO)


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def made(command: Command, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command.make(folder)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_where_it_writes(name: str, tmp_path: Path, nursery: ProcessPoolExecutor) -> None:
    command = COMMANDS[name]

    def ended(number: int = 0, at: int = 0) -> tuple[int, str, int]:
        return nursery.submit(forked, command.words, folder, number, at).result(timeout=60)

    folder = made(command, tmp_path / "warm")
    assert nursery.submit(warm, command.words, folder).result() == command.code
    folder = made(command, tmp_path / "whole")
    before = files(folder)
    code, said, calls = ended()
    assert code == command.code, said
    assert calls > 5
    whole = files(folder)
    for number, codes in CODES.items():
        for at in sorted(random.Random(f"{name} {number}").sample(range(1, calls + 1), min(KILLS, calls))):
            folder = made(command, tmp_path / "killed")
            code, said, _ = ended(number, at)
            assert code in (*codes, *[command.code] * (number != signal.SIGKILL)), said
            assert "Traceback" not in said
            assert "internal error" not in said
            now = files(folder)
            left = [n for n in now if any(part.startswith(".") for part in Path(n).parts)]
            assert number == signal.SIGKILL or left == [], "something temporary was left"
            for written in command.writes:
                content = now.get(written, before.get(written))
                assert content is None or content in (before.get(written), whole[written]), f"half of {written}"
                assert code != command.code or content == whole[written]
            done = all(now.get(n) == content for n, content in whole.items())
            again, said, _ = ended()
            assert again == (2 if done and name == "init" else command.code), said  # never overwritten
            after = files(folder)
            assert all(after.get(n) == content for n, content in whole.items())
