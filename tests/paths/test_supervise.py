"""A command that goes on in a child ends as that child does, and says what ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")]

PROGRAM = """
import os, signal, sys, time
from parity.paths.worker.supervise import supervised
supervised()
print(os.getpid(), flush=True)
END
"""


def started(end: str) -> tuple[subprocess.Popen[str], int]:
    """The command, and the number of the child that it goes on in."""
    program = PROGRAM.replace("END", end)
    made = subprocess.Popen([sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert made.stdout is not None
    return made, int(made.stdout.readline())


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("os._exit(0)", 0, ""),
        ("os.kill(os.getpid(), signal.SIGABRT)", 125, "parity: this process was ended by SIGABRT, as JAX does where"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 125, "parity: this process was ended by SIGKILL, which is not"),
    ],
)
def test_it_ends_as_its_child_does(end: str, code: int, said: str) -> None:
    process, child = started(end)
    _, err = process.communicate(timeout=60)
    assert child != process.pid
    assert (process.returncode, err[: len(said)]) == (code, said)
    assert bool(err) == bool(said)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_signals_reach_the_child_once(number: int, code: int, said: str) -> None:
    heard = f"signal.signal({int(number)}, lambda n, f: (signal.signal(n, 0), print('heard', flush=True)))"
    process, child = started(f"{heard}; print('ready', flush=True); time.sleep(60); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, f"parity: {said}\n")
    assert gone(child)


def test_a_child_ends_with_the_process_that_is_killed() -> None:
    process, child = started("time.sleep(60)")
    process.kill()
    process.communicate(timeout=60)
    assert gone(child)


def gone(number: int) -> bool:
    """Whether a process ends within some seconds; one that nobody waits for yet has ended."""

    def alive() -> bool:
        try:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return within(20.0, lambda: not alive())


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    limit = time.monotonic() + seconds
    while not holds() and time.monotonic() < limit:
        time.sleep(0.05)
    return holds()
