"""The attention kernels that torch has, each with the same arguments and results, and a softmax in bfloat16 by hand.

All take query [B, heads, L, head dim], key and value [B, heads, keys, head dim], who sees whom, and whether the
log-sum-exp of the scaled scores [B, heads, L] is wanted.

Cost: `flex` on CUDA is one fused kernel, except in float64; everywhere else, for the log-sum-exp with sdpa and for the
softmax in bfloat16, scores are materialised for `QUERY_CHUNK` query rows at a time. Segments with sdpa need a mask of
L x keys.
"""

from __future__ import annotations

import collections
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.settings import SPLASH_BLOCK

QUERY_CHUNK = 4096
"""Query rows whose scores are held at once where scores are computed by hand."""

MOST_BLOCKS = 1 << 16
"""Entries of splash's table of blocks, two bytes each. A TPU core has 1 MiB for it and all else that a kernel is given
as scalars: at 113,585 tokens the compiler refuses blocks of 128 (788,544 entries), and takes 256 (197,136)."""

Result = tuple[torch.Tensor, torch.Tensor | None]
"""Attention in the dtype of value, and its log-sum-exp where that was wanted."""


@dataclass(frozen=True, slots=True)
class Visible:
    """Which keys a query sees.

    Attributes:
        queries: bool [B, L], valid queries. keys: bool [B, keys], valid keys.
        segments: whether a query sees the keys that are as valid as itself; otherwise all see the valid keys, and what
            invalid queries come to does not matter.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    segments: bool

    @property
    def both(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.queries, self.keys

    def mask(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """bool, [B, 1, rows, keys] for a range of queries, or [B, 1, 1, keys] where it is the same for all."""
        keys = self.keys[:, None, None, :]
        return self.queries[:, None, start:stop, None] == keys if self.segments else keys


def splash_block(tokens: int) -> int:
    """Rows of splash's blocks where no setting says: 128, doubled until the table of blocks fits a TPU."""
    block = SPLASH_BLOCK
    while (-(-tokens // block)) ** 2 > MOST_BLOCKS:
        block *= 2
    return block


def wide(x: torch.Tensor) -> torch.dtype:
    """The dtype that scores are computed in: float32, or float64 where that is given."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None, lse: bool) -> Result:
    """scaled_dot_product_attention; a mask of the keys alone is not expanded to L x keys."""
    if _is_unfused(q):
        out = in_chunks(q, k, v, visible)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if visible is None else visible.mask())
    return out, _lse(q, k) if lse else None


def in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None) -> torch.Tensor:
    """scaled_dot_product_attention for `QUERY_CHUNK` query rows at a time, so that not all scores are held at once."""
    outs = []
    for start in range(0, q.shape[2], QUERY_CHUNK):
        stop = start + QUERY_CHUNK
        mask = None if visible is None else visible.mask(start, stop)
        outs.append(F.scaled_dot_product_attention(q[:, :, start:stop], k, v, attn_mask=mask))
    return torch.cat(outs, dim=2)


def _is_unfused(q: torch.Tensor) -> bool:
    """Whether CUDA has no fused kernel for this dtype: all of them, flex_attention's too, add up in float32."""
    return q.device.type == "cuda" and q.dtype == torch.float64


def _lse(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp over all keys, in float32 or wider."""
    starts = range(0, q.shape[2], QUERY_CHUNK)
    return torch.cat([torch.logsumexp(_scores(q[:, :, i : i + QUERY_CHUNK], k), dim=-1) for i in starts], dim=-1)


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scaled scores [B, heads, rows, keys] in float32 or wider."""
    return (q.to(wide(q)) @ k.to(wide(q)).transpose(-1, -2)) * (1.0 / math.sqrt(q.shape[-1]))


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None, lse: bool) -> Result:
    """flex_attention: compiled on CUDA, torch's unfused implementation elsewhere, and for float64 on CUDA `sdpa`."""
    if _is_unfused(q):
        return sdpa(q, k, v, visible, lse)
    block_mask = None if visible is None else _block_mask(visible, q.device)
    run = _flex_function(q.device.type)
    if lse:
        from torch.nn.attention.flex_attention import AuxRequest

        out, aux = run(q, k, v, block_mask=block_mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse
    return run(q, k, v, block_mask=block_mask), None


def _flex_function(device: str) -> Callable[..., Any]:
    """flex_attention for a device, compiled once for CUDA."""
    from torch.nn.attention import flex_attention as module

    if device == "cuda":
        global _COMPILED_FLEX
        if _COMPILED_FLEX is None:
            # While a call is observed, what stands there looks at each call and calls torch's.
            _COMPILED_FLEX = torch.compile(inspect.unwrap(module.flex_attention), dynamic=False)
        return _COMPILED_FLEX
    # Off CUDA torch wraps even the unfused implementation in torch.compile(backend="eager"), which adds seconds and
    # fails once torchax is imported (dynamo asks the accelerator for its stream). This is torch's own switch for it.
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    return module.flex_attention


_COMPILED_FLEX: Callable[..., Any] | None = None
_BLOCK_MASKS: collections.deque[tuple[Visible, Any]] = collections.deque(maxlen=4)
"""Who sees whom, and its block mask: of the last attentions of both branches."""


def _block_mask(visible: Visible, device: torch.device) -> Any:
    """The block mask of who sees whom, made once where the next calls' is the same."""
    from torch.nn.attention.flex_attention import create_block_mask

    for known, made in _BLOCK_MASKS:
        if known.segments == visible.segments and all(map(_same, known.both, visible.both)):
            return made
    queries, keys, segments = *visible.both, visible.segments

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if segments:
            return queries[batch, query] == keys[batch, key]
        return queries[batch, query] & keys[batch, key]

    made = create_block_mask(sees, keys.shape[0], None, queries.shape[1], keys.shape[1], device=device)
    _BLOCK_MASKS.append((visible, made))
    return made


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two masks are one; on a CPU also whether they hold the same, which a GPU would be waited for to tell."""
    if a is b or a.shape != b.shape or a.device != b.device or a.device.type != "cpu":
        return a is b
    with torch._C.DisableTorchFunction():
        return torch.equal(a, b)


def narrow_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None, lse: bool) -> Result:
    """Attention whose softmax takes and gives bfloat16, and computes wider, as torch's does, and XLA's where fused.

    Scores and weights are rounded, exponentials and their sum are not: a rounded sum is one number that moves a whole
    row where it falls to the other side, and no two programs could be compared.
    """
    outs, lses = [], []
    for start in range(0, q.shape[2], QUERY_CHUNK):
        stop = start + QUERY_CHUNK
        scores = _rounded(_scores(q[:, :, start:stop], k))
        if visible is not None:
            scores = scores.masked_fill(~visible.mask(start, stop), -math.inf)
        top = scores.amax(dim=-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0.0)
        weights = torch.exp(scores - top)
        total = weights.sum(dim=-1, keepdim=True)
        outs.append(_rounded(weights / total.masked_fill(total == 0.0, 1.0)).to(v.dtype) @ v)
        lses.append((top + torch.log(total))[..., 0])
    return torch.cat(outs, dim=2), torch.cat(lses, dim=-1) if lse else None


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, dtype kept."""
    if x.device.type == "jax":
        from parity.models.splash import rounded  # XLA may drop a cast that is undone at once

        return rounded(x)
    return x.to(torch.bfloat16).to(x.dtype)
