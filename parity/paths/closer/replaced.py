"""A side's steps with modules replaced by another side's, whose activations reach it as records; see `graft`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.errors import UsageError
from parity.golden.records import LOOP, Key, Record, StepRecords
from parity.hooks.graft import Place
from parity.hooks.reduce.transfer import to_numpy
from parity.paths.closer.graft import Activations, Grafted, activations_of, graft
from parity.paths.loaded import STAGE, Loaded
from parity.paths.loop import Loop, denoise
from parity.paths.plan import GIVEN, LEFT_OUT, Array, Plan
from parity.paths.worker.trees import tensor


def giving(loaded: Loaded, modules: Sequence[str], steps: Iterable[StepRecords]) -> Iterator[StepRecords]:
    """A side's steps, and then what some modules gave in the last of them.

    Raises:
        UsageError: it runs no torch module.
    """
    backend = loaded.backend
    if backend.eager is None:
        raise UsageError(f"a reference on '{backend.name}' has no modules to take: it needs torch")
    with activations_of(backend.eager, modules) as given:
        yield from steps
    yield StepRecords(GIVEN, _records(given))


class Replacing:
    """Runs steps of a loaded side with modules replaced.

    Attributes:
        caller: calls the transformer so, once it was taught what the modules lack.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.caller: Grafted | None = None

    def steps(self, plan: Plan, loop: Loop, first: int, stop: int) -> Iterator[StepRecords]:
        """The steps of a plan that has `taught` or `replaced`.

        Args:
            loop: standing before the first.

        Raises:
            UsageError: the side runs no torch module.
        """
        modules = tuple(dict.fromkeys(r.key.module for r in plan.taught))
        if self.caller is None or (modules and self.caller.modules != modules):
            self.caller = graft(self.loaded.backend, modules)
        caller = self.caller
        caller.replaced = frozenset(plan.replaced or ())
        loop = replace(loop, side=replace(loop.side, caller=caller))
        with caller.learning(_tensors(plan.taught)) if plan.taught else contextlib.nullcontext():
            yield from denoise(loop, None, first=first, stop=stop)
        self.loaded.reached.require()
        if plan.taught:
            lines = "\n".join(f"{module}={why}" for module, why in caller.left_out.items())
            yield StepRecords(GIVEN, (Record(Key(STAGE, GIVEN, "", f"{LOOP}:{LEFT_OUT}"), "scalar", value=lines),))


def _records(given: Activations) -> tuple[Record, ...]:
    """Activations as records: they cross a process border so."""
    return tuple(
        Record(
            Key(STAGE, GIVEN, branch, f"{module}:{number}", call),
            "tensor",
            tuple(x.shape),
            str(x.dtype).removeprefix("torch."),
            value=to_numpy(x),
        )
        for branch, places in given.items()
        for (module, call, number), x in places.items()
    )


def _tensors(records: Sequence[Record]) -> dict[str, dict[Place, torch.Tensor]]:
    """The activations that such records hold."""
    made: dict[str, dict[Place, torch.Tensor]] = {}
    for r in records:
        place = (r.key.module, r.key.call, int(r.key.port))
        made.setdefault(r.key.branch, {})[place] = tensor(Array(np.asarray(r.value), r.dtype))
    return made
