"""Pitfalls of models, decoders and outputs, and of how the two sides were run."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from change import drawn, tame
from loops import Ltx, Wan
from pitfall import Pitfall, Side, Told

import parity

B16 = torch.bfloat16


def rope_positions(right: bool) -> Side:
    def arguments(t: torch.Tensor, model: Any) -> Mapping[str, Any]:
        coords = model.rope.prepare_video_coords(1, 2, 4, 6, torch.device("cpu"), fps=24.0)
        return {"video_coords": coords if right else coords.to(B16).float()}

    return Ltx(arguments=arguments).side()


def config_value(right: bool) -> Side:
    return Ltx(config={"cross_attn_timestep_scale_multiplier": 1000 if right else 1}).side()


def missing_field(right: bool) -> Side:
    """The config of the candidate's checkpoint lacks a field, so that the class takes its default."""
    return Ltx(config={"rope_type": "split"} if right else {}).side()


def cross_timestep(right: bool) -> Side:
    """Attention between video and audio is modulated by the other's sigma, or by its own timestep."""

    def arguments(t: torch.Tensor, model: Any) -> Mapping[str, Any]:
        sigmas = {"sigma": t.expand(1), "audio_timestep": 0.5 * t.expand(1), "audio_sigma": 0.5 * t.expand(1)}
        return {**sigmas, "use_cross_timestep": True} if right else sigmas

    return Ltx(arguments=arguments).side()


def per_token(right: bool) -> Side:
    return Wan(time=lambda t: t.expand(1, 48) if right else t.expand(1)).side()


class Decoder:
    """Latents to frames by a tiny LTX VAE."""

    def __init__(self, **config: Any) -> None:
        sizes: dict[str, Any] = {
            "latent_channels": 4, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
            "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1), "patch_size": 2,
        }  # fmt: skip
        self.vae: Any = tame(diffusers.AutoencoderKLLTXVideo(**{**sizes, **config}))

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(latents, return_dict=False)[0]


def decoder_config(right: bool) -> Side:
    decoder = Decoder(upsample_residual=(right,) * 4)
    return Wan(after=decoder, parts={"vae": decoder.vae}).side()


def bfloat16_encoder(right: bool) -> Side:
    """Eight layers in bfloat16 on both sides; one adds up its products in two halves."""
    return alone(tame(Encoder(halves=not right)).to(B16))


def alone(model: torch.nn.Module) -> Side:
    """One call of a module, without a loop."""

    @torch.no_grad()
    def go() -> None:
        model(drawn(1, 32, 16, seed=3).to(B16))

    return Side(parts={"transformer": model}, go=go)


class Encoder(torch.nn.Module):
    """Eight layers; what they do is written in `Layer`."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(halves) for _ in range(8))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class Layer(torch.nn.Module):
    """A product and an activation; the product as a whole, or as the sum of two halves."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.halves, self.inner = halves, torch.nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.inner.weight.T
        y = x[..., :8] @ w[:8] + x[..., 8:] @ w[8:] if self.halves else self.inner(x)
        return x + torch.nn.functional.gelu(y)


class Rotated(torch.nn.Module):
    """Attention whose rotary product is in float32, or in the input's dtype."""

    def __init__(self, upcast: bool) -> None:
        super().__init__()
        self.upcast = upcast
        self.to_q, self.to_k, self.to_v = (torch.nn.Linear(16, 16) for _ in range(3))

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]), 1 / 10000 ** (torch.arange(8) / 8)).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        half = torch.cat([-x[..., 8:], x[..., :8]], dim=-1)
        if self.upcast:
            return (x.float() * cos + half.float() * sin).to(x.dtype)
        return x * cos.to(x.dtype) + half * sin.to(x.dtype)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q, k = self.turn(self.to_q(hidden_states)), self.turn(self.to_k(hidden_states))
        v = self.to_v(hidden_states)
        return hidden_states + torch.nn.functional.scaled_dot_product_attention(q, k, v)


def rope_upcast(right: bool) -> Side:
    return alone(tame(Rotated(upcast=not right)).to(B16))


def audio_format(right: bool) -> Side:
    def after(latents: torch.Tensor) -> None:
        wave = latents.flatten()[:64].reshape(1, 2, 32)
        parity.tap("audio", wave.squeeze(0).float() if right else wave.to(B16))

    return Wan(after=after).side()


def pictures(latents: torch.Tensor) -> torch.Tensor:
    return 255 * latents.sigmoid()


def uint8_rounding(right: bool) -> Side:
    decoder = Decoder()

    def after(latents: torch.Tensor) -> None:
        frames = pictures(decoder(latents))
        parity.tap("frames", (frames if right else frames.round()).to(torch.uint8))

    return Wan(after=after, parts={"vae": decoder.vae}).side()


def wrong_writer(right: bool) -> Side:
    """The reference's writer cuts the audio to the video's length; another does not."""

    def after(latents: torch.Tensor) -> None:
        wave = latents.flatten()[:128].reshape(2, 64)
        parity.tap("audio", wave[:, :16] if right else wave)

    return Wan(after=after).side()


def rewritten_loop(right: bool) -> Side:
    """The loop around the reference was written anew, and decodes a frame too few."""
    decoder = Decoder()

    def after(latents: torch.Tensor) -> None:
        decoder(latents if right else latents[:, :, :-1])

    return Wan(after=after, parts={"vae": decoder.vae}).side()


def component_access(folder: Path) -> Told:
    """A modular pipeline has its components elsewhere: the script ends in its own error, which parity does not hide."""
    side = Wan().side()
    script = SimpleNamespace(components=SimpleNamespace(**side.parts))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), parity.record(folder / "after", **side.parts):
            _ = script.transformer
    except AttributeError as error:
        return Told(verdict="refused", sentences=(f"AttributeError: {error}", said.getvalue()))
    return Told(verdict="pass", sentences=())


def model_location(folder: Path) -> Told:
    """The converted model was kept in a temporary folder, which is gone."""
    gone = folder / "ltx23-diffusers"
    line = [sys.executable, "-m", "parity", "run", "--model", str(gone), "--steps", "1"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    verdict = "refused" if ended.returncode == 2 else f"exit code {ended.returncode}"
    return Told(verdict=verdict, sentences=(ended.stderr,))


warnings.filterwarnings("ignore")

MODEL_PITFALLS = (
    Pitfall(
        number=8, title="Component access", told=component_access, verdict="refused", says=("attribute 'transformer'",),
        what="`self.transformer` where a modular pipeline has `components.transformer`: the script's own error.",
    ),
    Pitfall(
        number=10, title="Model storage location", told=model_location, verdict="refused",
        says=("no such folder", "ltx23-diffusers"),
        what="The converted model lay in a temporary folder that is gone.",
    ),
    Pitfall(
        number=12, title="RoPE position dtype", sides=rope_positions, says=("video_coords", "rounded to bfloat16"),
        what="LTX-2's `video_coords` went through bfloat16.",
    ),
    Pitfall(
        number=14, title="Config value assumptions", sides=config_value,
        says=("cross_attn_timestep_scale_multiplier", "1000", "config"),
        what="A multiplier of the checkpoint's config is 1000, the candidate has 1.",
    ),
    Pitfall(
        number=15, title="Decoder config", sides=decoder_config, says=("upsample_residual", "config"),
        what="`upsample_residual` of the VAE's config is another.",
    ),
    Pitfall(
        number=17, title="bf16 encoder divergence", sides=bfloat16_encoder, verdict="pass",
        what="Eight layers in bfloat16 on both sides; one adds its products up in two halves.",
    ),
    Pitfall(
        number=19, title="RoPE float32 upcast", sides=rope_upcast, verdict="pass",
        what="The rotary product in float32 before it is rounded, in bfloat16 on the reference.",
    ),
    Pitfall(
        number=23, title="Per-token timestep", sides=per_token, verdict="pass", says=("timestep", "one value"),
        what="The timestep as [B], as [B, tokens] on the reference: one value for all.",
    ),
    Pitfall(
        number=24, title="Missing config fields", sides=missing_field, says=("rope_type", "interleaved", "config"),
        what="The candidate's config lacks `rope_type`: the class's default is taken.",
    ),
    Pitfall(
        number=25, title="Cross-attention timestep", sides=cross_timestep,
        says=("av_cross_attn_video_scale_shift", "timestep"),
        what="LTX-2 is called without `use_cross_timestep`: attention to audio is modulated by the video's timestep.",
    ),
    Pitfall(
        number=26, title="Audio output format", sides=audio_format, verdict="fail", says=("audio", "[1, 2, 32]"),
        what="Audio as (1, 2, N) in bfloat16 for (2, N) in float32.",
    ),
    Pitfall(
        number=27, title="uint8 rounding", sides=uint8_rounding, says=("frames", "rounded", "truncated"),
        what="Frames are rounded to 8 bits where the reference truncates.",
    ),
    Pitfall(
        number=28, title="Another writer for the reference's output", sides=wrong_writer,
        says=("audio", "16", "64"),
        what="The reference's writer cuts the audio to the video's length, the candidate's does not.",
    ),
    Pitfall(
        number=29, title="Rewritten reference logic", sides=rewritten_loop, says=("VAE", "2", "3 frames"),
        what="A loop written anew for the test decodes a latent frame too few.",
    ),
)  # fmt: skip
