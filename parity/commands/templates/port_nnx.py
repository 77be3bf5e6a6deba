"""A port for `parity run --candidate-path THIS_FILE:build`: a model in Flax NNX, compiled by parity.

As it stands: parity run --reference-path THIS_FILE:reference --candidate-path THIS_FILE:build
For yours, build your module in `build`: it is observed by its attributes' names (`rename` maps them onto the
reference's). With --model FOLDER the reference is parity's own. Protocol: help(parity.port.Port).
"""

import jax
import jax.numpy as jnp
import torch
from flax import nnx

from parity.port import Case, Port

# The settings that this port knows, with its own values; `case.settings["dtype"]` reads the value of the run.
SETTINGS = {"dtype": "float32"}


class Layer(nnx.Module):
    def __init__(self, weight: jax.Array, bias: jax.Array) -> None:
        self.weight, self.bias = nnx.Param(weight), nnx.Param(bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.weight[...].T + self.bias[...])


class Flax(nnx.Module):
    def __init__(self, weights: dict[str, jax.Array]) -> None:
        self.layers = nnx.List([Layer(weights[f"blocks.{i}.weight"], weights[f"blocks.{i}.bias"]) for i in range(2)])

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def build(case: Case) -> Port:
    """What --candidate-path names: the module, with the checkpoint's values (`case.folder`) put into it."""
    dtype = case.settings["dtype"]
    module = Flax({name: jnp.asarray(x.numpy(), dtype) for name, x in Net().state_dict().items()})
    graph, state = nnx.split(module)
    return Port(
        call=lambda state, inputs: nnx.merge(graph, state)(**inputs),
        module=module,
        weights=state,
        rename={r"layers\.(\d+)(\..+)?": r"blocks.\1\2"},
    )


class Block(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(input))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(8, 8) for _ in range(2))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states


def reference(case: Case) -> Port:
    """What --reference-path names: a torch module, with inputs where there is no --model."""
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 128).reshape(1, 16, 8)})
