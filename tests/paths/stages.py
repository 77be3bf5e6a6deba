"""Stages outside the loop, loaded once for a whole run of the tests and shared by all comparisons in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from parity.hooks.sites import SitePlan
from parity.paths.live import InProcess
from parity.paths.loaded import Loaded
from parity.paths.loop import Once, denoise
from parity.paths.plan import STAGES_STEP, VAE_INPUT, Array, Role, Spec, Start
from parity.records import Record
from parity.runs.request import Request
from parity.runs.sides import source_of
from parity.settings import parse

OPENERS = InProcess()
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
    (step,) = denoise(walk, plan, first=STAGES_STEP)
    ((_, output),) = walk.outputs.items()
    return output.values, step.records
