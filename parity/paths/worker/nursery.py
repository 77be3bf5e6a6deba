"""Workers forked from a process that has imported their libraries already, for whoever starts many of them.

Problem. A worker (`parity.paths.worker.process`) spends seconds on importing torch, diffusers and jax. One comparison
pays that once; a test suite or a benchmark pays it hundreds of times.

How. `warm()` starts one process for each role that imports everything and computes nothing, and from then on workers of
this interpreter are forked from it. Each fork is as isolated as a process of its own: what a port does there reaches
neither the nursery nor another fork. What libraries read from the environment when they are imported is the nursery's.

    from parity.paths.worker.nursery import warm
    warm()

Cost. Two idle processes until this one ends; 20 ms for each worker.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parity
from parity.paths.plan import Role
from parity.paths.worker import process

_PROGRAM = "import sys; sys.path.append({!r}); from parity.paths.worker.nursery import serve; serve()"
_LONGEST = 1 << 20
_LIBRARIES = (
    "diffusers.models.autoencoders",
    "diffusers.models.transformers",
    "diffusers.pipelines.pipeline_utils",
    "diffusers.schedulers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "functorch.compile",
)
"""What libraries put off importing until a model of theirs is loaded or run: seconds in each fork otherwise."""


def warm() -> None:
    """Have the workers of this interpreter forked from now on."""
    process.LAUNCHERS.clear()
    for role in ("reference", "candidate"):
        process.LAUNCHERS[role] = _Nursery(role).fork


class _Nursery:
    """The process that workers of one role are forked from; started with the first of them."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._socket: socket.socket | None = None

    def fork(self, read: int, write: int, output: int) -> _Forked:
        """A worker that answers over these descriptors and prints to `output`."""
        request = {"do": "fork", "cwd": os.getcwd(), "env": dict(os.environ)}
        return _Forked(self, int(self.ask(request, [read, write, output])["pid"]))

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        if self._socket is None:
            self._socket = self._start()
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        answer: dict[str, Any] = json.loads(self._socket.recv(_LONGEST))
        return answer

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = _PROGRAM.format(str(Path(parity.__file__).parents[1]))
        command = [sys.executable, "-P", "-c", program, self.role, str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        return ours


@dataclass
class _Forked:
    """A worker's process; see `parity.paths.worker.process.Process`."""

    nursery: _Nursery
    pid: int
    code: int | None = None

    def send_signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        try:
            self.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            return

    def wait(self, timeout: float | None = None) -> int:
        late = None if timeout is None else time.monotonic() + timeout
        while self.code is None:
            self.code = self.nursery.ask({"do": "status", "pid": self.pid}, [])["code"]
            if self.code is None:
                if late is not None and time.monotonic() > late:
                    raise subprocess.TimeoutExpired("worker", timeout or 0.0)
                time.sleep(0.01)
        return self.code


def serve() -> None:
    """The nursery's own process: imports, then forks until the other end closes the socket."""
    role, descriptor = sys.argv[-2], int(sys.argv[-1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    from parity.paths.worker import serve as worker

    worker.load(role)
    for name in _LIBRARIES:
        importlib.import_module(name)
    ended: dict[int, int] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if request["do"] == "status":
            _reap(ended)
            requests.send(json.dumps({"code": ended.get(request["pid"])}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            read, write, output = descriptors
            os.dup2(output, 1)
            os.dup2(output, 2)
            worker.answer(role, read, write)
        for opened in descriptors:
            os.close(opened)
        requests.send(json.dumps({"pid": pid}).encode())


def _reap(ended: dict[int, int]) -> None:
    """Take the exit codes of forks that have ended; a signal is negative, as subprocess has it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended[pid] = os.waitstatus_to_exitcode(status)
