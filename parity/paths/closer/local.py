"""Local errors: each module run on the reference's own inputs, so that nothing is inherited.

While the reference runs, each call of a target module is handed over with its inputs and output; the candidate's module
of the same name is run on those inputs (compiled alone), and the reference's own is run again in float64, under Monte
Carlo rounding and, where dtypes are in play, in float32, in the candidate's dtype and operation by operation. So local
floors are measured as those of the free run are, module by module, and are tighter by what rounding grows along a
network.

Cost: five to eight runs of each target module; memory of one module's weights and activations more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from parity.errors import UsageError
from parity.floors import Floors
from parity.hooks.calls import Call, calls_of, retyped
from parity.hooks.perturb import perturbed
from parity.hooks.reduce.transfer import TorchReducer, torch_records
from parity.hooks.rerun import rerun
from parity.hooks.rows import RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap, single_output
from parity.hooks.torchtools import mapped
from parity.paths.closer.stepwise import stepwise
from parity.paths.floors import SEEDS
from parity.paths.loaded import STAGE, Loaded
from parity.paths.loop import State, denoise, prepare
from parity.records import Record, StepRecords
from parity.settings import Settings

Take = Callable[[Call, StepRecords], None]
"""Takes one call of the reference, with its inputs in the candidate's dtypes, and the truth's records of its outputs,
with their local floors."""

Dtypes = Mapping[str, torch.dtype]
"""Input site (`module:in.name`) -> the dtype that the candidate has there, where its working dtype is another."""


def local_calls(side: Loaded, step: int, state: State, targets: Sequence[str], take: Take, dtypes: Dtypes) -> None:
    """Run one step of a loaded reference and hand over each call of the targets.

    Args:
        state: what the step starts from. dtypes: empty where both sides work in one dtype.

    Raises:
        UsageError: it is not run by torch.
    """
    again = prepare(side.with_fresh_sampler())
    again.continue_from(step, state)
    backend = side.backend.eager
    if backend is None:
        raise UsageError(f"a reference on '{side.backend.name}' has no modules to call: it needs torch")

    def handle(call: Call) -> None:
        module = backend.model.get_submodule(call.module)
        theirs = retyped(module, call, dtypes) if dtypes else call
        take(theirs, truth_of(backend, module, call, theirs, step, side.settings))

    def listen(branches: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
        return calls_of(backend.model, targets, branches, handle)

    with backend.listening(listen):
        for _ in denoise(again, None, first=step, stop=step + 1):
            pass


class Ordered(Protocol):
    """In which order token rows stand, and which count.

    Attributes:
        rules: by branch. frames: by branch and name, (index, weight) of tokens; see `parity.hooks.tap`.
    """

    @property
    def rules(self) -> Mapping[str, RowRule]: ...

    @property
    def frames(self) -> Mapping[str, Mapping[str, tuple[Any, Any]]]: ...


class Placed(Ordered, Protocol):
    """Who runs modules in torch: the same, and where its tensors are."""

    @property
    def device(self) -> torch.device: ...


def truth_of(
    backend: Placed,
    module: torch.nn.Module,
    call: Call,
    theirs: Call,
    step: int,
    settings: Settings,
    stage: str = STAGE,
) -> StepRecords:
    """What the module gives in float32 (what it gave, where it is exact), with the floors of this call."""
    exact, chip = settings.exact, settings.text("tpu")

    def seen(output: Any) -> list[Record]:
        return observe(backend, call, output, step, stage)

    given = seen(call.output)
    wide = None if exact else torch.float32
    truth = given if exact else seen(rerun(module, call, wide))
    floors = Floors(truth)
    floors.add(given)
    floors.add(seen(rerun(module, call, torch.float64)))
    for seed in range(SEEDS):
        with perturbed(module, 7_919 * (seed + 1), chip, inputs=True):
            floors.add(seen(rerun(module, call, wide)))
    if theirs is not call:
        floors.add(seen(rerun(module, theirs, _coarsest(theirs), inputs=False)))
        with stepwise():
            floors.add(seen(rerun(module, theirs, _coarsest(theirs), inputs=False)))
    elif not exact:
        with stepwise():
            floors.add(seen(rerun(module, call, None)))
    return StepRecords(step, tuple(truth), floors.done())


def _coarsest(call: Call) -> torch.dtype:
    """The narrowest floating dtype among a call's inputs: that of the weights it meets."""
    found = [torch.float32]
    mapped(lambda x: found.append(x.dtype) if x.is_floating_point() else None, (call.args, dict(call.kwargs)))
    return min(found, key=lambda dtype: dtype.itemsize)


@dataclass(frozen=True)
class Rows:
    """See `Ordered`; frames are CPU tensors."""

    rules: Mapping[str, RowRule]
    frames: Mapping[str, Mapping[str, tuple[Any, Any]]]


def observe(backend: Ordered, call: Call, output: Any, step: int, stage: str = STAGE) -> list[Record]:
    """Records of a module's outputs, under the keys that the free run gives them."""
    plan = SitePlan("all", (), frozenset({call.module}))
    tap = Tap(plan, TorchReducer(), backend.rules[call.branches[0]], call.branches, backend.frames)
    tap.see(call.module, call.number, "out", single_output(output))
    return torch_records(tap.entries, stage, step)
