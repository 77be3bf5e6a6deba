"""A command that goes on in a child, so that it ends with words whatever ends it.

Problem. Where the first of several processes dies, JAX aborts the others from a thread of its own: no handler of Python
runs, and what a user sees is the log of a fatal error and exit code 134.

How. `supervised` forks before a backend is imported. The child goes on; the process that was there waits for it, hands
signals on, and ends with its exit code, or with a sentence and 125 where a signal ended it. The child has a process
group of its own, so that it gets each signal once, and ends with its parent.

Cost. A process that sleeps. Where there is no fork, the command goes on in this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
ORPHANED = 1.0
"""Seconds between two looks at whether the parent is still there."""
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervised() -> None:
    """Return in a child; this process ends when that does."""
    if not hasattr(os, "fork"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)  # none is lost before it can be handed on
    child = os.fork()
    if child:
        _wait_for(child)
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a group in the background may write to its terminal
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)


def end_with_parent() -> None:
    """End this process when its parent has: by the kernel where it can, else within ORPHANED."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHANED)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(child: int) -> NoReturn:
    def hand_on(number: int, frame: FrameType | None) -> None:
        del frame
        os.kill(child, number)  # not yet waited for, so that the number is still its own

    for number in _HANDED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        code, text = _of_signal(-code)
        os.write(2, f"parity: {text}\n".encode())
    os._exit(code)


def _of_signal(number: int) -> tuple[int, str]:
    """Exit code and message where a signal ended the command."""
    if number in _HANDED_ON:
        return 128 + number, "interrupted" if number == signal.SIGINT else "terminated"
    name = signal.Signals(number).name
    if number == signal.SIGABRT:
        because = "as JAX does where process 0, which coordinates the others, is gone; its log stands above"
    else:
        because = "which is not parity's doing: memory that ran out ends a process like that"
    return 125, f"this process was ended by {name}, {because}"
