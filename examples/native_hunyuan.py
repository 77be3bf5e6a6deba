"""HunyuanVideo-1.5 in plain torch under its authors' names: `double_blocks`, an image and a text stream, `txt_in`.

A port of the authors' code has these names for its modules and weights, diffusers' checkpoints have others. Parity has
the table between the two (`RENAME`), so that the port is compared module by module:

    parity run --model FOLDER --port native_hunyuan.py:build --steps 1
    parity run --model FOLDER --port native_hunyuan.py:build --steps 1 --candidate attention.mask=none

The second drops the mask of padded text in the joint attention, a fault that real ports have. Text alone: no vision
tokens, which are padding where there is no image.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from hunyuan_names import RENAME, load_weights
from torch import nn
from torch.nn import functional

from parity.port import Case, Port

SETTINGS = {"attention.mask": "exact"}
THETA, FREQUENCIES, GLYPHS = 256.0, 256, 2048


def layers(**named: nn.Module) -> nn.Sequential:
    """Layers one after the other, by name."""
    return nn.Sequential(OrderedDict(named))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Attention of [B, tokens, heads, head dim]; `keep` [B, tokens] are the tokens that are no padding."""
    mask = None if keep is None else (keep[:, None, :, None] & keep[:, None, None, :])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbouring channels turned by their angles [tokens, head dim / 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).type_as(x)


def normed(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A norm without weights of its own, modulated."""
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class DoubleBlock(nn.Module):
    """Both streams with weights of their own, and one attention over the two."""

    def __init__(self, width: int, heads: int, ratio: float, masked: bool) -> None:
        super().__init__()
        self.heads, self.masked, inner = heads, masked, int(ratio * width)
        for stream in ("img", "txt"):
            self.add_module(f"{stream}_mod", layers(act=nn.SiLU(), linear=nn.Linear(width, 6 * width)))
            for part in ("q", "k", "v"):
                self.add_module(f"{stream}_attn_{part}", nn.Linear(width, width))
            for part in ("q", "k"):
                self.add_module(f"{stream}_attn_{part}_norm", nn.RMSNorm(width // heads, eps=1e-6))
            self.add_module(f"{stream}_attn_proj", nn.Linear(width, width))
            first, second = nn.Linear(width, inner), nn.Linear(inner, width)
            self.add_module(f"{stream}_mlp", layers(fc1=first, act=nn.GELU(approximate="tanh"), fc2=second))

    def _qkv(self, stream: str, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (getattr(self, f"{stream}_attn_{part}")(x).unflatten(2, (self.heads, -1)) for part in "qkv")
        return getattr(self, f"{stream}_attn_q_norm")(q), getattr(self, f"{stream}_attn_k_norm")(k), v

    def forward(
        self, img: torch.Tensor, txt: torch.Tensor, vec: torch.Tensor, freqs: torch.Tensor, text_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams = {"img": img, "txt": txt}
        mod = {name: getattr(self, f"{name}_mod")(vec)[:, None].chunk(6, dim=-1) for name in streams}
        q, k, v = self._qkv("img", normed(img, *mod["img"][:2]))
        image, text = (rotated(q, freqs), rotated(k, freqs), v), self._qkv("txt", normed(txt, *mod["txt"][:2]))
        q, k, v = (torch.cat(pair, dim=1) for pair in zip(image, text, strict=True))
        keep = functional.pad(text_mask, (img.shape[1], 0), value=True) if self.masked else None
        attended = attend(q, k, v, keep).split([img.shape[1], txt.shape[1]], dim=1)
        for (name, x), out in zip(streams.items(), attended, strict=True):
            _, _, gate, shift, scale, mlp_gate = mod[name]
            x = x + gate * getattr(self, f"{name}_attn_proj")(out)
            streams[name] = x + mlp_gate * getattr(self, f"{name}_mlp")(normed(x, shift, scale))
        return streams["img"], streams["txt"]


class TimestepEmbedder(nn.Module):
    """Cosines and sines of a timestep, through two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        half = torch.arange(FREQUENCIES // 2, dtype=torch.float32, device=t.device)
        angles = t.float()[:, None] * torch.exp(-math.log(10000) * half / len(half))
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=1).to(t.dtype))


class RefinerBlock(nn.Module):
    """Self-attention of the text, with a fused projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.self_attn_qkv, self.self_attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = layers(fc1=nn.Linear(width, 4 * width), act=nn.SiLU(), fc2=nn.Linear(4 * width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        gate, mlp_gate = self.adaLN_modulation(c)[:, None].chunk(2, dim=-1)
        q, k, v = self.self_attn_qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).unbind(2)
        x = x + gate * self.self_attn_proj(attend(q, k, v, keep))
        return x + mlp_gate * self.mlp(self.norm2(x))


class TextRefiner(nn.Module):
    """The text encoder's states, refined by the timestep and their own mean."""

    def __init__(self, width: int, heads: int, text: int, count: int) -> None:
        super().__init__()
        self.input_embedder, self.t_embedder = nn.Linear(text, width), TimestepEmbedder(width)
        self.c_embedder = layers(linear_1=nn.Linear(text, width), act=nn.SiLU(), linear_2=nn.Linear(width, width))
        blocks = nn.ModuleList(RefinerBlock(width, heads) for _ in range(count))
        self.individual_token_refiner = nn.ModuleDict({"blocks": blocks})

    def forward(self, x: torch.Tensor, t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weight = mask[:, :, None].float()
        c = self.t_embedder(t) + self.c_embedder(((x * weight).sum(1) / weight.sum(1)).to(x.dtype))
        x = self.input_embedder(x)
        for block in self.individual_token_refiner["blocks"].children():
            x = block(x, c, mask)
        return x


class HunyuanVideo15(nn.Module):
    """Latents, a timestep and two encoders' texts to a velocity; `config` is the checkpoint's, patches are single."""

    def __init__(self, config: Mapping[str, Any], masked: bool) -> None:
        super().__init__()
        heads, glyphs = config["num_attention_heads"], config["text_embed_2_dim"]
        width = heads * config["attention_head_dim"]
        self.axes = config["rope_axes_dim"]
        self.img_in = nn.ModuleDict({"proj": nn.Conv3d(config["in_channels"], width, 1)})
        self.time_in = TimestepEmbedder(width)
        self.txt_in = TextRefiner(width, heads, config["text_embed_dim"], config["num_refiner_layers"])
        first, second, third = nn.Linear(glyphs, GLYPHS), nn.Linear(GLYPHS, GLYPHS), nn.Linear(GLYPHS, width)
        self.byt5_in = layers(
            layernorm=nn.LayerNorm(glyphs), fc1=first, act_1=nn.GELU(), fc2=second, act_2=nn.GELU(), fc3=third
        )
        self.cond_type_embedding = nn.Embedding(3, width)
        blocks = (DoubleBlock(width, heads, config["mlp_ratio"], masked) for _ in range(config["num_layers"]))
        self.double_blocks = nn.ModuleList(blocks)
        modulation, linear = nn.Linear(width, 2 * width), nn.Linear(width, config["out_channels"])
        self.final_layer = nn.ModuleDict({"adaLN_modulation": nn.Sequential(nn.SiLU(), modulation), "linear": linear})

    def forward(
        self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, text_mask: torch.Tensor, glyphs: torch.Tensor,
        glyph_mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        img, vec, freqs = self.img_in["proj"](x).flatten(2).transpose(1, 2), self.time_in(t), self._angles(x)
        kinds = self.cond_type_embedding.weight
        streams = [self.byt5_in(glyphs) + kinds[1], self.txt_in(text, t, text_mask) + kinds[0]]
        mask = torch.cat([glyph_mask, text_mask], dim=1)
        txt = torch.cat(streams, dim=1) * mask[:, :, None]
        order = torch.argsort((~mask).int(), dim=1, stable=True)  # valid tokens first
        txt, mask = txt.gather(1, order[:, :, None].expand_as(txt)), mask.gather(1, order)
        for block in self.double_blocks:
            img, txt = block(img, txt, vec, freqs, mask)
        modulation = self.final_layer["adaLN_modulation"](vec)[:, None].chunk(2, dim=-1)
        return self.final_layer["linear"](normed(img, *modulation)).transpose(1, 2).unflatten(2, x.shape[2:])

    def _angles(self, x: torch.Tensor) -> torch.Tensor:
        """Angles [tokens, head dim / 2]: a part of the channels for each of time, height and width."""
        places = torch.meshgrid(*(torch.arange(n, device=x.device).float() for n in x.shape[2:]), indexing="ij")
        parts = []
        for place, channels in zip(places, self.axes, strict=True):
            even = torch.arange(0, channels, 2, device=x.device).float() / channels
            parts.append(torch.outer(place.flatten(), 1 / THETA**even))
        return torch.cat(parts, dim=1)


def build(case: Case) -> Port:
    """The port, with the weights of the checkpoint."""
    net = HunyuanVideo15(case.config, case.settings["attention.mask"] != "none").eval()
    load_weights(net, case.folder / "transformer")

    def call(i: Mapping[str, torch.Tensor]) -> torch.Tensor:
        text_mask, glyph_mask = i["encoder_attention_mask"].bool(), i["encoder_attention_mask_2"].bool()
        texts = i["encoder_hidden_states"], text_mask, i["encoder_hidden_states_2"], glyph_mask
        return net(i["hidden_states"], i["timestep"], *texts)

    return Port(module=net, call=call, rename=RENAME)
