"""VAEs: patches, norms, tiles and chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny
import torch
from change import Around, Made, change, drawn, wrapped
from torch import nn


def decode(vae: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """A VAE's own decode, tiles and chunks with it."""
    return vae.decode(hidden_states, return_dict=False)[0]


def encode(vae: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Its encode, without drawing."""
    return vae.encode(hidden_states, return_dict=False)[0].mode()


def around(vae: Any, lines: Callable[..., torch.Tensor], *shape: int) -> Made:
    return Made(module=Around(lines, vae=vae), inputs={"hidden_states": drawn(1, *shape)})


@change("huggingface/diffusers#12041", "58d2b10a2e", at=(":out",), cause="order")
def wan_patches_transposed(fixed: bool) -> Made:
    """Wan 2.2's VAE put its patches of 2 x 2 together with rows for columns. Since: width before height."""
    order = (0, 1, 4, 5, 3, 6, 2) if fixed else (0, 1, 4, 5, 2, 6, 3)

    def lines(vae: Any, hidden_states: torch.Tensor) -> torch.Tensor:  # its decoder, and what joins its patches
        vae.clear_cache()
        x = vae.decoder(vae.post_quant_conv(hidden_states), feat_cache=vae._feat_map, feat_idx=[0], first_chunk=True)
        b, _, frames, height, width = x.shape
        x = x.view(b, 3, 2, 2, frames, height, width).permute(*order)
        return x.reshape(b, 3, frames, 2 * height, 2 * width)

    return around(tiny.wan_vae(in_channels=12, out_channels=12, patch_size=2), lines, 4, 1, 6, 8)


@change(
    "huggingface/diffusers#13316", "5fc2bd2c8f", lambda: around(tiny.wan_vae(), decode, 4, 2, 6, 8),
    at=("vae.decoder.up_blocks.0.resnets.0.norm1",), cause="norm_dtype",
)  # fmt: skip
def rms_norm_in_bfloat16(model: Any) -> None:
    """The VAE's RMS norms divided in 16 bits. Since: in float32."""

    def rounded(own: Any, x: torch.Tensor) -> torch.Tensor:
        norm = own.__self__
        low = nn.functional.normalize(x.to(torch.bfloat16), dim=1).to(x.dtype)
        return low * norm.scale * norm.gamma + norm.bias

    wrapped(model, "vae.decoder.up_blocks.*.norm[12]", rounded)


@change("huggingface/diffusers#10600", "f295e2eefc", at=("vae.encoder*", ":out"))
def hunyuan_chunks_of_the_other_flag(fixed: bool) -> Made:
    """Whether HunyuanVideo's VAE encodes in chunks of frames was read from the flag for decoding. Since: from its
    own.
    """
    vae = tiny.hunyuan_vae()
    vae.use_framewise_encoding, vae.use_framewise_decoding = fixed, False
    vae.tile_sample_min_num_frames, vae.tile_sample_stride_num_frames = 8, 4
    return around(vae, encode, 3, 13, 16, 16)


def tiled(vae: Any, fixed: bool) -> Made:
    """Tiles of 64 pixels, every 48; before, a width beyond the stride was cut into tiles, not one beyond a tile."""
    vae.enable_tiling(
        tile_sample_min_height=64, tile_sample_min_width=64, tile_sample_stride_height=48, tile_sample_stride_width=48
    )
    vae.use_framewise_decoding = False
    own = vae._decode

    def tiles(z: torch.Tensor, return_dict: bool = True) -> Any:
        wide = z.shape[-1] > vae.tile_sample_stride_width // vae.spatial_compression_ratio
        return vae.tiled_decode(z, return_dict=return_dict) if wide else own(z, return_dict=return_dict)

    if not fixed:
        vae._decode = tiles
    return around(vae, decode, 4, 1, 6, 8)


@change("huggingface/diffusers#11305", "36538e1135", at=("vae.post_quant_conv*", "vae.decoder*", ":out"))
def hunyuan_tiles_from_the_stride(fixed: bool) -> Made:
    """A width beyond the stride was decoded in tiles. Since: one beyond a tile."""
    return tiled(tiny.hunyuan_vae(), fixed)


@change("huggingface/diffusers#11294", "bc261058ee", at=("vae.decoder*", ":out"))
def mochi_tiles_from_the_stride(fixed: bool) -> Made:
    """The same in Mochi's VAE."""
    return tiled(tiny.model("AutoencoderKLMochi"), fixed)
