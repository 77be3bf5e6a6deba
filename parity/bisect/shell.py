"""A user's command, run so that it ends when parity ends.

How. The command is the leader of a process group of its own: whatever it started is ended with it, whether parity is
interrupted or terminated. SIGKILL leaves the command running; nothing can be done about that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

GRACE = 3.0
"""Seconds that a command has between being asked to end and being killed."""


def run(command: str, folder: Path, log: Path, environment: Mapping[str, str]) -> int:
    """Run a command by /bin/sh, both its outputs in `log`; returns its exit code, or the negative of a signal."""
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
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)  # what else is in the group may not have ended
    process.wait()
