"""A command in a process forked from this one, which a signal meets where it writes or at any moment.

Forked, because an interpreter of its own takes half a second and a command on small goldens a tenth of that.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from parity.__main__ import main

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


def forked(arguments: Sequence[str], folder: Path, number: int = 0, at: int = 0, after: float | None = None) -> Ended:
    """Run a command in a folder.

    Args:
        number: the signal that it gets. at: before this call of CALLS, from 1. after: so many seconds from its start.
    """
    said = folder.with_name(f"{folder.name}.said")
    reads, writes = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _run(arguments, folder, said, number, at, writes)
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
    calls = 0

    def seen(frame: FrameType, event: str, function: object) -> None:
        nonlocal calls
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
