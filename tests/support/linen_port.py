"""A model in torch and its port in Flax linen, whose layers are scanned and checkpointed."""

from __future__ import annotations

from pathlib import Path

REFERENCE = """
import torch

from parity.port import Port


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.lin(self.norm(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.proj_in, self.proj_out = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, hidden_states):
        x = self.proj_in(hidden_states)
        for block in self.blocks:
            x = block(x)
        return self.proj_out(x)


def reference(case):
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 96).reshape(1, 12, 8)})
"""

PORT = '''
"""A port in Flax linen: modules are observed by linen's names, the layers of a scan by their numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from model import Net as Torch

from parity.port import Case, Port


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + jnp.tanh(nn.Dense(16, name="lin")(nn.LayerNorm(1e-5, name="norm")(x))), None


class Net(nn.Module):
    def setup(self) -> None:
        scanned = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        self.proj_in, self.layers, self.proj_out = nn.Dense(16), scanned(), nn.Dense(8)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        return self.proj_out(self.layers(self.proj_in(hidden_states), None)[0])


def build(case: Case) -> Port:
    held = {name: jnp.asarray(x.numpy()) for name, x in Torch().state_dict().items()}

    def dense(name: str) -> dict[str, jax.Array]:
        return {"kernel": held[name + ".weight"].T, "bias": held[name + ".bias"]}

    def block(i: int) -> dict[str, dict[str, jax.Array]]:
        norm = {"scale": held[f"blocks.{i}.norm.weight"], "bias": held[f"blocks.{i}.norm.bias"]}
        return {"norm": norm, "lin": dense(f"blocks.{i}.lin")}

    layers = jax.tree.map(lambda *x: jnp.stack(x), *(block(i) for i in range(3)))
    net, weights = Net(), {"proj_in": dense("proj_in"), "layers": layers, "proj_out": dense("proj_out")}
    return Port(
        call=lambda weights, inputs: net.apply({"params": weights}, **inputs),
        module=net,
        weights=weights,
        rename={r"layers\\.(\\d+)(\\..+)?": r"blocks.\\1\\2"},
    )
'''


def write(folder: Path, port: str = PORT) -> tuple[str, str]:
    """Write both files; returns what --reference-port and --port are given."""
    (folder / "model.py").write_text(REFERENCE)
    (folder / "port.py").write_text(port)
    return f"{folder / 'model.py'}:reference", f"{folder / 'port.py'}:build"
