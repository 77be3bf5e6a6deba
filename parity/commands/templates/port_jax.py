"""A port for `parity run --port THIS_FILE:build`: what parity calls in place of its own candidate.

As it stands: parity run --reference-port THIS_FILE:reference --port THIS_FILE:build
For yours, replace `load` and `forward`, and name values as the reference names its modules (`rename` maps the rest).
With --model FOLDER the reference is parity's own, and `reference` below is not needed. See help(parity.port.Port).
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from parity.port import Case, Port, tap

# The settings that this port knows, with its own values; `case.settings["dtype"]` reads the value of the run.
SETTINGS = {"dtype": "float32"}


def load(case: Case) -> dict[str, jax.Array]:
    """Your checkpoint, from `case.folder`: any nest of arrays."""
    return {k: jnp.asarray(v.numpy(), case.settings["dtype"]) for k, v in Net().state_dict().items()}


def forward(weights: Any, inputs: Any) -> jax.Array:
    """One branch's prediction from the transformer's arguments by name. parity compiles it; do not jit it."""
    x = inputs["hidden_states"]  # [1, tokens, channels]
    for i in range(2):
        tap(f"layers.{i}:in.input", x)  # `module:port`: an input
        x = jnp.tanh(x @ weights[f"blocks.{i}.weight"].T + weights[f"blocks.{i}.bias"])
        x = tap(f"layers.{i}", x)  # an output; `tap` returns it unchanged
    return x


def build(case: Case) -> Port:
    """What --port names."""
    return Port(call=forward, weights=load(case), rename={r"layers\.(\d+)": r"blocks.\1"})
