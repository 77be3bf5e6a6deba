"""Who writes a recording: one process, whether it is alone or one of several that run the path together.

Every process computes every record (`parity.paths.jax.mesh.Devices.whole`), so the golden of the first of them is the
whole one. Where they go on with an unfinished one, each of them reads it: all must see the same storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter
from parity.golden.records import Provenance, StepRecords


class Writer(Protocol):
    """What a recording writes to."""

    @property
    def steps_done(self) -> tuple[int, ...]:
        """The steps that are written already."""
        ...

    def write_step(self, step: StepRecords) -> None: ...


@contextlib.contextmanager
def writer_of(where: str, told: Provenance, *, resume: bool, overwrite: bool) -> Iterator[Writer]:
    """The golden's writer in the first process; in the others one that writes nothing.

    Raises:
        UsageError: what `GoldenWriter` says, or a process that cannot see what the first one goes on with.
    """
    if len(told.devices) == 1:
        with GoldenWriter(where, told, resume=resume, overwrite=overwrite) as writer:
            yield writer
        return
    from parity.paths.worker.processes import agreed, is_first

    if is_first():
        with GoldenWriter(where, told, resume=resume, overwrite=overwrite) as writer:
            agreed("steps_done", ",".join(map(str, writer.steps_done)))
            yield writer
        return
    done = tuple(int(n) for n in agreed("steps_done", None).split(",") if n)
    if done and tuple(Golden.open(where).steps) != done:
        raise UsageError(f"'{where}' is not what the first process goes on with: all must see the same storage")
    yield Silent(done)


class Silent:
    """The writer of a process that leaves writing to another one."""

    def __init__(self, done: tuple[int, ...]) -> None:
        self.steps_done = done

    def write_step(self, step: StepRecords) -> None:
        return


def require_alike(where: str, held: StepRecords, new: StepRecords) -> None:
    """Refuse to go on with other sites, values or floors, which the provenance does not hold.

    Raises:
        UsageError: naming the option that must be as it was.
    """

    def having(step: StepRecords, what: str) -> set[tuple[str, str, int]]:
        records = (r for r in step.records if what == "sites" or isinstance(r.value, np.ndarray))
        keys = step.floors if what == "floors" else (r.key for r in records)
        return {(key.branch, key.site, key.call) for key in keys}

    for what in ("sites", "values", "floors"):
        ours, theirs = having(held, what), having(new, what)
        if ours != theirs:
            first = min(ours ^ theirs)[1]
            raise UsageError(
                f"{where}: cannot resume, this is another run: its steps hold {len(ours)} {what}, those of this run "
                f"{len(theirs)}, first difference at '{first}'; give --{what} as it was"
            )
