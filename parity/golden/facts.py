"""What a side is about to run with, as numpy and plain data: read before any forward, compared by preflight.

Two sides never share more than this before they run. It crosses a process border as a record does, and holds no weight
itself, only its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from parity.golden.records import Provenance


@dataclass(frozen=True, slots=True)
class Schedule:
    """A side's schedule, as it will be walked.

    Attributes:
        timesteps: float64 [steps].
        sigmas: float64 [steps + 1], the standard deviation of the noise before each step and after the last.
        step_index: the scheduler's own step counter before the first step; None is what it should be.
        end: what the last sigma should be.
    """

    timesteps: np.ndarray
    sigmas: np.ndarray
    step_index: int | None
    end: float = 0.0


NO_SCHEDULE = Schedule(np.zeros(0), np.zeros(0), None)
"""Of a stage outside the loop."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A side before its first forward.

    Attributes:
        weights: parameter name -> (shape, content fingerprint of its values widened to float32 or wider).
        dtypes: parameter name -> dtype the path computes with.
        inputs: `cond.encoder_hidden_states` -> values, float32. tables: rotary tables by name.
        noise: initial latents, float32. schedule: timesteps, sigmas, the scheduler's step counter; neither for a stage
            outside the loop.
        own: whether it is a port, which may name its parameters as it likes.
        encoded: whether its embeddings are those of its own text stage, which has been judged.
        placement: how the weights lie on the devices, in one line; empty where there is nothing to say.
        provenance: of its records. grid: frames, height and width of the image tokens; None where they have no order.
        dtype: it works in. checks: (name, verdict, detail) of what is to be known of its inputs or its port.
        input_dtypes: of `inputs` and `tensors`. tensors: a reference port's own inputs by argument, widened.
        cannot_call: why its modules cannot be called one at a time; empty where they can.
        lacks: setting -> why it has no meaning for this model.
        compiled: whether a compiler makes one program of its calls, which is another where they are observed.
        trunk: the child of its module that holds the blocks; empty where the module itself does.
    """

    weights: Mapping[str, tuple[tuple[int, ...], str]]
    dtypes: Mapping[str, str]
    inputs: Mapping[str, np.ndarray]
    tables: Mapping[str, np.ndarray]
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    schedule: Schedule = NO_SCHEDULE
    own: bool = False
    encoded: bool = False
    placement: str = ""
    provenance: Provenance | None = None
    grid: tuple[int, int, int] | None = None
    dtype: str = "float32"
    checks: tuple[tuple[str, str, str], ...] = ()
    input_dtypes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    cannot_call: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    trunk: str = ""
