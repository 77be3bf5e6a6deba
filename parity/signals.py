"""SIGTERM and SIGHUP as exceptions, so that what is open is closed and a line is printed; and none of them is lost.
After SIGKILL, which nothing can answer, no process goes on that parity started for itself.

A signal's exception is raised wherever the interpreter happens to be. In a finaliser or a weak reference's callback
Python prints it and goes on, and a command that was told to stop would not: it is raised once more, a moment later.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from parity.errors import Terminated

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_LATER = 0.01
"""Seconds after which a lost exception is raised again, outside of what swallowed it."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it, the first of these signals raises `Terminated`; a second one does not wait. Ignored ones stay so."""
    before = {n: signal.signal(n, _terminate) for n in _ENDING if signal.getsignal(n) != signal.SIG_IGN}  # nohup
    hook = sys.unraisablehook
    sys.unraisablehook = _again(hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


def _as_by_default() -> None:
    """In a process that somebody's script forks these signals do what they do by default."""
    for number in _ENDING:
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_as_by_default)


def signalled(error: BaseException) -> int | None:
    """The number of the signal behind an error; None for none. A library that is interrupted while it is imported
    raises its own."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, (KeyboardInterrupt, Terminated)):
            return found.number if isinstance(found, Terminated) else signal.SIGINT
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _again(hook: Callable[[sys.UnraisableHookArgs], object]) -> Callable[[sys.UnraisableHookArgs], object]:
    """A hook for exceptions that nobody can catch: a signal's is sent again, the others are the former hook's."""

    def handle(found: sys.UnraisableHookArgs) -> None:
        error = found.exc_value
        if isinstance(error, Terminated):
            number = error.number
            signal.signal(number, _terminate)
        elif isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        else:
            hook(found)
            return
        later = threading.Timer(_LATER, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

    return handle


# --- a process that ends with this one


def own_process(program: str) -> list[str]:
    """The command that runs a program of parity's in an interpreter of its own, which ends with this process, or with
    the thread that starts it."""
    begin = f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from parity.signals import end_with"
    return [sys.executable, "-P", "-c", f"{begin}; end_with({os.getpid()}); {program}"]


_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def end_with(parent: int) -> None:
    """End this process when its parent has: by the kernel if it can, whatever holds the interpreter here, else, and
    if the parent has ended already, within a second."""
    if os.getppid() not in (parent, 1):
        parent = os.getppid()  # what stands for the interpreter runs it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)
