"""Joint attention of image and text tokens in every way that ports keep padded text out of it.

Written once in torch's functions, so that torchax runs the same code on JAX. The masks of DESIGN section 4:

- `exact`: padded keys get no weight; the outputs of padded queries are 0 (as in diffusers' own processor).
- `none`: nothing is masked.
- `zero_kv`: padded keys and values are multiplied by 0. Each still has logit 0 and takes weight exp(0): not a mask.
- `zero_kv_rescaled`: undoes that exactly: with lse the log-sum-exp over all keys and n the number of zeroed keys,
  out / (1 - n * exp(-lse)).

Cost: `flex` on CUDA is one fused kernel; everywhere else, and for `zero_kv_rescaled` with sdpa, scores are
materialised for `QUERY_CHUNK` query rows at a time.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.hooks.attach import attention_call

SETTLE: ContextVar[Callable[..., Any]] = ContextVar("parity_settle", default=lambda *tensors: tensors)
"""How a compiling backend pins query, key and value, observed or not: see `parity.paths.candidate`."""

QUERY_CHUNK = 4096
"""Query rows whose scores are held at once where a log-sum-exp is computed by hand."""


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor, *, kernel: str, mask: str
) -> torch.Tensor:
    """Attention over the tokens of a joint sequence.

    Args:
        query, key, value: [B, L, heads, head dim], one dtype.
        valid: bool [B, L], False for padding.
        kernel: `flex` or `sdpa`. mask: `exact`, `none`, `zero_kv` or `zero_kv_rescaled`.

    Returns:
        [B, L, heads, head dim] in the dtype of value.
    """
    query, key, value = SETTLE.get()(query, key, value)
    with attention_call() as seen:
        out = _attend(query, key, value, valid, kernel, mask)
        seen(query, key, value, out)
    return out


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor, kernel: str, mask: str
) -> torch.Tensor:
    q, k, v = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    if mask in ("zero_kv", "zero_kv_rescaled"):
        keep = valid[:, None, :, None].to(k.dtype)
        k, v = k * keep, v * keep
    run = _flex if kernel == "flex" else _sdpa
    out, lse = run(q, k, v, valid if mask == "exact" else None, mask == "zero_kv_rescaled")
    if lse is not None:
        phantoms = (~valid).sum(dim=1)[:, None, None].to(lse.dtype)
        out = (out / (1.0 - phantoms * torch.exp(-lse))[..., None]).to(v.dtype)
    return out.permute(0, 2, 1, 3)


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid: torch.Tensor | None, want_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """scaled_dot_product_attention; the mask is per key, so nothing of size L x L is built for it."""
    attn_mask = None if valid is None else valid[:, None, None, :]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
    if valid is not None:
        out = out * valid[:, None, :, None].to(out.dtype)
    return out, _lse(q, k) if want_lse else None


def _lse(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of the scaled scores over all keys, float32 [B, heads, L]."""
    scale = 1.0 / math.sqrt(q.shape[-1])
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = k.to(wide).transpose(-1, -2)
    chunks = [
        torch.logsumexp((q[:, :, i : i + QUERY_CHUNK].to(wide) @ keys) * scale, dim=-1)
        for i in range(0, q.shape[2], QUERY_CHUNK)
    ]
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=-1)


def _flex(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid: torch.Tensor | None, want_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """flex_attention: compiled on CUDA, torch's unfused implementation elsewhere."""
    block_mask = None if valid is None else _block_mask(valid, q.shape[2], q.device)
    run = _flex_function(q.device.type)
    if want_lse:
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
            _COMPILED_FLEX = torch.compile(module.flex_attention, dynamic=False)
        return _COMPILED_FLEX
    # Off CUDA torch wraps even the unfused implementation in torch.compile(backend="eager"), which adds seconds and
    # fails once torchax is imported (dynamo asks the accelerator for its stream). This is torch's own switch for it.
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    return module.flex_attention


_COMPILED_FLEX: Callable[..., Any] | None = None
_BLOCK_MASKS: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}


def _block_mask(valid: torch.Tensor, length: int, device: torch.device) -> Any:
    """The block mask in which valid queries see valid keys, made once for each mask tensor alive."""
    from torch.nn.attention.flex_attention import create_block_mask

    known = _BLOCK_MASKS.get(id(valid))
    if known is not None and known[0]() is valid:
        return known[1]

    def both_valid(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return valid[batch, query] & valid[batch, key]

    made = create_block_mask(both_valid, valid.shape[0], None, length, length, device=device)
    _BLOCK_MASKS.clear()
    _BLOCK_MASKS[id(valid)] = (weakref.ref(valid), made)
    return made
