"""A command in a forked process, which a signal meets where it writes or at any moment.

Forked, because an interpreter of its own takes half a second and a command on small goldens a tenth of that. Forked not
from the process of the tests but from one that holds the commands alone: where an earlier test has started JAX's
threads, a fork finds the locks that they held closed for ever, now and then (two runs of three with 60 forks each).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from typer.testing import CliRunner

from parity import cli
from parity.__main__ import main
from parity.signals import terminable

KILLS = int(os.environ.get("KILLS", "1"))
"""Of each command and signal at calls of the system, and as many at moments between: few in CI, `make kills` all."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CODES = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}
CALLS = frozenset(
    ("open", "fdopen", "write", "flush", "close", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir",
     "chmod", "truncate", "ftruncate", "flock", "mkstemp", "fork_exec")
)  # fmt: skip
"""Functions in C around which the disk changes."""
SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How a command ended. Attributes: code: negative for a signal. calls: that were counted; 0 where it was killed."""

    code: int
    said: str
    calls: int
    seconds: float
    group: int


def warmed(arguments: Sequence[str], folder: Path) -> int:
    """The exit code of a command in the process that others are forked from: what it imports every fork has."""
    return _nursery().submit(_warm, arguments, folder).result()


def forked(arguments: Sequence[str], folder: Path, number: int = 0, at: int = 0, after: float | None = None) -> Ended:
    """Run a command in a folder.

    Args:
        number: the signal that it gets. at: before this call of CALLS, from 1. after: so many seconds from its start.
    """
    return _nursery().submit(_fork, arguments, folder, number, at, after).result()


@functools.cache
def _nursery() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _warm(arguments: Sequence[str], folder: Path) -> int:
    with contextlib.chdir(folder):
        return CliRunner().invoke(cli.app, list(arguments)).exit_code


def _fork(arguments: Sequence[str], folder: Path, number: int, at: int, after: float | None) -> Ended:
    """As `forked`, in the process that holds the commands."""
    said = folder.with_name(f"{folder.name}.said")
    reads, writes = os.pipe()
    began = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the fork's command has begun
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reads)
            _run(arguments, folder, said, number, at, writes)
        except KeyboardInterrupt:  # after the command had ended
            os._exit(130)
        finally:
            os._exit(98)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.close(writes)
    if after is not None:
        time.sleep(after)
        os.kill(pid, number)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() - began < SECONDS, f"{arguments} hangs: {said.read_text()}"
        time.sleep(0.002)
    with os.fdopen(reads, "rb") as counted:
        calls = int(counted.read() or b"0")
    text = said.read_text(errors="replace")
    return Ended(os.waitstatus_to_exitcode(ended[1]), text, calls, time.monotonic() - began, pid)


def _run(arguments: Sequence[str], folder: Path, said: Path, number: int, at: int, counts: int) -> NoReturn:
    """The forked process."""
    os.setsid()
    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["parity", *arguments]
    calls, began = 0, inspect.unwrap(terminable).__code__

    def seen(frame: FrameType, event: str, function: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code is began:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if event == "c_call" and _of_the_disk(function):
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
        os.write(counts, str(calls).encode())
        os._exit(code if isinstance(code, int) else 1)


def _of_the_disk(function: object) -> bool:
    if getattr(function, "__name__", "") not in CALLS:
        return False
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__ in ("posix", "fcntl", "io", "_io", "_posixsubprocess")
    return isinstance(owner, io.IOBase) and not isinstance(owner, io.StringIO | io.BytesIO)


def left_of(group: int) -> list[str]:
    """The processes of a session that still live after a while, by their command lines."""
    limit = time.monotonic() + 10.0
    while (found := _alive(group)) and time.monotonic() < limit:
        time.sleep(0.05)
    return found


def _alive(group: int) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == group and state != "Z":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
