"""The part of a side's process: answers requests over a pipe until the other end closes it.

    python -c '...; answer(READ, WRITE)'        the descriptors of the two pipes

What the side's own code prints goes to stderr, which the parent reads apart. There faulthandler says where native code
aborted, or `os._exit` was called, so that the parent can name the line. Imports nothing of a backend before it has
answered that it is there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from parity.errors import ParityError, UsageError, summary
from parity.paths.worker import wire
from parity.paths.worker.extras import quieten, require_extras
from parity.paths.worker.process import ABORTED

if TYPE_CHECKING:
    from parity.paths.live import Host, LiveSide
    from parity.paths.plan import Plan, Spec, State
    from parity.records import StepRecords


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of a side's; `states`: what its next step is forced to start from."""

    side: int
    records: Iterator[StepRecords]
    states: dict[int, State]


@dataclass
class Server:
    """The requests, by name: each method is one.

    Attributes:
        host: loads sides. sides, streams: open ones, by the number that the other end gave them.
    """

    host: Host
    sides: dict[int, LiveSide] = field(default_factory=dict)
    streams: dict[int, _Stream] = field(default_factory=dict)

    def imports(self) -> None:
        load_torchax()

    def port(self, option: str, text: str) -> object:
        return self.host.port(option, text)

    def open(self, side: int, spec: Spec) -> None:
        self.sides[side] = self.host.open(spec)

    def facts(self, side: int) -> object:
        from parity.paths.live import checkpoint  # torch, which is imported by now

        with checkpoint(self.sides[side].spec.source):
            return self.sides[side].facts()

    def observe(
        self, side: int, stream: int, plan: Plan, start: State | None, steps: tuple[int, int] | None, forced: bool
    ) -> None:
        states: dict[int, State] = {}
        records = self.sides[side].observe(plan, start=states.get if forced else start, steps=steps)
        self.streams[stream] = _Stream(side, records, states)

    def next(self, stream: int, state: tuple[int, State] | None = None) -> object:
        """The next records of a stream; None at its end. `state`: what a step is forced to start from."""
        at = self.streams[stream]
        if state is not None:
            at.states.clear()  # the stream looks it up in this very mapping
            at.states.update([state])
        return next(at.records, None)

    def ends(self, side: int, leave: str | None) -> object:
        return self.sides[side].ends(leave)

    def close(self, side: int) -> None:
        self.streams = {number: stream for number, stream in self.streams.items() if stream.side != side}
        self.sides.pop(side).close()


def load() -> None:
    """Import what every side needs.

    Raises:
        UsageError: something is not installed.
    """
    quieten()
    require_extras()  # whoever needs torchax has looked for it
    importlib.import_module("parity.paths.live")


def load_torchax() -> None:
    """Import what a side in torchax needs."""
    # Beside another backend of torch's, such as a TPU's own, torchax cannot be imported; who needs it hears of it.
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("parity.paths.jax.candidate")


def answer(read: int, write: int) -> NoReturn:
    """Answer requests over two descriptors until the other end closes them."""
    requests, replies = Connection(read, writable=False), Connection(write, readable=False)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    faulthandler.enable()
    leave = _tell_exits()
    server, refused = None, ParityError("")
    try:
        load()
        from parity.paths.live import Host

        server = Server(Host())
    except ParityError as error:
        refused = error
    while True:
        try:
            request = wire.receive(requests)
        except wire.BrokenWireError:
            leave(0)
        try:
            wire.send(replies, _error(refused) if server is None else _answer(server, request))
        except wire.BrokenWireError:  # nobody waits for the answer: the other side has failed
            leave(0)


def _answer(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": getattr(server, request["do"])(**request["args"])}
    except BaseException as error:  # whatever it is, it is this side's: the other end says so
        return _error(error)


_MACHINES = ("Unable to initialize backend", "RESOURCE_EXHAUSTED", "out of memory")
"""What is not parity's failure, but the machine's or its environment's."""


def _error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ParityError):
        return {"error": {"code": error.exit_code, "text": str(error)}}
    text = summary(error)
    if "callback" in text and "Traceback" in str(error):  # of a compiled program: the port's own
        text = f"{text.partition('Traceback')[0].rstrip(': ')}: {str(error).strip().splitlines()[-1]}"
        return {"error": {"code": UsageError.exit_code, "text": text}}
    if isinstance(error, MemoryError) or any(words in text for words in _MACHINES):
        return {"error": {"code": UsageError.exit_code, "text": text}}
    return {"error": {"code": 0, "text": text, "trace": traceback.format_exc()}}


def _tell_exits() -> Callable[[int], NoReturn]:
    """Have `os._exit` say where it is called before it ends this process; returns what only ends it."""
    leave, here = os._exit, os.getpid()

    def last_words(status: int) -> NoReturn:
        if os.getpid() == here:  # and no process that was forked
            os.write(2, f"{ABORTED}: os._exit\n".encode())
            faulthandler.dump_traceback(file=2, all_threads=False)
        leave(status)

    os._exit = last_words
    return leave
