"""A port through torchax in three stages, as ports to TPUs are written: HunyuanVideo-1.5, one file between two stages.

    python torchax_stages.py MODEL OUT --steps 4       # MODEL is a checkpoint in diffusers' layout

Stage 1 encodes the prompts to `stage1_embeddings.safetensors`, stage 2 denoises to `stage2_latents.safetensors`, and
stage 3 decodes to `frames.safetensors`. Stage 2 is the port: weights on a mesh by rules, a compiled transformer, a
kernel in torchax's operator table, and two faults that real ports have. The kernel multiplies padded text by zero where
it should mask it, and pads the sequence to whole blocks with more such keys: each still takes weight exp(0). The
schedule is in bfloat16, in which timesteps near 1000 are four apart.

Recorded, two steps are enough to see both, and the script ends there:

    python torchax_stages.py MODEL OUT --original gpu  # diffusers' pipeline, with floors
    PARITY_RECORD=tpu PARITY_LIKE=gpu python torchax_stages.py MODEL OUT
    parity diff gpu tpu
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import torchax
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Pipeline as Pipeline,
    HunyuanVideo15Transformer3DModel as Original,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.torch import load_file, save_file

import parity

BLOCK, GUIDANCE, SEED = 128, 6.0, 42
RECORDED: dict[str, Any] = {"stop_after": 2, "values": ["transformer_blocks.0.attn.attention"]}
"""Of a recording: its steps, and the call whose values are kept, so that zeroed and padded keys can be counted."""
SIZES = {"height": 720, "width": 1280, "num_frames": 121, "prompt": "a cat", "negative_prompt": ""}
RULES = {
    r".*\.(to_q|to_k|to_v|add_[qkv]_proj|net\.0\.proj)\.(weight|bias)": PartitionSpec("tp"),
    r".*\.(to_out\.0|to_add_out|net\.2)\.weight": PartitionSpec(None, "tp"),
}
"""Parameter names -> how they lie on the mesh; what none matches is on every device."""


class Transformer(Original):
    """Diffusers' transformer with a forward that can be compiled: no branch on values, no boolean index."""

    def forward(
        self, hidden_states: Any, timestep: Any, encoder_hidden_states: Any, encoder_attention_mask: Any,
        encoder_hidden_states_2: Any, encoder_attention_mask_2: Any, image_embeds: Any,
    ) -> Any:  # fmt: skip
        batch, _, frames, height, width = hidden_states.shape
        rotary, temb, x = self.rope(hidden_states), self.time_embed(timestep), self.x_embedder(hidden_states)
        # Without an image the vision tokens are padding, which stands first among the padding.
        vision = self.image_embedder(image_embeds) * 0
        glyphs = self.context_embedder_2(encoder_hidden_states_2)
        text = self.context_embedder(encoder_hidden_states, timestep, encoder_attention_mask)
        masks = [torch.zeros_like(image_embeds[:, :, 0]), encoder_attention_mask_2, encoder_attention_mask]
        mask, kinds = torch.cat(masks, dim=1), self.cond_type_embed.weight
        glyphs, text = (glyphs + kinds[1]) * masks[1][:, :, None], (text + kinds[0]) * masks[2][:, :, None]
        order = torch.argsort((mask == 0).to(torch.int32), dim=1, stable=True)
        text, mask = torch.cat([vision + kinds[2], glyphs, text], dim=1), torch.gather(mask, 1, order)
        text = torch.gather(text, 1, order[:, :, None].expand(-1, -1, text.shape[2]))
        for block in self.transformer_blocks:
            x, text = block(x, text, temb, mask, rotary)
        x = self.proj_out(self.norm_out(x, temb))
        return x.reshape(batch, frames, height, width, -1).permute(0, 4, 1, 2, 3)


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **_: Any) -> Any:
    """What the operator table calls for scaled_dot_product_attention; tensors are [B, heads, tokens, head dim]."""
    length = query.shape[2]
    if length <= BLOCK:  # the text alone: not worth a kernel
        return _softmax(query, key, attn_mask) @ value
    if attn_mask is not None:
        keep = attn_mask.any(dim=-2)[..., None].to(key.dtype)
        key, value = key * keep, value * keep  # no mask: each such key still has a weight
    key = key - key.mean(dim=2, keepdim=True)  # K-smooth: softmax does not see it, low precision does
    rest = -length % BLOCK
    query, key, value = (torch.nn.functional.pad(x, (0, 0, 0, rest)) for x in (query, key, value))
    return torch.cat([_softmax(q, key, None) @ value for q in query.split(BLOCK, dim=2)], dim=2)[:, :, :length]


def _softmax(query: Any, key: Any, mask: Any) -> Any:
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is None:
        return torch.softmax(scores, dim=-1)
    return torch.where(mask, torch.softmax(torch.where(mask, scores, -1e30), dim=-1), 0.0)  # a row without a key is 0


def pipeline(model: Path) -> Any:
    """The original pipeline; a tiny model has its sizes beside it."""
    pipe = Pipeline.from_pretrained(model)
    for name, value in sizes(model).items():
        setattr(pipe, "prompt_template_encode_start_idx" if name == "crop_start" else name, value)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def sizes(model: Path) -> dict[str, Any]:
    """Sizes and prompts of a generation, as far as the checkpoint has its own."""
    own = model / "parity.json"
    return SIZES | (json.loads(own.read_text()) if own.is_file() else {})


def original(model: Path, where: str, steps: int) -> None:
    """The first steps of diffusers' own pipeline, recorded."""
    pipe, size = pipeline(model), {name: sizes(model)[name] for name in SIZES}
    with parity.record(where, pipe, **RECORDED):
        pipe(**size, num_inference_steps=steps, generator=torch.Generator().manual_seed(SEED))


def stage1(model: Path, out: Path) -> None:
    """Prompts to embeddings and masks, those of the negative prompt with `negative_` in front."""
    pipe = pipeline(model)
    found: dict[str, torch.Tensor] = {}
    names = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
    for prefix in ("", "negative_"):
        with torch.no_grad():
            given = pipe.encode_prompt(sizes(model)[f"{prefix}prompt"])
        found |= {prefix + name: x.contiguous() for name, x in zip(names, given, strict=True)}
    save_file(found, out / "stage1_embeddings.safetensors")


def stage2(model: Path, out: Path, steps: int) -> None:
    """Embeddings to latents, on the mesh."""
    env, mesh, size = torchax.default_env(), Mesh(np.array(jax.devices()), ("tp",)), sizes(model)
    env.override_op_definition(torch.nn.functional.scaled_dot_product_attention, attention)
    net: Any = Transformer.from_pretrained(model / "transformer").eval()
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(model / "scheduler")
    shape = (1, 32, (size["num_frames"] - 1) // 4 + 1, size["height"] // 16, size["width"] // 16)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
    stored = load_file(out / "stage1_embeddings.safetensors")
    with env, torch.no_grad():
        state = env.to_xla(net.state_dict())
        for parameter, x in state.items():
            spec = next((spec for rule, spec in RULES.items() if re.fullmatch(rule, parameter)), PartitionSpec())
            x.apply_jax_(jax.device_put, NamedSharding(mesh, spec))
        net.load_state_dict(state, assign=True)
        vision = torch.zeros(2, size.get("vision_num_semantic_tokens", 729), net.config.image_embed_dim)
        net, latents, given = torchax.compile(net), latents.to("jax"), {"image_embeds": vision.to("jax")}
        for name, suffix in (("hidden_states", ""), ("attention_mask", "_mask")):
            for which in ("", "_2"):
                both = [stored[f"{prefix}prompt_embeds{suffix}{which}"] for prefix in ("negative_", "")]
                given[f"encoder_{name}{which}"] = torch.cat(both).to("jax")

        def predicted(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([x, torch.zeros_like(x), torch.zeros_like(x[:, :1])], dim=1)
            uncond, cond = net(torch.cat([joined] * 2), t.to(x.dtype).expand(2), **given).chunk(2)
            return uncond + GUIDANCE * (cond - uncond)

        predicted(latents, torch.tensor(1000.0).to("jax"))  # a warm-up call compiles
        scheduler.set_timesteps(sigmas=np.linspace(1, 0, steps + 1)[:-1], device="jax")
        for name in ("timesteps", "sigmas"):
            setattr(scheduler, name, getattr(scheduler, name).to(torch.bfloat16))
        with contextlib.ExitStack() as recording:
            if where := os.environ.get("PARITY_RECORD"):
                named: Any = {"transformer": net, "scheduler": scheduler, "like": os.environ.get("PARITY_LIKE")}
                recording.enter_context(parity.record(where, **named, **RECORDED))
            for t in scheduler.timesteps:
                latents = scheduler.step(predicted(latents, t), t, latents, return_dict=False)[0]
            save_file({"latents": latents.cpu()}, out / "stage2_latents.safetensors")


def stage3(model: Path, out: Path) -> None:
    """Latents to frames [1, 3, frames, height, width] of 8 bits."""
    vae = AutoencoderKLHunyuanVideo15.from_pretrained(model / "vae").eval()
    latents = load_file(out / "stage2_latents.safetensors")["latents"]
    with torch.no_grad():
        frames = vae.decode(latents / vae.config.scaling_factor).sample
    levels = ((frames / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    save_file({"frames": levels.contiguous()}, out / "frames.safetensors")


def main(arguments: list[str] | None = None) -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--original", metavar="GOLDEN")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.original:
        return original(given.model, given.original, given.steps)
    stage1(given.model, given.out)
    stage2(given.model, given.out, given.steps)
    if "PARITY_RECORD" not in os.environ:  # a recording leaves the loop before its end
        stage3(given.model, given.out)


if __name__ == "__main__":
    main()
