"""Innocent variants: other ways to compute the same, none of which may raise an alarm."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from fault_catalogue import attention, module, plain, wrap
from torchax import interop

from parity.paths.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Innocent:
    """A variant: settings of the candidate, and a patch of the loaded side.

    Attributes:
        name: for the table. settings: of the candidate. patch: changes the side; may return what undoes it.
    """

    name: str
    settings: tuple[str, ...] = ()
    patch: Callable[[Loaded], Any] | None = None

    @contextlib.contextmanager
    def apply(self, side: Loaded) -> Iterator[None]:
        undo = None
        if self.patch is not None:
            with side.backend.scope():
                undo = self.patch(side)
        with undo or contextlib.nullcontext():
            yield


def split_sums(side: Loaded) -> None:
    """Each feed-forward's second product in two halves, added up: what a tensor-parallel mesh does."""
    for i in range(4):
        m = module(side, f"transformer_blocks.{i}.ff.net.2")
        if "forward" in m.__dict__:
            return  # patched already, for another seed

        def change(old: Any, x: Any, m: Any = m) -> Any:
            half = x.shape[-1] // 2
            first = F.linear(x[..., :half], m.weight[:, :half])
            return first + F.linear(x[..., half:], m.weight[:, half:]) + m.bias

        wrap(m, change)


def written_out(side: Loaded) -> Any:
    return attention(plain)


def blocked_softmax(side: Loaded) -> Any:
    """Attention over blocks of keys with a running maximum, as flash attention sums."""

    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
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
        return out / total * valid[:, None, :, None].to(v.dtype)

    return attention(change)


def smooth_keys(side: Loaded) -> Any:
    return attention(lambda q, k, v, valid: plain(q, k - k.mean(dim=2, keepdim=True), v, valid))


def additive_mask(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        bias = torch.where(valid[:, None, None, :], 0.0, -1e9).to(q.dtype)
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + bias
        return torch.softmax(scores, dim=-1) @ v

    return attention(change)


def fused_qkv(side: Loaded) -> None:
    """The projections of each block in one product, cut apart after it."""
    for i in range(4):
        attn = module(side, f"transformer_blocks.{i}.attn")
        if "forward" in attn.to_q.__dict__:
            return

        def held(name: str, attn: Any = attn, i: int = i) -> Any:
            """A parameter; where one projection is run alone, the two beside it have theirs in the candidate only."""
            own = operator.attrgetter(name)(attn)
            theirs = side.backend.params[f"transformer_blocks.{i}.attn.{name}"]
            return own if hasattr(own, "jax") else interop.torch_view(theirs)

        def change(old: Any, x: Any, held: Any = held, at: int = 0) -> Any:
            weight, bias = (torch.cat([held(f"to_{p}.{kind}") for p in "qkv"]) for kind in ("weight", "bias"))
            return F.linear(x, weight, bias).chunk(3, dim=-1)[at]

        for at, name in enumerate(("to_q", "to_k", "to_v")):
            part = getattr(attn, name)
            wrap(part, lambda old, x, change=change, at=at: change(old, x, at=at))


def statistics_otherwise(side: Loaded) -> None:
    """Layer norms by mean of squares less square of the mean, in float32."""
    for i in range(4):
        m = module(side, f"transformer_blocks.{i}.norm2")
        if "forward" in m.__dict__:
            return

        def change(old: Any, x: Any, m: Any = m) -> Any:
            wide = x.to(torch.float32)
            mean = wide.mean(-1, keepdim=True)
            var = (wide * wide).mean(-1, keepdim=True) - mean * mean
            return ((wide - mean) * torch.rsqrt(var + m.eps)).to(x.dtype)

        wrap(m, change)


INNOCENTS = (
    Innocent("jit"),
    Innocent("eager", ("jit=false",)),
    Innocent("mesh tp=2", ("mesh=dp=1,sp=1,tp=2",)),
    Innocent("mesh sp=2", ("mesh=dp=1,sp=2,tp=1",)),
    Innocent("both branches in one batch, mesh dp=2", ("mesh=dp=2,sp=1,tp=1",)),
    Innocent("mesh 2x2x2", ("mesh=dp=2,sp=2,tp=2",)),
    Innocent("fc2 replicated, tp=4", ("mesh=dp=1,sp=1,tp=4", "sharding=tp_fc2_replicated")),
    Innocent("zeroed keys rescaled", ("attention.mask=zero_kv_rescaled",)),
    Innocent("concatenated text", ("text.reorder=concatenate",)),
    Innocent("no vision states", ("vision_states=none",)),
    Innocent("cached rotary tables", ("rope=cached",)),
    Innocent("attention written out", patch=written_out),
    Innocent("attention in blocks of keys", patch=blocked_softmax),
    Innocent("K-smooth", patch=smooth_keys),
    Innocent("additive mask", patch=additive_mask),
    Innocent("fused projections", patch=fused_qkv),
    Innocent("split sums", patch=split_sums),
    Innocent("norm statistics otherwise", patch=statistics_otherwise),
)
