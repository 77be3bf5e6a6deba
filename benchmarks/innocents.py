"""Innocent variants: other ways to compute the same, none of which may raise an alarm."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from fault_catalogue import Change, Patch, Variant, attention, logits, plain, replaced, rows, weighed
from torchax import interop

from parity.paths.loaded import Loaded


def in_each_block(name: str, change: Change) -> Patch:
    """One module's forward in every block."""

    def patch(side: Loaded, m: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for block in m.transformer_blocks:
                stack.enter_context(replaced(block.get_submodule(name), change))
            return stack.pop_all()

    return patch


def split_sums(m: Any, old: Any, x: Any) -> Any:
    """Each feed-forward's second product in two halves, added up: what a tensor-parallel mesh does."""
    half = x.shape[-1] // 2
    first = F.linear(x[..., :half], m.weight[:, :half])
    return first + F.linear(x[..., half:], m.weight[:, half:]) + m.bias


def blocked_softmax(q: Any, k: Any, v: Any, valid: Any) -> Any:
    """Attention over blocks of keys with a running maximum, as flash attention sums."""
    scale = q.shape[-1] ** -0.5
    top, total, out = None, 0.0, 0.0
    for i in range(0, k.shape[2], 32):
        scores = (q @ k[:, :, i : i + 32].transpose(-1, -2)) * scale
        scores = scores.masked_fill(~valid[:, None, None, i : i + 32], -1e30)
        high = scores.amax(-1, keepdim=True)
        new = high if top is None else torch.maximum(top, high)
        shrink = 1.0 if top is None else torch.exp(top - new)
        weight = torch.exp(scores - new)
        total = total * shrink + weight.sum(-1, keepdim=True)
        out = out * shrink + weight @ v[:, :, i : i + 32]
        top = new
    return out / total * rows(valid, v)


def smooth_keys(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k - k.mean(dim=2, keepdim=True), v, valid)


def additive_mask(q: Any, k: Any, v: Any, valid: Any) -> Any:
    bias = torch.where(valid[:, None, None, :], 0.0, -1e9).to(q.dtype)
    return weighed(logits(q, k) + bias, v, None)


def fused_projections(side: Loaded, m: Any) -> Any:
    """The projections of each block in one product, cut apart after it."""

    def held(path: str) -> Any:
        """A parameter; where one projection is run alone, the two beside it have theirs in the candidate only."""
        own = operator.attrgetter(path)(m)
        return own if hasattr(own, "jax") else interop.torch_view(side.backend.params[path])  # type: ignore[attr-defined]

    def part(attn: str, at: int) -> Change:
        def change(m: Any, old: Any, x: Any) -> Any:
            weight, bias = (torch.cat([held(f"{attn}.to_{p}.{kind}") for p in "qkv"]) for kind in ("weight", "bias"))
            return F.linear(x, weight, bias).chunk(3, dim=-1)[at]

        return change

    with contextlib.ExitStack() as stack:
        for i in range(len(m.transformer_blocks)):
            attn = f"transformer_blocks.{i}.attn"
            for at, p in enumerate("qkv"):
                stack.enter_context(replaced(m.get_submodule(f"{attn}.to_{p}"), part(attn, at)))
        return stack.pop_all()


def other_statistics(m: Any, old: Any, x: Any) -> Any:
    """Layer norms by mean of squares less square of the mean, in float32."""
    wide = x.to(torch.float32)
    mean = wide.mean(-1, keepdim=True)
    var = (wide * wide).mean(-1, keepdim=True) - mean * mean
    return ((wide - mean) * torch.rsqrt(var + m.eps)).to(x.dtype)


INNOCENTS = (
    Variant("jit"),
    Variant("eager", settings=("jit=false",)),
    Variant("mesh tp=2", settings=("mesh=dp=1,sp=1,tp=2",)),
    Variant("mesh sp=2", settings=("mesh=dp=1,sp=2,tp=1",)),
    Variant("both branches in one batch, mesh dp=2", settings=("mesh=dp=2,sp=1,tp=1",)),
    Variant("mesh 2x2x2", settings=("mesh=dp=2,sp=2,tp=2",)),
    Variant("fc2 replicated, tp=4", settings=("mesh=dp=1,sp=1,tp=4", "sharding=tp_fc2_replicated")),
    Variant("zeroed keys rescaled", settings=("attention.mask=zero_kv_rescaled",)),
    Variant("concatenated text", settings=("text.reorder=concatenate",)),
    Variant("no vision states", settings=("vision_states=none",)),
    Variant("cached rotary tables", settings=("rope=cached",)),
    Variant("attention written out", patch=attention(plain)),
    Variant("attention in blocks of keys", patch=attention(blocked_softmax)),
    Variant("K-smooth", patch=attention(smooth_keys)),
    Variant("additive mask", patch=attention(additive_mask)),
    Variant("fused projections", patch=fused_projections),
    Variant("split sums", patch=in_each_block("ff.net.2", split_sums)),
    Variant("norm statistics otherwise", patch=in_each_block("norm2", other_statistics)),
)
