"""Several processes that run one path together, each with its own devices: joined, watched, and ended together.

Problem. A process that stops leaves the others in a collective that never ends, and what JAX does then is to abort them
with the log of a fatal error, minutes later, or never.

How. `together` joins by `jax.distributed`, and beside the work a thread of each process says through the coordinator's
key-value store that its process is alive, or what stopped it. A process that hears of a stop, or nothing of another one
for the time limit, prints that and ends at once; so does one that waits in vain for the others to join. A process ends
with `os._exit`: JAX's own way out waits for all others. Goldens lose nothing by that, they are written step by step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from parity.errors import ParityError, UnjudgedError, UsageError

POLL = 0.5
"""Seconds between two looks at the others."""
GRACE = 4 * POLL
"""Seconds that process 0 leaves the others to hear why it ends: without the coordinator JAX aborts them."""
WEEK = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Processes:
    """What was asked for.

    Attributes:
        count, index, coordinator: of `jax.distributed.initialize`; None where JAX is to find them out by itself (TPU
            pods, Slurm, Open MPI, Kubernetes; JAX_COORDINATOR_ADDRESS). timeout: seconds to wait for another process.
    """

    count: int | None = None
    index: int | None = None
    coordinator: str | None = None
    timeout: float = 120.0


def is_first() -> bool:
    """Whether this process is the one that writes; true where it is the only one."""
    return jax.process_index() == 0


def agreed(name: str, value: str | None, timeout: float = 120.0) -> str:
    """What the first process says, in every process: it gives the value, the others None.

    Raises:
        UnjudgedError: the first process did not say it in time.
    """
    if jax.process_count() == 1:
        assert value is not None
        return value
    if value is not None:
        _client().key_value_set(f"parity/{name}", value, allow_overwrite=True)
        return value
    try:
        return str(_client().blocking_key_value_get(f"parity/{name}", int(1000 * timeout)))
    except jax.errors.JaxRuntimeError as error:
        raise UnjudgedError(f"process 0 did not say '{name}' within {timeout:g} s: {_first_line(error)}") from None


@contextlib.contextmanager
def together(asked: Processes | None) -> Iterator[None]:
    """Within it this process is one of several; with None, or where JAX has only this one, nothing is done.

    What stops one process inside (an error, a kill, an interrupt) ends all of them, each with a message on stderr and
    the exit code of the error; that of a process that is merely gone is 125.

    Raises:
        UsageError: JAX cannot tell the processes, or this one has already used its devices.
    """
    if asked is None:
        yield
        return
    with _deadline(asked):
        _join(asked)
    if jax.process_count() == 1:
        yield
        return
    watch = _Watch(_client(), jax.process_index(), jax.process_count(), asked.timeout)
    watch.start()
    try:
        if asked.count not in (None, jax.process_count()):
            raise UsageError(
                f"--processes {asked.count} here, and {jax.process_count()} in process 0: give all the same"
            )
        yield
    except BaseException as error:
        watch.stop(error)
    watch.finish()


def _client() -> Any:
    from jax._src import distributed  # the key-value store has no public name

    return distributed.global_state.client


def _join(asked: Processes) -> None:
    explicit = asked.count is not None
    if explicit and (asked.index is None or not (asked.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"))):
        raise UsageError(
            "--processes N needs --process I, from 0 to N - 1, and --coordinator HOST:PORT (or JAX_COORDINATOR_ADDRESS)"
        )
    if jax.distributed.is_initialized():
        raise UsageError("--processes: jax.distributed is initialised already; leave the option out")
    # On the CPU the devices of several processes work together by gloo alone.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Programs in flight at once may meet their collectives in another order in each process.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    limit = int(asked.timeout) + 60  # the deadline of `together` comes first, and says more
    try:
        jax.distributed.initialize(
            asked.coordinator,
            asked.count,
            asked.index,
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=limit,
            heartbeat_timeout_seconds=limit,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"--processes: {_first_line(error)}; where JAX cannot tell the processes by itself give --processes N "
            "--process I --coordinator HOST:PORT"
        ) from None


@contextlib.contextmanager
def _deadline(asked: Processes) -> Iterator[None]:
    """Within it the others must join; JAX would abort this process."""
    joined = threading.Event()

    def wait() -> None:
        if not joined.wait(asked.timeout):
            count = "the other" if asked.count is None else f"all {asked.count}"
            at = asked.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS") or "the coordinator"
            _end(f"{count} processes did not meet at {at} within {asked.timeout:g} s (--process-timeout)", 125)

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        joined.set()


@dataclass
class _Watch:
    """Says that its process is alive, and listens to the others."""

    client: Any
    index: int
    count: int
    timeout: float
    done: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        heard = {i: (0, time.monotonic()) for i in range(self.count) if i != self.index}
        beats = 0
        while not self.done.wait(POLL) and not self.stopping:
            beats += 1
            try:
                self.client.key_value_set(f"parity/alive/{self.index}", str(beats), allow_overwrite=True)
                stopped = dict(self.client.key_value_dir_get("parity/stopped"))
                alive = {int(k.rsplit("/", 1)[1]): int(v) for k, v in self.client.key_value_dir_get("parity/alive")}
            except jax.errors.JaxRuntimeError:
                if not self.done.is_set() and not self.stopping:
                    _end("process 0, which coordinates the others, is gone", 125)
                return
            for key, said in stopped.items():
                code, _, text = said.partition(" ")
                if not self.stopping:
                    _end(f"process {key.rsplit('/', 1)[1]} stopped: {text}", int(code), self._grace)
            for i, (last, when) in heard.items():
                if alive.get(i, 0) != last:
                    heard[i] = (alive.get(i, 0), time.monotonic())
                elif time.monotonic() - when > self.timeout and not self.stopping:
                    _end(f"process {i} has not been heard of for {self.timeout:g} s (--process-timeout)", 125)

    @property
    def _grace(self) -> float:
        return GRACE if self.index == 0 else 0.0

    def finish(self) -> None:
        """Wait until all others have finished too, and watch no more: one that has ended looks like one that died."""
        self.client.wait_at_barrier("parity/finished", 1000 * WEEK)
        self.done.set()

    def stop(self, error: BaseException) -> None:
        """Tell the others what stopped this process, and end it."""
        self.stopping = True
        if isinstance(error, ParityError):
            code, text = error.exit_code, str(error)
        elif isinstance(error, KeyboardInterrupt):
            code, text = 130, "interrupted"
        elif isinstance(error, jax.errors.JaxRuntimeError):
            code, text = 125, f"a program of all processes broke off, as where one of them died: {_first_line(error)}"
        else:
            traceback.print_exc()
            code, text = 125, f"this is a defect of parity: {type(error).__name__}: {error}"
        print(f"parity: {text}", file=sys.stderr, flush=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.client.key_value_set(f"parity/stopped/{self.index}", f"{code} {text}", allow_overwrite=True)
        _end("", code, self._grace)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _end(text: str, code: int, grace: float = 0.0) -> None:
    if text:
        print(f"parity: {text}", file=sys.stderr, flush=True)
    time.sleep(grace)
    sys.stdout.flush()
    os._exit(code)
