"""Another model that parity has never seen, with prompt tokens and their mask: in torch, and its port in Flax NNX."""

from __future__ import annotations

from pathlib import Path

REFERENCE = """
import torch
from torch.nn import functional as F

from parity.port import Port

SETTINGS = {"attention.mask": "exact"}


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)

    def forward(self, x, keep):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mask = None if keep is None else keep[:, None, None].expand(-1, -1, q.shape[2], -1)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Net(torch.nn.Module):
    def __init__(self, masked=True, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.masked = masked
        self.patch = torch.nn.Linear(4, width)
        self.text = torch.nn.Linear(12, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(3))
        self.out = torch.nn.Linear(width, 4)

    def forward(self, hidden_states, encoder_hidden_states, encoder_attention_mask):
        grid = hidden_states.shape[2:]
        x = self.patch(hidden_states.flatten(2).transpose(1, 2))
        image, keep = x.shape[1], encoder_attention_mask != 0
        x = torch.cat([x, self.text(encoder_hidden_states)], dim=1)
        keep = torch.cat([keep.new_ones(1, image), keep], dim=1) if self.masked else None
        for block in self.blocks:
            x = block(x, keep)
        return self.out(x[:, :image]).transpose(1, 2).unflatten(2, grid)


def reference(case):
    g = torch.Generator().manual_seed(1)
    given = {"hidden_states": torch.randn(1, 4, 6, 8, generator=g),
             "encoder_hidden_states": torch.randn(1, 16, 12, generator=g),
             "encoder_attention_mask": torch.tensor([[1] * 5 + [0] * 11])}
    return Port(module=Net(case.settings["attention.mask"] == "exact"), inputs=given)
"""

PORT = '''
"""A port in Flax NNX: modules are observed by their own names, nothing is tapped."""

import jax
import jax.numpy as jnp
from flax import nnx
from model import Net as Torch

from parity.port import Case, Port

SETTINGS = {"attention.mask": "none"}


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.proj = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: jax.Array, keep: jax.Array | None) -> jax.Array:
        q, k, v = (t.reshape(*t.shape[:2], 4, -1) for t in jnp.split(self.qkv(self.norm(x)), 3, axis=-1))
        out = jax.nn.dot_product_attention(q, k, v, mask=None if keep is None else keep[:, None, None])
        return x + self.proj(out.reshape(x.shape))


class Net(nnx.Module):
    def __init__(self, masked: bool, width: int, rngs: nnx.Rngs) -> None:
        self.masked = masked
        self.patch, self.text = nnx.Linear(4, width, rngs=rngs), nnx.Linear(12, width, rngs=rngs)
        self.layers = nnx.List([Block(width, rngs) for _ in range(3)])
        self.out = nnx.Linear(width, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.1, deterministic=True, rngs=rngs)

    def __call__(self, hidden_states, encoder_hidden_states, encoder_attention_mask):  # [1, H, W, C], channels last
        x = self.patch(hidden_states.reshape(1, -1, 4))
        x = self.drop(x)
        image, keep = x.shape[1], encoder_attention_mask != 0
        x = jnp.concatenate([x, self.text(encoder_hidden_states)], axis=1)
        keep = jnp.concatenate([jnp.ones((1, image), bool), keep], axis=1) if self.masked else None
        for layer in self.layers:
            x = layer(x, keep)
        return self.out(x[:, :image]).reshape(hidden_states.shape)


def build(case: Case) -> Port:
    net = Net(case.settings["attention.mask"] == "exact", 32, nnx.Rngs(0))
    graph, state = nnx.split(net)
    held = Torch().state_dict()
    for path, leaf in nnx.to_flat_state(state):
        name = ".".join(map(str, path)).replace("layers", "blocks")
        name = name.replace("kernel", "weight").replace("scale", "weight")
        if name in held:  # or it is the state of a generator
            value = jnp.asarray(held[name].numpy())
            leaf.set_value(value.T if path[-1] == "kernel" else value)
    return Port(
        call=lambda state, inputs: nnx.merge(graph, state)(**inputs),
        module=net,
        weights=state,
        layout="channels_last",
        rename={r"layers\\.(\\d+)(\\..+)?": r"blocks.\\1\\2"},
    )
'''


def write(folder: Path, port: str = PORT) -> tuple[str, str]:
    """Write both files; returns what --reference-port and --port are given."""
    (folder / "model.py").write_text(REFERENCE)
    (folder / "port.py").write_text(port)
    return f"{folder / 'model.py'}:reference", f"{folder / 'port.py'}:build"
