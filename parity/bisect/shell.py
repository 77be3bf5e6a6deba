"""A user's command, run so that it ends when parity ends.

How. The command is the leader of a process group of its own: whatever it started is ended with it, whether parity is
interrupted or terminated. SIGKILL leaves the command running: a note says which process it is, so that the next search
ends it (`end_orphan`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

RUNNING = "running"
"""File that names the process of a running command."""
GRACE = 3.0
"""Seconds that a command has between being asked to end and being killed."""


def run(command: str, folder: Path, log: Path, environment: Mapping[str, str]) -> int:
    """Run a command by /bin/sh, both its outputs in `log`; returns its exit code, or the negative of a signal.

    Beside `folder` a file says which process it is for as long as it runs.
    """
    note = folder.parent / RUNNING
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            with contextlib.suppress(OSError):
                note.write_text(f"{process.pid} {_born(process.pid)}")
            return process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            note.unlink(missing_ok=True)


def end_orphan(scratch: Path) -> None:
    """End the command that a killed search left running, where its note is of the process that still has its number."""
    with contextlib.suppress(OSError, ValueError):
        pid, born = (scratch / RUNNING).read_text().split()
        if int(pid) > 1 and born != "-" and born == _born(int(pid)):
            os.killpg(int(pid), signal.SIGKILL)


def _born(pid: int) -> str:
    """When a process began, in the kernel's ticks; `-` where that cannot be known, or it is another's."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return "-"
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read(4096).rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)  # what else is in the group may not have ended
    process.wait()
