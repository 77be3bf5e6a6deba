"""Joint attention of image and text tokens in every way that ports compute it and keep padded text out of it.

Written once in torch's functions, so that torchax runs the same code on JAX; for JAX alone there is the kernel
`splash`. The masks (docs/your-model.md):

- `exact`: padded keys get no weight; the outputs of padded queries are 0 (as in diffusers' own processor).
- `none`: nothing is masked.
- `zero_kv`: padded keys and values are multiplied by 0. Each still has logit 0 and takes weight exp(0): not a mask.
- `zero_kv_rescaled`: undoes that exactly: with lse the log-sum-exp over all keys and n the number of zeroed keys,
  out / (1 - n * exp(-lse)).
- `segment_ids`: valid tokens see valid tokens, padded ones see padded ones. Equal to `exact` in every valid row.
- `segment_ids_first_row`: the ids of the first row of the batch serve for all rows. A fault in itself, so it takes
  effect however the model is called: the first row is that of the first guidance branch (`parity.paths.loaded.BRANCHES`
  names it: `cond`), and where branches are called one by one the model's family hands each call that branch's mask.

The other settings, in the order in which a port comes to them: padded keys and values are zeroed; `k_smooth` subtracts
the mean over all keys, which softmax does not see; then the sequence is filled up to whole blocks. A masked filling
changes nothing; with `block_padding=unmasked` the added keys count as valid tokens with logit 0 and value 0. They come
after smoothing, so smoothing is innocent in everything but them.

The kernels take query [B, heads, L, head dim], key and value [B, heads, keys, head dim] and who sees whom. The
log-sum-exp of the scaled scores [B, heads, L], where a mask wants it, is the kernel's own of splash and of a softmax in
bfloat16; of torch's kernels it is computed beside.

Cost: `flex` on CUDA is one fused kernel, except in float64; everywhere else, for the log-sum-exp and for the softmax in
bfloat16, scores are materialised for `QUERY_CHUNK` query rows at a time. Segments with sdpa need a mask of
L x keys.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.hooks.attach import attention_call, exchanged
from parity.settings import SPLASH_BLOCK, Reached, Settings

SETTLE: ContextVar[Callable[..., Any]] = ContextVar("parity_settle", default=lambda *tensors: tensors)
"""How a compiling backend pins query, key and value, observed or not: see `parity.paths.jax.candidate`."""

Mark = Callable[[str], None]
"""Takes the name of a setting whose code was reached."""


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """How attention is computed; each attribute is the setting `attention.<name>`.

    Attributes:
        kernel: `flex`, `sdpa` or, on JAX, `splash`. mask: see the module.
        block_q, block_kv: of a blocked kernel, 0 for splash's own. block_padding: `masked` or `unmasked`.
        k_smooth: whether the mean key is subtracted. softmax_dtype: `float32`, or `bfloat16`, computed by hand.
    """

    kernel: str
    mask: str = "exact"
    block_q: int = 0
    block_kv: int = 0
    block_padding: str = "masked"
    k_smooth: bool = False
    softmax_dtype: str = "float32"

    @classmethod
    def of(cls, settings: Settings) -> AttentionSettings:
        """The choice that a side's settings make."""
        values: dict[str, Any] = {field.name: settings[f"attention.{field.name}"] for field in fields(cls)}
        return cls(**values)

    def added_keys(self, length: int) -> int:
        """How many keys an unmasked filling adds to a sequence of this length: -length mod block."""
        return -length % (self.block_kv or splash_block(length)) if self.block_padding == "unmasked" else 0


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    valid: torch.Tensor,
    how: AttentionSettings,
    mark: Mark = lambda name: None,
) -> torch.Tensor:
    """Attention over the tokens of a joint sequence.

    Args:
        query, key, value: [B, L, heads, head dim], one dtype.
        valid: bool [B, L], False for padding. how: kernel, mask and the rest. mark: told each setting that is reached.

    Returns:
        [B, L, heads, head dim] in the dtype of value. Padded queries give 0 under `exact` and finite numbers, which no
        valid row reads, under the others.
    """
    query, key, value = SETTLE.get()(query, key, value)
    with attention_call(how.kernel) as seen:
        out = exchanged(functools.partial(_attend, valid=valid, how=how, mark=mark), query, key, value)
        seen(query, key, value, out)
    return out


class JointAttention:
    """An attention processor of a transformer's blocks: diffusers' own, but for the attention itself, of which kernel,
    mask and the rest are a choice.

    Args:
        own: diffusers'. around: a context manager, within which that calls the given function of query, key and value,
            each [B, L, heads, head dim]; a module's own, as a model with it may be copied.
        first: the text mask that takes the place of every call's own (`segment_ids_first_row`), None for none.
    """

    def __init__(
        self,
        own: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        around: Callable[[Callable[..., torch.Tensor]], AbstractContextManager[object]],
        how: AttentionSettings,
        reached: Reached,
        first: Sequence[bool] | None = None,
    ) -> None:
        self.own, self.around, self.how, self.reached, self.first = own, around, how, reached, first

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        text = attention_mask
        if text is None:
            text = torch.ones_like(encoder_hidden_states[:, :, 0], dtype=torch.bool)
        elif self.first is not None:
            text = torch.tensor(self.first, device=text.device).expand(text.shape[0], -1)
        valid = F.pad(text, (hidden_states.shape[1], 0), value=True).bool()

        def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
            return attend(query, key, value, valid, self.how, self.reached.mark)

        # Of a mask HunyuanVideo-1.5's makes one of all queries and keys, 13 GB at full size, that nobody reads; XLA
        # drops it.
        unread = attention_mask.to("meta") if type(attention_mask) is torch.Tensor else attention_mask
        with self.around(attention):
            return self.own(attn, hidden_states, encoder_hidden_states, unread, image_rotary_emb)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor, how: AttentionSettings, mark: Mark
) -> torch.Tensor:
    q, k, v = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    mark("attention.mask")
    rescaled = how.mask == "zero_kv_rescaled"
    if rescaled or how.mask == "zero_kv":
        keep = valid[:, None, :, None].to(k.dtype)
        k, v = k * keep, v * keep
    logit = None
    if how.k_smooth:
        mark("attention.k_smooth")
        mean = k.mean(dim=2, keepdim=True)
        k = k - mean
        logit = -_scaled_product(q, mean)  # of a key that was 0 before
    k, v, visible = _fill(k, v, _visible(valid, how.mask), how, mark)
    mark("attention.kernel")
    lse: torch.Tensor | None
    if how.softmax_dtype == "bfloat16":
        mark("attention.softmax_dtype")
        out, lse = narrow_softmax(q, k, v, visible)
    elif how.kernel == "splash":
        from parity.models import splash  # jax, only from here on

        mark("attention.block_q")
        mark("attention.block_kv")
        out, lse = splash.splash(q, k, v, visible, block_q=how.block_q, block_kv=how.block_kv, lse=rescaled)
    else:
        out = (flex if how.kernel == "flex" else sdpa)(q, k, v, visible)
        lse = _lse(q, k) if rescaled else None
    if rescaled and lse is not None:
        zeroed = (~valid).sum(dim=1)[:, None, None].to(lse.dtype)
        share = 1.0 - zeroed * torch.exp(-lse if logit is None else logit - lse)
        # Without any valid key there is nothing to share, and every value is 0.
        out = (out / share.masked_fill(share == 0.0, 1.0)[..., None]).to(v.dtype)
    if visible is not None and not visible.segments:
        out = out.masked_fill(~visible.queries[:, None, :, None], 0.0)  # not times 0, which would keep a NaN
    return out.permute(0, 2, 1, 3)


def _scaled_product(q: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Logits [B, heads, L] of one key [B, heads, 1, head dim] for every query, in float32 or wider."""
    dtype = wide(q)
    return (q.to(dtype) * key.to(dtype)).sum(dim=-1) / math.sqrt(q.shape[-1])


def _visible(valid: torch.Tensor, mask: str) -> Visible | None:
    """Who sees whom; None where every query sees every key."""
    if mask == "exact":
        return Visible(valid, valid, segments=False)
    if mask == "segment_ids_first_row":
        valid = valid[:1].expand(valid.shape[0], -1)
    return Visible(valid, valid, segments=True) if mask.startswith("segment_ids") else None


def _fill(
    k: torch.Tensor, v: torch.Tensor, visible: Visible | None, how: AttentionSettings, mark: Mark
) -> tuple[torch.Tensor, torch.Tensor, Visible | None]:
    """Append the keys and values of an unmasked filling to whole blocks."""
    if how.kernel != "splash":
        # Blocks are only a matter of what is computed together, but for what fills the last one.
        mark("attention.block_q")
        mark("attention.block_kv")
    mark("attention.block_padding")
    added = how.added_keys(k.shape[2])
    if not added:
        return k, v, visible
    if visible is not None:
        visible = Visible(visible.queries, F.pad(visible.keys, (0, added), value=True), visible.segments)
    return F.pad(k, (0, 0, 0, added)), F.pad(v, (0, 0, 0, added)), visible


# --- the kernels


QUERY_CHUNK = 4096
"""Query rows whose scores are held at once where scores are computed by hand."""

MOST_BLOCKS = 1 << 16
"""Entries of splash's table of blocks, two bytes each. A TPU core has 1 MiB for it and all else that a kernel is given
as scalars: at 113,585 tokens the compiler refuses blocks of 128 (788,544 entries), and takes 256 (197,136)."""


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


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None) -> torch.Tensor:
    """scaled_dot_product_attention; a mask of the keys alone is not expanded to L x keys."""
    if _is_unfused(q):
        return in_chunks(q, k, v, visible)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if visible is None else visible.mask())


def in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None) -> torch.Tensor:
    """scaled_dot_product_attention for `QUERY_CHUNK` query rows at a time, so that not all scores are held at once."""
    outs = [F.scaled_dot_product_attention(rows, k, v, attn_mask=mask) for rows, mask in _chunks(q, visible)]
    return torch.cat(outs, dim=2)


def _chunks(q: torch.Tensor, visible: Visible | None) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """`QUERY_CHUNK` query rows at a time, and their mask."""
    for start in range(0, q.shape[2], QUERY_CHUNK):
        stop = start + QUERY_CHUNK
        yield q[:, :, start:stop], None if visible is None else visible.mask(start, stop)


def _is_unfused(q: torch.Tensor) -> bool:
    """Whether CUDA has no fused kernel for this dtype: all of them, flex_attention's too, add up in float32."""
    return q.device.type == "cuda" and q.dtype == torch.float64


def _lse(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp over all keys, in float32 or wider."""
    return torch.cat([torch.logsumexp(_scores(rows, k), dim=-1) for rows, _ in _chunks(q, None)], dim=-1)


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scaled scores [B, heads, rows, keys] in float32 or wider."""
    return (q.to(wide(q)) @ k.to(wide(q)).transpose(-1, -2)) * (1.0 / math.sqrt(q.shape[-1]))


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None) -> torch.Tensor:
    """flex_attention: compiled on CUDA, torch's unfused implementation elsewhere, and for float64 on CUDA `sdpa`."""
    if _is_unfused(q):
        return sdpa(q, k, v, visible)
    block_mask = None if visible is None else _block_mask(visible, q.device)
    out: torch.Tensor = _flex_function(q.device.type)(q, k, v, block_mask=block_mask)
    return out


def _flex_function(device: str) -> Callable[..., Any]:
    """flex_attention for a device, compiled once for CUDA."""
    from torch.nn.attention import flex_attention as module

    if device == "cuda":
        # While a call is observed, what stands there looks at each call and calls torch's.
        return _compiled(inspect.unwrap(module.flex_attention))
    return module.flex_attention


@functools.lru_cache(maxsize=1)
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _block_mask(visible: Visible, device: torch.device) -> Any:
    """The block mask of who sees whom, made once where the next calls' masks hold the same."""
    with torch._C.DisableTorchFunction():
        queries, keys = (x.cpu().numpy() for x in (visible.queries, visible.keys))
    return _made_block_mask(queries.tobytes(), keys.tobytes(), len(queries), visible.segments, device)


@functools.lru_cache(maxsize=4)
def _made_block_mask(queries: bytes, keys: bytes, batch: int, segments: bool, device: torch.device) -> Any:
    """The block mask of bool masks [batch, L] and [batch, keys]; those of the last attentions of both branches stay."""
    from torch.nn.attention.flex_attention import create_block_mask

    masks = (torch.frombuffer(bytearray(x), dtype=torch.bool) for x in (queries, keys))
    rows, columns = (x.view(batch, -1).to(device) for x in masks)

    def sees(item: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if segments:
            return rows[item, query] == columns[item, key]
        return rows[item, query] & columns[item, key]

    return create_block_mask(sees, batch, None, rows.shape[1], columns.shape[1], device=device)


def narrow_softmax(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: Visible | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention whose softmax takes and gives bfloat16, and computes wider, as torch's does, and XLA's where fused.

    Scores and weights are rounded, exponentials and their sum are not: a rounded sum is one number that moves a whole
    row where it falls to the other side, and no two programs could be compared.
    """
    outs, lses = [], []
    for rows, mask in _chunks(q, visible):
        scores = _rounded(_scores(rows, k))
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        top = scores.amax(dim=-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0.0)
        weights = torch.exp(scores - top)
        total = weights.sum(dim=-1, keepdim=True)
        outs.append(_rounded(weights / total.masked_fill(total == 0.0, 1.0)).to(v.dtype) @ v)
        lses.append((top + torch.log(total))[..., 0])
    return torch.cat(outs, dim=2), torch.cat(lses, dim=-1)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, dtype kept."""
    if x.device.type == "jax":
        from parity.models.splash import rounded  # XLA may drop a cast that is undone at once

        return rounded(x)
    return x.to(torch.bfloat16).to(x.dtype)
