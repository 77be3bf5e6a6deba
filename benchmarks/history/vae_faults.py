"""VAEs: patches, norms, tiles and chunks."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from change import Change, Made, drawn, tame, wrapped
from torch import nn


class Decode(nn.Module):
    """A VAE's own decode, tiles and chunks with it."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(hidden_states, return_dict=False)[0]


class Encode(Decode):
    """Its encode, without drawing."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.vae.encode(hidden_states, return_dict=False)[0].mode()


def wan_vae(**config: Any) -> Any:
    sizes: dict[str, Any] = {
        "base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True],
        "latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [1.5, 2.0, 0.8, 1.2], "scale_factor_spatial": 4,
        "scale_factor_temporal": 2,
    }  # fmt: skip
    return tame(diffusers.AutoencoderKLWan(**{**sizes, **config}))


class Unpatched(nn.Module):
    """Wan 2.2's decoder and what puts its patches together."""

    def __init__(self, vae: Any, order: tuple[int, ...]) -> None:
        super().__init__()
        self.vae, self.order = vae, order

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        vae: Any = self.vae
        vae.clear_cache()
        x = vae.decoder(vae.post_quant_conv(hidden_states), feat_cache=vae._feat_map, feat_idx=[0], first_chunk=True)
        b, _, frames, height, width = x.shape
        x = x.view(b, 3, 2, 2, frames, height, width).permute(*self.order)
        return x.reshape(b, 3, frames, 2 * height, 2 * width)


def wan_patches_transposed(fixed: bool) -> Made:
    vae = wan_vae(in_channels=12, out_channels=12, patch_size=2)
    order = (0, 1, 4, 5, 3, 6, 2) if fixed else (0, 1, 4, 5, 2, 6, 3)
    return Made(module=Unpatched(vae, order), inputs={"hidden_states": drawn(1, 4, 1, 6, 8)})


def rms_norm_in_bfloat16(fixed: bool) -> Made:
    vae = wan_vae()

    def change(norm: Any, x: torch.Tensor) -> torch.Tensor:
        low = nn.functional.normalize(x.to(torch.bfloat16), dim=1).to(x.dtype)
        return low * norm.scale * norm.gamma + norm.bias

    for name, norm in vae.decoder.named_modules():
        if not fixed and type(norm).__name__ == "WanRMS_norm" and name.startswith("up_blocks"):
            wrapped(norm, lambda own, x, norm=norm: change(norm, x))
    return Made(module=Decode(vae), inputs={"hidden_states": drawn(1, 4, 2, 6, 8)})


def hunyuan_vae(attention: bool = False) -> Any:
    vae = diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
        mid_block_add_attention=attention,
    )  # fmt: skip
    return tame(vae)


def hunyuan_chunks_of_the_other_flag(fixed: bool) -> Made:
    vae = hunyuan_vae()
    vae.use_framewise_encoding, vae.use_framewise_decoding = True, False
    vae.tile_sample_min_num_frames, vae.tile_sample_stride_num_frames = 8, 4
    if not fixed:
        vae.use_framewise_encoding = vae.use_framewise_decoding
    return Made(module=Encode(vae), inputs={"hidden_states": drawn(1, 3, 13, 16, 16)})


def tiled(vae: Any, fixed: bool) -> None:
    """Tiles of 64 pixels, every 48; before, a width beyond the stride was cut into tiles, not one beyond a tile."""
    vae.enable_tiling(
        tile_sample_min_height=64, tile_sample_min_width=64, tile_sample_stride_height=48, tile_sample_stride_width=48
    )
    vae.use_framewise_decoding = False
    if fixed:
        return
    own = vae._decode

    def decode(z: torch.Tensor, return_dict: bool = True) -> Any:
        wide = z.shape[-1] > vae.tile_sample_stride_width // vae.spatial_compression_ratio
        return vae.tiled_decode(z, return_dict=return_dict) if wide else own(z, return_dict=return_dict)

    vae._decode = decode


def hunyuan_tiles_from_the_stride(fixed: bool) -> Made:
    vae = hunyuan_vae()
    tiled(vae, fixed)
    return Made(module=Decode(vae), inputs={"hidden_states": drawn(1, 4, 1, 6, 8)})


def mochi_tiles_from_the_stride(fixed: bool) -> Made:
    vae = diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32), decoder_block_out_channels=(32, 32, 32, 32), latent_channels=4,
        layers_per_block=(1, 1, 1, 1, 1),
    )  # fmt: skip
    vae = tame(vae)
    tiled(vae, fixed)
    return Made(module=Decode(vae), inputs={"hidden_states": drawn(1, 4, 1, 6, 8)})


VAE_FAULTS = (
    Change(
        name="wan_patches_transposed", source="huggingface/diffusers#12041", commit="58d2b10a2e", kind="VAE",
        at=(":out",), cause="order", model=wan_patches_transposed,
        what="Wan 2.2's VAE put its patches of 2 x 2 together with rows for columns. Since: width before height.",
    ),
    Change(
        name="rms_norm_in_bfloat16", source="huggingface/diffusers#13316", commit="5fc2bd2c8f", kind="VAE",
        at=("vae.decoder.up_blocks.0.resnets.0.norm1",), cause="norm_dtype", model=rms_norm_in_bfloat16,
        what="The VAE's RMS norms divided in 16 bits. Since: in float32.",
    ),
    Change(
        name="hunyuan_chunks_of_the_other_flag", source="huggingface/diffusers#10600", commit="f295e2eefc", kind="VAE",
        at=("vae.encoder*", ":out"), model=hunyuan_chunks_of_the_other_flag,
        what="Whether HunyuanVideo's VAE encodes in chunks of frames was read from the flag for decoding. Since: from "
        "its own.",
    ),
    Change(
        name="hunyuan_tiles_from_the_stride", source="huggingface/diffusers#11305", commit="36538e1135", kind="VAE",
        at=("vae.post_quant_conv*", "vae.decoder*", ":out"), model=hunyuan_tiles_from_the_stride,
        what="A width beyond the stride was decoded in tiles. Since: one beyond a tile.",
    ),
    Change(
        name="mochi_tiles_from_the_stride", source="huggingface/diffusers#11294", commit="bc261058ee", kind="VAE",
        at=("vae.decoder*", ":out"), model=mochi_tiles_from_the_stride,
        what="The same in Mochi's VAE.",
    ),
)  # fmt: skip
