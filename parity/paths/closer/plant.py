"""Steps of a reference whose model has a planted fault; see `parity.hooks.plant`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.errors import UsageError
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.values import value_record
from parity.hooks.plant import KINDS, Planted, planted
from parity.paths.loaded import STAGE
from parity.paths.loop import Loop, denoise
from parity.paths.plan import PLANTED, Plan


def planted_steps(loop: Loop, plan: Plan, first: int, stop: int) -> Iterator[StepRecords]:
    """The planned sites, and how often the fault changed something.

    Inputs are seen as they were given, before the fault changes them.

    Raises:
        UsageError: the side does not run a torch module eagerly.
    """
    backend = loop.side.backend.eager
    if backend is None:
        raise UsageError(f"a reference on '{loop.side.backend.name}' can have no planted fault: it needs torch")
    model = backend.model
    kind = next(k for k in KINDS if k.name == plan.plant)
    done: list[Planted] = []

    @contextlib.contextmanager
    def listen(branches: tuple[str, ...]) -> Iterator[None]:
        with planted(model, kind) as one:
            done.append(one)
            yield

    with backend.listening(listen):
        for step in denoise(loop, plan.sites, first=first, stop=stop):
            count = np.asarray(sum(one.count for one in done))
            record = value_record(Key(STAGE, step.step, "", f"{LOOP}:{PLANTED}"), count, "int64")
            yield replace(step, records=(*step.records, record))
