"""A text encoder or a VAE's decoder without its weights: the program of its largest call, for devices not here.

Problem. What a stage does around its trunk (tiles, chunks of frames, a prompt's template) decides what the trunk is
called with, and that is known only once the stage runs.

How. The stage's module is made of its config on torch's meta device, and run there with the settings' own tiles and
slices: nothing is computed, and each call of the trunk is noted. The largest is then lowered by the candidate's own
code. An encoder is called once for a prompt; it need not run to the end.

Cost. The run on the meta device: seconds. No weight is made or read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.attach import callable_modules
from parity.hooks.sites import plan_sites
from parity.models.family import Family, require_meaning
from parity.models.spec import Case
from parity.models.text import load_encoder
from parity.models.vae import load_decoder
from parity.paths.jax.program import Shell, apart
from parity.paths.jax.stage import TorchaxStage
from parity.paths.jax.tracing import scoped, to_jax
from parity.paths.plan import LOOP_STAGE, VAE_STAGE
from parity.paths.stages.known import encoder_stage, vae_stage
from parity.paths.stages.stage import Stage
from parity.settings import Settings
from parity.tpu.abstract import abstract_devices, require_place

Call = tuple[list[torch.Tensor], Shell]
"""The tensors that a trunk is called with, and the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractStage:
    """A stage whose largest call can be lowered and not run; see `parity.tpu.abstract.Compilable`.

    Attributes:
        runner: the candidate's own. call: the largest. calls: how many there are. frames: row frames, by name.
        modules: paths of those that can be observed.
    """

    runner: TorchaxStage
    call: Call
    calls: int
    frames: Mapping[str, tuple[np.ndarray, np.ndarray]]
    modules: frozenset[str]

    @property
    def devices(self) -> int:
        """How many the program is for."""
        return self.runner.devices.size

    def lowered(self, sites: str) -> jax.stages.Lowered:
        """The program of the call in which these sites are observed; `none`: it is the unobserved one.

        Raises:
            UsageError: a glob names no module.
        """
        runner, (tensors, shell) = self.runner, self.call
        plan = None if sites == "none" else plan_sites(self.modules, sites)
        devices = runner.devices
        given = [devices.put(to_jax(x), devices.replicated) for x in tensors]
        frames = {name: (runner.put(index), runner.put(weight)) for name, (index, weight) in self.frames.items()}
        with scoped(runner.root):
            return runner.lowered(shell, given, frames, plan)


def abstract_stage(
    name: str, family: Family, case: Case, settings: Settings, devices: Sequence[jax.Device]
) -> AbstractStage:
    """A stage on the first of these devices, as many as the settings' mesh has.

    Args:
        name: `vae`, or the folder of a text encoder.

    Raises:
        UsageError: the model has no such stage, or a setting has no meaning for it.
    """
    require_meaning(family, case, settings)
    stage, inputs = _bare(name, family, case)
    require_place(settings, name, stage.place or stage.name)
    runner = TorchaxStage(stage, settings, abstract_devices(settings, devices))
    calls = _calls(runner, inputs)
    largest = max(calls, key=lambda call: sum(math.prod(x.shape) for x in call[0]))
    frames = {name: (f.index, f.weight) for name, f in stage.frames(inputs).items()}
    modules = frozenset(callable_modules(runner.root))
    return AbstractStage(runner=runner, call=largest, calls=len(calls), frames=frames, modules=modules)


def _bare(name: str, family: Family, case: Case) -> tuple[Stage, Mapping[str, torch.Tensor]]:
    """The stage, made of its config alone, and what it is given."""
    if name == VAE_STAGE:
        latents = family.stage2(case, torch.zeros(case.latent_shape, device="meta"))
        return replace(vae_stage(case), load=partial(load_decoder, case, bare=True)), {"latents": latents}
    encoders = {e.part: e for e in family.text(case).encoders}
    if name not in encoders:
        known = ", ".join((LOOP_STAGE, *encoders, VAE_STAGE))
        raise UsageError(f"--stage '{name}': '{case.name}' has {known}")
    encoder = encoders[name]
    tokens = next(iter(encoder.tokens.values()))
    return replace(encoder_stage(case, encoder), load=partial(load_encoder, case, encoder, bare=True)), tokens


class _HeardError(Exception):
    """An encoder was called: no more of it is needed."""


def _calls(runner: TorchaxStage, inputs: Mapping[str, torch.Tensor]) -> list[Call]:
    """What the trunk is called with when the stage runs on torch's meta device."""
    trunk = runner.root.get_submodule(runner.stage.trunk)
    goes_on = all(x.is_meta for x in inputs.values())
    calls: list[Call] = []
    own = trunk.forward

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(apart((args, kwargs)))
        if not goes_on:
            raise _HeardError
        return own(*args, **kwargs)

    trunk.forward = noted
    try:
        with torch.no_grad():
            runner.root(**inputs)
    except _HeardError:
        pass
    finally:
        trunk.__dict__.pop("forward", None)
    return calls
