"""The last level of the descent: the operations of the module in which a divergence is born.

The module is run alone on the reference's inputs, on both sides eagerly, and the outputs of its operations are compared
in order. Cost: two runs of the module on the reference and one on the candidate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from parity.compare.operations import Parting, Reduced, first_parting
from parity.compare.reason import Note
from parity.compare.result import Result
from parity.golden.records import LOOP
from parity.hooks import reduce_torch
from parity.hooks.calls import Call, calls_of
from parity.hooks.operations import Operations
from parity.hooks.sites import ATTENTION
from parity.paths.local import rerun
from parity.paths.loop import State, denoise, prepare
from parity.paths.perturb import perturbed
from parity.paths.reference import TorchBackend
from parity.runs.pairing import Pairing, Say

SEED = 104_729


def operations_of_origin(result: Result, pairing: Pairing, state: State, say: Say) -> Result:
    """Add a note that names the first operation in which the origin's module parts; the result as it is where its
    origin is no module of its own, or where the operations cannot be compared.

    Args:
        state: what the reference started the origin's step from.
    """
    origin = result.origin
    side = pairing.reference.side
    if origin is None or origin.birth != "module" or origin.key.module in ("", LOOP):
        return result
    if origin.key.module.rpartition(".")[2] == ATTENTION or not side.settings.exact:
        return result
    if not isinstance(side.backend, TorchBackend):
        return result
    from parity.paths.candidate_local import LocalModules

    say(f"operations of {origin.key.module}")
    call = _captured(pairing, origin.key.step, origin.key.module, origin.key.branch, origin.key.call, state)
    modules = LocalModules(pairing.candidate.side.backend)  # type: ignore[arg-type]
    if call is None or not modules.has(call.module):
        return result
    module = side.backend.model.get_submodule(call.module)
    try:
        with side.backend.scope():
            ours, exact = (_operations(module, call, dtype) for dtype in (None, torch.float64))
            with perturbed(module, SEED, side.backend.device):
                moved = _operations(module, call, None)
        theirs = [Reduced(o.name, o.shape, o.reduced) for o in modules.operations(call)]
    except Exception as error:  # a port's own code, run in a way it was not written for
        note = f"the operations of {call.module} could not be compared: {type(error).__name__}: {error}"
        return replace(result, notes=(*result.notes, Note(note.splitlines()[0])))
    # Casting to float64 comes before the module's own operations.
    parting = first_parting(ours, [exact[-len(ours) :], moved], theirs) if ours else None
    if parting is None:
        note = f"{call.module}: run eagerly, each of its {len(ours)} operations agrees: it is how they are compiled"
    else:
        note = _sentence(call.module, parting, len(ours))
    return replace(result, notes=(*result.notes, Note(note)))


def _sentence(module: str, parting: Parting, count: int) -> str:
    where = f"operation {parting.index + 1} of {count} of {module}, {parting.name} {list(parting.shape)}"
    if parting.other or math.isnan(parting.ratio):
        return f"{where}: the candidate calls {parting.other} there"
    return f"{where}, is the first to differ: relative L2 {parting.rel_l2:.2e}, {parting.ratio:.0f} x its floor"


def _captured(pairing: Pairing, step: int, module: str, branch: str, number: int, state: State) -> Call | None:
    """The reference's call of the origin."""
    side = pairing.reference.side
    backend = side.backend
    assert isinstance(backend, TorchBackend)
    again = prepare(side.with_fresh_sampler())
    again.continue_from(step, state)
    found: list[Call] = []

    def handle(call: Call) -> None:
        if call.number == number and branch in call.branches and not found:
            found.append(call)

    with backend.listening(lambda branches: calls_of(backend.model, [module], branches, handle)):
        for _ in denoise(again, None, first=step, stop=step + 1):
            pass
    return found[0] if found else None


def _operations(module: torch.nn.Module, call: Call, dtype: torch.dtype | None) -> list[Reduced]:
    seen = Operations(reduce_torch.reduce)
    with seen.watching():
        rerun(module, call, dtype)
    reduced = reduce_torch.to_host_many([o.reduced for o in seen.found])
    return [Reduced(o.name, o.shape, sketch) for o, (_, sketch) in zip(seen.found, reduced, strict=True)]
