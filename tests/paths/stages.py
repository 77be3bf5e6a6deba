"""Stages outside the loop, loaded once for a whole run of the tests and shared by all comparisons in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from parity.hooks.sites import SitePlan
from parity.paths.live import Host, LiveSide, StageSide
from parity.paths.loaded import Loaded
from parity.paths.loop import Once, denoise
from parity.paths.plan import VAE_INPUT, Array, Role, Spec, Start
from parity.paths.stage import conditions_of, known
from parity.records import OUTSIDE, Record
from parity.runs.request import Request
from parity.runs.sides import source_of
from parity.settings import parse


class _Stages(Host):
    """Loads each stage once: two sides of one differ in what they are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[object, Loaded] = {}

    def open(self, spec: Spec) -> LiveSide:
        side, source = super().open(spec), spec.source
        stage = known(spec) if isinstance(side, StageSide) else None
        if stage is None or stage.replaced or side.port is not None:
            return side
        key = (spec.role, source.model, source.prompt, source.stage, source.part, *spec.settings.items())
        own = self.kept.setdefault(key, self.kept.get(key) or side.loaded)
        beside = {name: conditions_of(given) for name, given in spec.start.beside.items()}
        inputs = replace(own.inputs, conditions=stage.inputs, beside=beside)
        side.loaded = replace(own, network=stage, inputs=inputs)
        return side


OPENERS = _Stages()
_UNREAD = {VAE_INPUT: Array(np.zeros(1, np.float32), "float32")}
"""A decoder is loaded before anybody looks at what it is given."""


@functools.cache
def loaded_stage(role: Role, model: str, stage: str, part: str = "", *settings: str) -> Loaded:
    """The very stage that a comparison through `OPENERS` meets; a fault planted into it is the candidate's own."""
    chosen = parse("torch" if role == "reference" else "torchax", settings)
    request = Request(model, parse("torch"), parse("torchax"), stages=(stage,), part=part)
    spec = Spec(role=role, source=source_of(request), settings=chosen.as_text(), start=Start(_UNREAD))
    return OPENERS.of(role).open(spec).loaded


def run_stage(
    stage: Loaded, inputs: Mapping[str, torch.Tensor], plan: SitePlan | None = None, branch: str = ""
) -> tuple[np.ndarray, tuple[Record, ...]]:
    """What a stage gives for a branch's inputs, and its records."""
    walk = Once(replace(stage, inputs=replace(stage.inputs, conditions={branch: inputs})))
    (step,) = denoise(walk, plan, first=OUTSIDE)
    ((_, output),) = walk.outputs.items()
    return output.values, step.records
