"""The VAE stage as a module: from the latents of a finished loop to frames, as the families' pipelines do it.

The pipelines scale the latents and call the VAE's own `decode`, which slices the batch, tiles the picture and decodes
chunks of frames with a cache of convolutions (CogVideoX), each a call of `decoder`. All of that is left to diffusers;
a path decides where a call of `decoder` runs. Nothing of it traces as a whole without unrolling every tile and chunk
into one program, and one call of `decoder` does, so that is what the candidate compiles, as ports do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from parity.hooks.faults import FAULTS, wrong_from_here_on
from parity.hooks.rows import WHOLE, NoRows, Part
from parity.models.folder import DIVIDES, Case, load_part, vae_config
from parity.models.patches import DTYPES
from parity.settings import MODEL, Reached, Settings


class LatentDecoder(torch.nn.Module):
    """What a pipeline does after its loop.

    Args:
        vae: diffusers'. Its encoder is no part of the stage.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.decoder = vae.decoder
        self.__dict__["vae"] = vae  # past the registry: the VAE is around the decoder, not in it
        self.divides, self.scale = DIVIDES[type(vae).__name__], float(vae.config.scaling_factor)

    def adapt(self, reached: Reached, *, traced: bool) -> None:
        """Apply the settings of the stage.

        Args:
            traced: whether its decoder runs under jax.jit.
        """
        self.reached, vae, settings = reached, self.__dict__["vae"], reached.settings
        if settings["vae.tiling"]:
            vae.enable_tiling()
            decode = vae.tiled_decode

            def tiled(*args: Any, **kwargs: Any) -> Any:
                reached.mark("vae.tiling")
                return decode(*args, **kwargs)

            vae.tiled_decode = tiled
        faults = FAULTS.keys() & {f"{name}={value}" for name, value in settings.as_text().items()}
        if faults:
            wrong_from_here_on(self.decoder, faults, lambda fault: reached.mark(fault.partition("=")[0]))
        if traced:
            for module in self.decoder.modules():
                if hasattr(module, "prepare_causal_attention_mask"):
                    module.prepare_causal_attention_mask = causal_mask

    def forward(self, latents: torch.Tensor) -> dict[str, torch.Tensor]:
        """`frames` [B, 3, frames, height, width], some -1 to 1, not clamped, for the loop's latents [B, C, T, H, W]."""
        x = latents.to(next(self.decoder.parameters()).dtype)
        if self.reached.settings["vae.scaling"] != MODEL:
            self.reached.mark("vae.scaling")
        else:
            x = x / self.scale if self.divides else 1 / self.scale * x
        vae: Any = self.__dict__["vae"]
        return {"frames": vae.decode(x, return_dict=False)[0]}


class CacheRows(NoRows):
    """Leaves out the nests of cached frames that CogVideoX's modules hand on beside their outputs.

    Each is a copy of the last frames of a convolution's input, some eight for each module: what is wrong with one shows
    where it is used, at that convolution's own `in.conv_cache`.
    """

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        return () if port.startswith(("out.1", "in.conv_cache.")) else WHOLE


def load_decoder(case: Case, settings: Settings) -> LatentDecoder:
    """Load a checkpoint's VAE in the dtype of the settings.

    Raises:
        UsageError: the VAE's class is not known.
    """
    vae_config(case.folder)
    vae: Any = load_part(case.folder, "vae", torch_dtype=DTYPES[settings.text("dtype")])
    return LatentDecoder(vae.requires_grad_(False))


def causal_mask(frames: int, pixels: int, dtype: torch.dtype, device: Any, batch_size: int | None = None) -> Any:
    """HunyuanVideo-1.5's mask of its mid block, bit for bit, without the class's Python loop over its rows.

    Returns:
        [B, frames * pixels, frames * pixels] or without B, 0 where a row sees a column and -inf where it does not.
    """
    frame = torch.arange(frames * pixels, device=device) // pixels
    size = (frames * pixels, frames * pixels)
    mask = torch.zeros(size, dtype=dtype, device=device).masked_fill(frame[None, :] > frame[:, None], float("-inf"))
    return mask if batch_size is None else mask[None].expand(batch_size, -1, -1)
