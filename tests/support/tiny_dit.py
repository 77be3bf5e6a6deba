"""A model that parity has never seen, as its users would write it: a small DiT in torch, and a port of it in JAX."""

from __future__ import annotations

from pathlib import Path

REFERENCE = """
import torch
from torch.nn import functional as F

from parity.port import Port


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mod = torch.nn.Linear(width, 3 * width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)

    def forward(self, x, temb):
        shift, scale, gate = self.mod(F.silu(temb))[:, None].chunk(3, dim=-1)
        h = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(h).chunk(3, dim=-1))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + gate * self.proj(h)


class TinyDiT(torch.nn.Module):
    def __init__(self, channels=4, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Conv2d(channels, width, 1)
        self.time = torch.nn.Linear(1, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.out = torch.nn.Linear(width, channels)

    def forward(self, hidden_states, timestep):
        x = self.embed(hidden_states)
        grid = x.shape[2:]
        x, temb = x.flatten(2).transpose(1, 2), self.time(timestep[:, None])
        for block in self.blocks:
            x = block(x, temb)
        return self.out(x).transpose(1, 2).unflatten(2, grid)


def inputs():
    g = torch.Generator().manual_seed(1)
    return {"hidden_states": torch.randn(1, 4, 6, 8, generator=g), "timestep": torch.tensor([0.7])}


def reference(case):
    return Port(module=TinyDiT(), inputs=inputs())
"""

PORT = """
import jax
import jax.numpy as jnp
from model import TinyDiT

from parity.port import Port, tap

SETTINGS = {"attention.softmax_dtype": "float32"}


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def block(w, name, x, temb):
    tap(name + ":in.x", x)
    tap(name + ":in.temb", temb)
    shift, scale, gate = jnp.split(linear(w, name + ".mod", jax.nn.silu(temb))[:, None], 3, axis=-1)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    h = (x - mean) / jnp.sqrt(var + 1e-5) * (1 + scale) + shift  # LAYER NORM
    qkv = tap(name + ".qkv", linear(w, name + ".qkv", h))
    q, k, v = (t.reshape(*t.shape[:2], 2, -1) for t in jnp.split(qkv, 3, axis=-1))
    a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(1.0 * q.shape[-1]), axis=-1)
    h = jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(x.shape)
    return tap(name, x + gate * tap(name + ".proj", linear(w, name + ".proj", h)))


def forward(w, inputs):
    x = inputs["hidden_states"]  # [1, H, W, C]
    x = tap("embed", x @ w["embed.weight"][:, :, 0, 0].T + w["embed.bias"])
    grid = x.shape[1:3]
    x, temb = x.reshape(1, -1, x.shape[-1]), tap("time", linear(w, "time", inputs["timestep"][:, None]))
    for i in range(2):
        x = block(w, f"layers.{i}", x, temb)
    return linear(w, "out", x).reshape(1, *grid, -1)


def build(case):
    w = {k.replace("blocks", "layers"): jnp.asarray(v.numpy()) for k, v in TinyDiT().state_dict().items()}
    rename = {r"layers\\.(\\d+)(\\..+)?": r"blocks.\\1\\2"}
    return Port(call=forward, weights=w, layout="channels_last", rename=rename)
"""


def write(folder: Path, port: str = PORT, name: str = "port.py") -> tuple[str, str]:
    """Write both files; returns what --reference-port and --port are given."""
    (folder / "model.py").write_text(REFERENCE)
    (folder / name).write_text(port)
    return f"{folder / 'model.py'}:reference", f"{folder / name}:build"
