"""Guidance, noise, conditions and scaling around the model. Recorded in two scripts."""

from __future__ import annotations

from typing import Any

import torch
from change import Change, Scene, drawn
from scripts import Script, denormalised, moments
from vae_faults import wan_vae


def guidance_above_one(fixed: bool, dtype: torch.dtype) -> Scene:
    def guided(cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
        return cond + scale * (cond - uncond)

    return Script(dtype=dtype, scale=0.8, guides=fixed, guided=guided).scene()


def latents_as_they_are(fixed: bool, dtype: torch.dtype) -> Scene:
    return Script(dtype=dtype, denormalised=denormalised if fixed else lambda vae, x: x).scene()


def posterior(script: Any) -> Any:
    if script.vae is None:
        script.vae = wan_vae().to(script.dtype)
    picture = drawn(1, 3, 5, 32, 32, seed=4).clamp(-1, 1).to(script.dtype)
    return script.vae.encode(picture, return_dict=False)[0]


def normalised(vae: Any, x: torch.Tensor) -> torch.Tensor:
    mean, std = moments(vae, x)
    return (x - mean) / std


def condition_drawn(fixed: bool, dtype: torch.dtype) -> Scene:
    def joined(script: Any) -> torch.Tensor:
        found = posterior(script)
        drawn_ = found.mode() if fixed else found.sample(torch.Generator().manual_seed(2))
        return normalised(script.vae, drawn_.to(script.dtype))

    return Script(dtype=dtype, joined=joined).scene()


def condition_scaled_as_a_variance(fixed: bool, dtype: torch.dtype) -> Scene:
    """The deviation of a draw is exp of half the log variance, which was normalised as a mean is."""

    def joined(script: Any) -> torch.Tensor:
        found = posterior(script)
        mean, std = moments(script.vae, found.mean)
        noise = torch.randn(found.mean.shape, generator=torch.Generator().manual_seed(2)).to(found.mean)
        if fixed:
            return (found.mean + found.std * noise - mean) / std
        return (found.mean - mean) / std + torch.exp(0.5 * ((found.logvar - mean) / std).clamp(-30, 20)) * noise

    return Script(dtype=dtype, joined=joined).scene()


def video_drawn(fixed: bool, dtype: torch.dtype) -> Scene:
    def start(script: Any) -> torch.Tensor:
        found = posterior(script)
        clean = found.mode() if fixed else found.sample(torch.Generator().manual_seed(2))
        return 0.7 * drawn(*clean.shape, seed=7).to(script.dtype) + 0.3 * normalised(script.vae, clean)

    return Script(dtype=dtype, start=start).scene()


def picture_in_its_condition(fixed: bool, dtype: torch.dtype) -> Scene:
    def joined(script: Any) -> torch.Tensor:
        condition = torch.zeros(1, 4, 3, 8, 8, dtype=script.dtype)
        mask = torch.zeros(1, 1, 3, 8, 8, dtype=script.dtype)
        mask[:, :, 0] = 1
        if not fixed:
            condition[:, :, :1] = drawn(1, 4, 1, 8, 8, seed=4).to(script.dtype)
        return torch.cat([condition, mask], dim=1)

    return Script(dtype=dtype, joined=joined).scene()


def rescaled(valid: int) -> Any:
    def guided(cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
        both = uncond + scale * (cond - uncond)
        factor = cond[..., :valid].std() / both[..., :valid].std()
        whole = both * (0.7 * factor + 0.3)
        return torch.cat([whole[..., :valid], torch.zeros_like(whole[..., valid:])], dim=-1)

    return guided


def padding_in_the_statistics(fixed: bool, dtype: torch.dtype) -> Scene:
    return Script(dtype=dtype, guided=rescaled(6) if fixed else padded_statistics).scene()


def padded_statistics(cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
    """Of all columns; the last two are padding, and leave as zeros."""
    both = uncond + scale * (cond - uncond)
    whole = both * (0.7 * cond.std() / both.std() + 0.3)
    return torch.cat([whole[..., :6], torch.zeros_like(whole[..., 6:])], dim=-1)


GLUE_FAULTS = (
    Change(
        name="guidance_above_one", source="huggingface/diffusers#13183", commit="97c2c6e397", kind="glue",
        at=("loop:noise_pred",), cause="guidance", script=guidance_above_one,
        what="Z-Image guided only above a scale of 1; its formula guides from 0 on. Since: above 0.",
    ),
    Change(
        name="latents_as_they_are", source="huggingface/diffusers#10998", commit="363d1ab7e2", kind="glue",
        at=("decode:in.z",), cause="vae.scaling_factor", script=latents_as_they_are,
        what="What normalises Wan's latents moved out of its VAE: a pipeline without the new lines decodes them as "
        "they are. Since: times the deviation, plus the mean.",
    ),
    Change(
        name="condition_drawn", source="huggingface/diffusers#11087", commit="33d10af28f", kind="glue",
        at=(":in.hidden_states", "patch_embedding:in.*", "patch_embedding*"), script=condition_drawn,
        what="Wan's picture-to-video condition was drawn from the VAE's posterior. Since: its mode.",
    ),
    Change(
        name="condition_scaled_as_a_variance", source="huggingface/diffusers#11007", commit="4ea9f89b8e", kind="glue",
        at=(":in.hidden_states", "patch_embedding:in.*", "patch_embedding*"), script=condition_scaled_as_a_variance,
        what="The log variance of Wan's condition was normalised as if it were a mean. Since: the draw is.",
    ),
    Change(
        name="video_drawn", source="huggingface/diffusers#11639", commit="e27142ac64", kind="glue",
        at=("loop:latents.before", ":in.hidden_states", "patch_embedding*"), cause="noise", script=video_drawn,
        what="Video to video started from a draw of the VAE's posterior. Since: from its mode.",
    ),
    Change(
        name="picture_in_its_condition", source="huggingface/diffusers#14282", commit="09514d4892", kind="glue",
        at=(":in.hidden_states", "patch_embedding:in.*", "patch_embedding*"), script=picture_in_its_condition,
        what="Kandinsky 5 put the picture's latent into the channels of the condition too. Since: only its mask.",
    ),
    Change(
        name="padding_in_the_statistics", source="vllm-project/vllm-omni#6146", kind="glue", at=("loop:noise_pred",),
        cause="guidance_rescale", script=padding_in_the_statistics,
        what="Guidance was rescaled by statistics that counted padding. Since: of the valid part.",
    ),
)  # fmt: skip
