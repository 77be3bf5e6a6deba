"""A side whose work is done by a child process; see `parity.paths.plan.Side`.

Problem. A port may replace functions of torch or jax, patch a library that the reference uses too, print, end the
process, hang or abort. In one process any of that reaches the reference, the verdict or stdout.

How. Each role has a process of its own (`Worker`) that loads its sides and answers requests over a pipe
(`parity.paths.worker.serve`, `wire`). Requests are queued: a stream's next step is asked for before the last one
is looked at, so two workers compute at the same time. A thread reads the answers as they come: a worker that waits
until its answer is taken does not read the next request, and a pipe holds 64 KB. What a worker prints is passed on to
stderr, line by line, behind its role's name. However it ends, that is an error of its side, with the last line of the
side's own code.

Cost. An interpreter and the imports of a backend for each role (about 5 s each, side by side), one copy of each record.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from parity.errors import InconclusiveError, ParityError, UsageError, line_in
from parity.paths.plan import Ends, Forced, Opener, Plan, Role, Spec, State
from parity.paths.port.settings import PortInfo, port_timeout
from parity.paths.worker import wire
from parity.records import Facts, StepRecords
from parity.redact import printable
from parity.signals import own_process

LATE, ABORTED = "Timeout (", "Fatal Python error"
"""How faulthandler begins to say where a process was that took too long, or that aborts."""
_LONGEST_LINE = 1 << 16
"""Bytes of what a side prints that are one line at most."""


def too_late(option: str, file: Path, where: str) -> UsageError:
    """The error for an import that took too long, and was ended with its process; `where`: the line it was at."""
    at = f", at {where}" if where else ""
    return UsageError(
        f"{option}: importing '{file.name}' did not end within {port_timeout():g} s{at}; do the work inside the "
        "function, or set PARITY_PORT_TIMEOUT to more seconds"
    )


STARTER = ThreadPoolExecutor(1, "parity-starts")
"""Starts all workers: the kernel ends one with the thread that started it, and this one ends with the process."""

LAUNCHERS: dict[str, Callable[[int, int, int], Any]] = {}
"""Role -> what starts its workers, if not as an interpreter of their own; for tests. A worker reads requests from,
answers to, and prints to these descriptors, as with `subprocess.Popen`."""


class RemoteError(Exception):
    """Something unforeseen in a worker, which no user's mistake explains; its text is that of the original error, and a
    note has the traceback there."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        if trace:
            self.add_note(f"in the side's process:\n{trace}")


class Worker:
    """The process of one role.

    Attributes:
        role: `reference` or `candidate`. file: of the port it runs, for messages; None for parity's own path.
        numbers: of its sides and streams.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.file: Path | None = None
        self._said: collections.deque[str] = collections.deque(maxlen=200)
        self.numbers = itertools.count()
        self._awaited: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        we_hear, child_prints = os.pipe()
        there = (child_reads, child_writes, child_prints)
        self._process = STARTER.submit(LAUNCHERS.get(role, _start), *there).result()
        for descriptor in there:
            os.close(descriptor)
        self._to = Connection(we_write, readable=False)
        heard = (os.fdopen(we_hear, "rb"), role, self._said)
        self._listener = threading.Thread(target=_pass_on, args=heard, daemon=True)
        self._listener.start()
        answers = (Connection(we_read, writable=False), self._awaited)
        threading.Thread(target=_answered, args=answers, daemon=True).start()
        # A worker that nobody refers to any more, or that is left at the interpreter's end, leaves no process behind.
        self._let_go = weakref.finalize(self, _end, self._process, self._to, self._awaited)

    def port(self, option: str, text: str) -> PortInfo:
        """Import a port there.

        Raises:
            UsageError: see `parity.paths.port.load.load_entry`; or the import does not end.
        """
        self.file = Path(text.rpartition(":")[0])
        try:
            info: PortInfo = self.ask("port", option=option, text=text)
        except UsageError:
            if not any(line.startswith(LATE) for line in self._said):
                raise
            raise too_late(option, self.file, self._line("\n".join(self._said))) from None
        return info

    def open(self, spec: Spec) -> ProcessSide:
        """A side in this process, loaded when it is first asked for something."""
        number = next(self.numbers)
        self.send("open", side=number, spec=spec)
        return ProcessSide(self, spec, number)

    def send(self, do: str, **args: object) -> Future[Any]:
        """Queue a request; `reply` waits for its answer, which is dropped where nobody keeps the future."""
        future: Future[Any] = Future()
        try:
            wire.send(self._to, {"do": do, "args": args})
        except wire.BrokenWireError:
            raise self._ended() from None
        self._awaited.put(future)
        return future

    def reply(self, request: Future[Any]) -> Any:
        """The answer to a request; waits for it.

        Raises:
            ParityError: what the side raised, or that its process ended. RemoteError: something unforeseen there.
        """
        try:
            answer = request.result()
        except wire.BrokenWireError:
            raise self._ended() from None
        if "error" not in answer:
            return answer["ok"]
        error = answer["error"]
        kinds: dict[int, type[ParityError]] = {2: UsageError, 125: InconclusiveError}
        if error["code"] in kinds:
            raise kinds[error["code"]](error["text"])
        raise RemoteError(error["text"], error.get("trace", ""))

    def ask(self, do: str, **args: object) -> Any:
        """Send a request and wait for its answer."""
        return self.reply(self.send(do, **args))

    def close(self) -> None:
        """End the process."""
        self._let_go()
        self._process.wait()

    def _ended(self) -> UsageError:
        """Why the process is gone, with the last line of the side's own code."""
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._listener.join(5)
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        where = self._line("\n".join(self._said))
        return UsageError(f"the {self.role}'s process {how}{f' at {where}' if where else ''}: nothing was compared")

    def _line(self, trace: str) -> str:
        """Where the port was in a traceback; empty where that is not known."""
        return "" if self.file is None else line_in(self.file, trace)


def _answered(pipe: Connection, awaited: queue.SimpleQueue[Future[Any] | None]) -> None:
    """Give each request its answer, which come in the order of the requests, until there is none more to come. A thread
    of its own does so, and holds no reference to the worker, so that this can be collected."""
    while (future := awaited.get()) is not None:
        try:
            future.set_result(wire.receive(pipe))
        except BaseException as error:
            future.set_exception(error)
    pipe.close()


def _pass_on(lines: IO[bytes], role: Role, said: collections.deque[str]) -> None:
    """What a side prints, to stderr: stdout belongs to the result."""
    quiet = False
    while raw := lines.readline(_LONGEST_LINE):
        line = raw.decode(errors="replace").rstrip("\n")
        said.append(line)
        quiet = quiet or line.startswith((ABORTED, LATE))
        if not quiet:
            shown = "\t".join(printable(part, "utf-8") for part in line.split("\t"))
            print(f"{role}: {shown}", file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes], pipe: Connection, awaited: queue.SimpleQueue[Future[Any] | None]) -> None:
    with contextlib.suppress(OSError):
        pipe.close()
    process.kill()
    awaited.put(None)


def _start(read: int, write: int, output: int) -> subprocess.Popen[bytes]:
    """An interpreter of its own."""
    command = own_process(f"from parity.paths.worker.serve import answer; answer({read}, {write})")
    # A terminal interrupts every process of the command: that is the parent's to answer, from this one's first line on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command, pass_fds=(read, write), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessSide:
    """See the module's docstring.

    Attributes:
        spec: what it is.
    """

    def __init__(self, worker: Worker, spec: Spec, number: int) -> None:
        self.worker, self.spec, self._number = worker, spec, number
        self._facts: Facts | None = None

    def facts(self) -> Facts:
        if self._facts is None:
            self._facts = self.worker.ask("facts", side=self._number)
        return self._facts

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        forced = start if callable(start) else None
        stream = next(self.worker.numbers)
        self.worker.ask(
            "observe",
            side=self._number,
            stream=stream,
            plan=plan,
            start=None if callable(start) else start,
            steps=steps,
            forced=forced is not None,
        )

        def ask(step: int) -> Future[Any]:
            state = None if forced is None else forced(step)
            return self.worker.send("next", stream=stream, state=None if state is None else (step, state))

        first = 0 if steps is None else steps[0]
        return self._steps(ask, first, ask(first) if forced is None else None)

    def _steps(self, ask: Callable[[int], Future[Any]], step: int, asked: Future[Any] | None) -> Iterator[StepRecords]:
        """The steps of a stream; unless they are forced, the next is asked for before the last one is looked at."""
        ahead = asked is not None
        while (found := self.worker.reply(asked or ask(step))) is not None:
            step += 1
            asked = ask(step) if ahead else None
            yield found

    def ends(self, leave: str | None = None) -> Ends:
        found: Ends = self.worker.ask("ends", side=self._number, leave=leave)
        return found

    def close(self) -> None:
        self.worker.send("close", side=self._number)


class Workers(contextlib.ExitStack):
    """A process for each role, started when it is first asked for, ended with the context, or by `close`.

    Args:
        torchax: whether the candidate runs in it, so that its process imports it while the reference loads. No other
            process does: with torchax imported, torch.compile fails (dynamo asks the wrong device for its stream).
    """

    def __init__(self, *, torchax: bool = False) -> None:
        super().__init__()
        self.torchax = torchax
        self._started: dict[str, Worker] = {}

    def of(self, role: Role) -> Opener:
        """The opener of a role."""
        if role not in self._started:
            self._started[role] = worker = Worker(role)
            self.callback(worker.close)
            if role == "candidate" and self.torchax:
                worker.send("imports")
        return self._started[role]
