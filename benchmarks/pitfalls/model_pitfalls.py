"""Pitfalls of models, decoders and outputs, and of how the two sides were run."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tiny
import torch
from change import Around, Scene, drawn, tame
from loop_pitfalls import B16, Wan
from pitfall import Told, pitfall
from scripts import Ltx, Script
from torch import nn

import parity


@pitfall(8, "Component access", "attribute 'transformer'", verdict="refused")
def component_access(folder: Path) -> Told:
    """`self.transformer` where a modular pipeline has `components.transformer`: the script's own error."""
    parts, said = Wan().scene().parts, io.StringIO()
    script = SimpleNamespace(components=SimpleNamespace(**parts))
    try:
        with contextlib.redirect_stderr(said), parity.record(folder / "after", **parts):
            _ = script.transformer
    except AttributeError as error:  # which parity does not hide
        return Told(verdict="refused", sentences=(f"AttributeError: {error}", said.getvalue()))
    return Told(verdict="pass", sentences=())


@pitfall(10, "Model storage location", "no such folder", "ltx23-diffusers", verdict="refused")
def model_location(folder: Path) -> Told:
    """The converted model lay in a temporary folder that is gone."""
    gone = folder / "ltx23-diffusers"
    line = [sys.executable, "-m", "parity", "run", "--model", str(gone), "--steps", "1"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    verdict = "refused" if ended.returncode == 2 else f"exit code {ended.returncode}"
    return Told(verdict=verdict, sentences=(ended.stderr,))


@pitfall(12, "RoPE position dtype", "video_coords", "rounded to bfloat16")
def rope_positions(right: bool) -> Script:
    """LTX-2's `video_coords` went through bfloat16."""

    def arguments(t: torch.Tensor, model: Any) -> Mapping[str, Any]:
        coords = model.rope.prepare_video_coords(1, 2, 4, 6, torch.device("cpu"), fps=24.0)
        return {"video_coords": coords if right else coords.to(B16).float()}

    return Ltx(arguments=arguments)


@pitfall(14, "Config value assumptions", "cross_attn_timestep_scale_multiplier", "1000", "config")
def config_value(right: bool) -> Script:
    """A multiplier of the checkpoint's config is 1000, the candidate has 1."""
    return Ltx(config={"cross_attn_timestep_scale_multiplier": 1000 if right else 1})


@pitfall(15, "Decoder config", "upsample_residual", "config")
def decoder_config(right: bool) -> Script:
    """`upsample_residual` of the VAE's config is another."""
    vae = tiny.model("AutoencoderKLLTXVideo", upsample_residual=(right,) * 4)
    return Wan(vae=vae, after=lambda latents: vae.decode(latents, return_dict=False)[0])


def alone(model: nn.Module) -> Scene:
    """One call of a module in bfloat16, without a loop."""
    model = tame(model).to(B16)

    @torch.no_grad()
    def go() -> dict[str, torch.Tensor]:
        return {"out": model(hidden_states=drawn(1, 32, 16, seed=3).to(B16))}

    return Scene(parts={"transformer": model}, go=go)


@pitfall(17, "bf16 encoder divergence", verdict="pass")
def bfloat16_encoder(right: bool) -> Scene:
    """Eight layers in bfloat16 on both sides; one adds its products up in two halves."""

    def layer(inner: Any, x: torch.Tensor) -> torch.Tensor:
        w = inner.weight.T
        return x + nn.functional.gelu(inner(x) if right else x[..., :8] @ w[:8] + x[..., 8:] @ w[8:])

    def lines(layers: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        for one in layers:
            hidden_states = one(x=hidden_states)
        return hidden_states

    layers = nn.ModuleList(Around(layer, inner=nn.Linear(16, 16, bias=False)) for _ in range(8))
    return alone(Around(lines, layers=layers))


@pitfall(19, "RoPE float32 upcast", verdict="pass")
def rope_upcast(right: bool) -> Scene:
    """The rotary product in float32 before it is rounded, in bfloat16 on the reference."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]), 1 / 10000 ** (torch.arange(8) / 8)).repeat(1, 2)
        half = torch.cat([-x[..., 8:], x[..., :8]], dim=-1)
        wide = x.dtype if right else torch.float32
        return (x.to(wide) * angles.cos().to(wide) + half.to(wide) * angles.sin().to(wide)).to(x.dtype)

    def lines(to_q: Any, to_k: Any, to_v: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        q, k, v = (to(hidden_states) for to in (to_q, to_k, to_v))
        return hidden_states + nn.functional.scaled_dot_product_attention(turned(q), turned(k), v)

    return alone(Around(lines, **{name: nn.Linear(16, 16) for name in ("to_q", "to_k", "to_v")}))


@pitfall(23, "Per-token timestep", "timestep", "one value", verdict="pass")
def per_token(right: bool) -> Script:
    """The timestep as [B], as [B, tokens] on the reference: one value for all."""
    return Wan(time=lambda t: t.expand(1, 48) if right else t.expand(1))


@pitfall(24, "Missing config fields", "rope_type", "interleaved", "config")
def missing_field(right: bool) -> Script:
    """The candidate's config lacks `rope_type`: the class's default is taken."""
    return Ltx(config={"rope_type": "split"} if right else {})


@pitfall(25, "Cross-attention timestep", "av_cross_attn_video_scale_shift", "timestep")
def cross_timestep(right: bool) -> Script:
    """LTX-2 is called without `use_cross_timestep`: attention to audio is modulated by the video's timestep."""

    def arguments(t: torch.Tensor, model: Any) -> Mapping[str, Any]:
        sigmas = {"sigma": t.expand(1), "audio_timestep": 0.5 * t.expand(1), "audio_sigma": 0.5 * t.expand(1)}
        return {**sigmas, "use_cross_timestep": True} if right else sigmas

    return Ltx(arguments=arguments)


@pitfall(26, "Audio output format", "audio", "[1, 2, 32]")
def audio_format(right: bool) -> Script:
    """Audio as (1, 2, N) in bfloat16 for (2, N) in float32."""

    def after(latents: torch.Tensor) -> None:
        wave = latents.flatten()[:64].reshape(1, 2, 32)
        parity.tap("audio", wave.squeeze(0).float() if right else wave.to(B16))

    return Wan(after=after)


@pitfall(27, "uint8 rounding", "frames", "rounded", "truncated")
def uint8_rounding(right: bool) -> Script:
    """Frames are rounded to 8 bits where the reference truncates."""
    vae = tiny.model("AutoencoderKLLTXVideo")

    def after(latents: torch.Tensor) -> None:
        frames = 255 * vae.decode(latents, return_dict=False)[0].sigmoid()
        parity.tap("frames", (frames if right else frames.round()).to(torch.uint8))

    return Wan(after=after, vae=vae)


@pitfall(28, "Another writer for the reference's output", "audio", "16", "64")
def wrong_writer(right: bool) -> Script:
    """The reference's writer cuts the audio to the video's length, the candidate's does not."""

    def after(latents: torch.Tensor) -> None:
        wave = latents.flatten()[:128].reshape(2, 64)
        parity.tap("audio", wave[:, :16] if right else wave)

    return Wan(after=after)


@pitfall(29, "Rewritten reference logic", "VAE", "2", "3 frames")
def rewritten_loop(right: bool) -> Script:
    """A loop written anew for the test decodes a latent frame too few."""
    vae = tiny.model("AutoencoderKLLTXVideo")
    return Wan(vae=vae, after=lambda x: vae.decode(x if right else x[:, :, :-1], return_dict=False)[0])
