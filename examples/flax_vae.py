"""A video decoder ported to Flax: latents [N, T, H, W, C], frames last where torch has them first.

The torch decoder (`Decoder`) has what such decoders have: a causal convolution in time, a group norm, attention over
all positions of all frames, and an upsampling. `FlaxDecoder` computes the same with channels last. Compare them:

    import parity
    from flax_vae import Decoder, FlaxDecoder, SCALING

    decoder = Decoder()
    parity.assert_parity(decoder, FlaxDecoder(decoder.state_dict()), latents / SCALING, layout="channels_last")

`frame_wise=True` is a fault that real ports have: attention that sees one frame at a time. A latent that was never
divided by `SCALING` is another.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import torch
from flax import nnx
from torch.nn import functional

SCALING = 0.476986
"""What latents are divided by before they are decoded."""
LATENT, WIDTH, GROUPS = 4, 8, 2


class Attention(torch.nn.Module):
    """Attention over all positions of all frames."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(attended).transpose(1, 2).reshape(x.shape)


class Decoder(torch.nn.Module):
    """Latents [N, C, T, H, W] to frames [N, 3, T, 2H, 2W]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv_in = torch.nn.Conv3d(LATENT, WIDTH, 3)
        self.norm = torch.nn.GroupNorm(GROUPS, WIDTH)
        self.attention = Attention()
        self.conv_out = torch.nn.Conv3d(WIDTH, 3, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        # Causal: a frame sees itself and the two before it; the first is repeated.
        x = torch.cat([latents[:, :, :1]] * 2 + [latents], dim=2)
        x = self.conv_in(functional.pad(x, (1, 1, 1, 1)))
        x = self.attention(functional.silu(self.norm(x)))
        x = x.repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
        return self.conv_out(x)


class FlaxAttention(nnx.Module):
    def __init__(self, weights: Mapping[str, jax.Array], frame_wise: bool) -> None:
        self.qkv, self.qkv_bias = nnx.Param(weights["qkv.weight"]), nnx.Param(weights["qkv.bias"])
        self.out, self.out_bias = nnx.Param(weights["out.weight"]), nnx.Param(weights["out.bias"])
        self.frame_wise = frame_wise

    def __call__(self, x: jax.Array) -> jax.Array:
        n, t, h, w, c = x.shape
        tokens = x.reshape(n * t, h * w, c) if self.frame_wise else x.reshape(n, t * h * w, c)
        q, k, v = jnp.split(tokens @ self.qkv[...].T + self.qkv_bias[...], 3, axis=-1)
        scores = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) / c**0.5, axis=-1)
        attended = jnp.einsum("bqk,bkc->bqc", scores, v)
        return x + (attended @ self.out[...].T + self.out_bias[...]).reshape(x.shape)


class FlaxDecoder(nnx.Module):
    """Latents [N, T, H, W, C] to frames [N, T, 2H, 2W, 3]; `state` is the torch decoder's."""

    def __init__(self, state: Mapping[str, torch.Tensor], frame_wise: bool = False) -> None:
        w = {name: jnp.asarray(x.detach().numpy()) for name, x in state.items()}
        self.conv_in, self.conv_in_bias = nnx.Param(w["conv_in.weight"]), nnx.Param(w["conv_in.bias"])
        self.conv_out, self.conv_out_bias = nnx.Param(w["conv_out.weight"]), nnx.Param(w["conv_out.bias"])
        self.scale, self.shift = nnx.Param(w["norm.weight"]), nnx.Param(w["norm.bias"])
        own = {name.removeprefix("attention."): x for name, x in w.items() if name.startswith("attention.")}
        self.attention = FlaxAttention(own, frame_wise)

    def __call__(self, latents: jax.Array) -> jax.Array:
        x = jnp.concatenate([latents[:, :1]] * 2 + [latents], axis=1)
        x = _convolved(x, self.conv_in[...], self.conv_in_bias[...], padding=((0, 0), (1, 1), (1, 1)))
        x = self.attention(jax.nn.silu(self._normed(x)))
        x = jnp.repeat(jnp.repeat(x, 2, axis=2), 2, axis=3)
        return _convolved(x, self.conv_out[...], self.conv_out_bias[...], padding=((0, 0),) * 3)

    def _normed(self, x: jax.Array) -> jax.Array:
        grouped = x.reshape(*x.shape[:-1], GROUPS, -1)
        mean = grouped.mean((1, 2, 3, 5), keepdims=True)
        var = grouped.var((1, 2, 3, 5), keepdims=True)
        return ((grouped - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape) * self.scale[...] + self.shift[...]


def _convolved(x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: tuple[tuple[int, int], ...]) -> jax.Array:
    dimensions = ("NDHWC", "OIDHW", "NDHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), padding, dimension_numbers=dimensions) + bias
