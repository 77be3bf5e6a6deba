"""Workers forked from a process that has imported their libraries already: a test suite starts hundreds of them.

Each fork is as isolated as a process of its own. What libraries read from the environment when they are imported is the
nursery's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from parity.paths.worker import process
from parity.signals import end_with

_PROGRAM = "import sys; sys.path.append({!r}); from tests.support.nursery import serve; serve({}, {})"
_LAZY = (
    "diffusers.models.autoencoders", "diffusers.models.transformers", "diffusers.pipelines.pipeline_utils",
    "diffusers.schedulers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto",
    "functorch.compile",
)  # fmt: skip
"""What libraries put off importing until a model of theirs is loaded or run: seconds in each fork otherwise."""


def warm() -> None:
    """Have the workers of this interpreter forked from now on."""
    for role in ("reference", "candidate"):
        process.LAUNCHERS[role] = functools.partial(_fork, role)


@functools.cache
def _started() -> dict[str, socket.socket]:
    """Role -> what asks the process that its workers are forked from: of references one without torchax."""
    (reference, first), (candidate, second) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in "ab")
    descriptors = first.fileno(), second.fileno()
    command = [sys.executable, "-P", "-c", _PROGRAM.format(str(Path(__file__).parents[2]), *descriptors)]
    subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
    first.close()
    second.close()
    return {"reference": reference, "candidate": candidate}


def _fork(role: str, read: int, write: int, output: int) -> Forked:
    """A worker that answers over these descriptors and prints to `output`."""
    told, tells = os.pipe()
    request = json.dumps({"cwd": os.getcwd(), "env": dict(os.environ)}).encode()
    socket.send_fds(_started()[role], [request], [read, write, output, tells])
    os.close(tells)
    return Forked(told)


class Forked:
    """A worker's process, as `subprocess.Popen` has it."""

    def __init__(self, told: int) -> None:
        self._told = os.fdopen(told, "rb", buffering=0)
        self.pid, self.code = int(self._told.readline()), None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self.code = int(self._told.readline())
        return self.code


def serve(reference: int, candidate: int) -> NoReturn:
    """Import, then fork until the other end closes the socket: one process for each role."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who keep a worker
    from parity.paths.worker import serve as worker

    worker.load()
    for name in _LAZY:
        importlib.import_module(name)
    ours, other = reference, candidate
    if os.fork() == 0:
        ours, other = candidate, reference
        worker.load_torchax()
    os.close(other)
    requests = socket.socket(fileno=ours)
    while True:
        data, opened, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(data), *opened)
        for other in opened:
            os.close(other)


def _keep(request: dict[str, dict[str, str]], read: int, write: int, output: int, tells: int) -> NoReturn:
    """Fork the worker, and tell its number and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        for other in (read, write, output):
            os.close(other)
        os.write(tells, f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody asks any more
            os.write(tells, f"{code}\n".encode())
        os._exit(0)
    os.close(tells)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for printed in (1, 2):
        os.dup2(output, printed)
    from parity.paths.worker.serve import answer

    end_with(os.getppid())
    answer(read, write)
