"""Stages outside the loop, loaded once for a whole run of the tests and shared by all comparisons in this process."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from parity.paths.live import InProcess
from parity.paths.plan import VAE_INPUT, Array, Role, Spec, Start
from parity.runs.request import Request
from parity.runs.sides import source_of
from parity.settings import parse

if TYPE_CHECKING:
    from parity.paths.stage_side import Runner

OPENERS = InProcess()
_UNREAD = {VAE_INPUT: Array(np.zeros(1, np.float32), "float32")}
"""A decoder is loaded before anybody looks at what it is given."""


@functools.cache
def loaded_stage(role: Role, model: str, stage: str, part: str = "", *settings: str) -> Runner:
    """The very runner that a comparison through `OPENERS` meets; a fault planted into it is the candidate's own."""
    chosen = parse("torch" if role == "reference" else "torchax", settings)
    request = Request(model, parse("torch"), parse("torchax"), stages=(stage,), part=part)
    spec = Spec(role=role, source=source_of(request), settings=chosen.as_text(), start=Start(_UNREAD))
    return OPENERS.of(role).open(spec).loaded
