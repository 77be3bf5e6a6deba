"""Joint attention of image and text tokens in every way that ports compute it and keep padded text out of it.

Written once in torch's functions, so that torchax runs the same code on JAX; the kernels are in `attention_kernels`
and, for JAX alone, `splash`. The masks (docs/your-model.md):

- `exact`: padded keys get no weight; the outputs of padded queries are 0 (as in diffusers' own processor).
- `none`: nothing is masked.
- `zero_kv`: padded keys and values are multiplied by 0. Each still has logit 0 and takes weight exp(0): not a mask.
- `zero_kv_rescaled`: undoes that exactly: with lse the log-sum-exp over all keys and n the number of zeroed keys,
  out / (1 - n * exp(-lse)).
- `segment_ids`: valid tokens see valid tokens, padded ones see padded ones. Equal to `exact` in every valid row.
- `segment_ids_first_row`: the ids of the first row of the batch serve for all rows. A fault in itself, so it takes
  effect however the model is called: the first row is that of the first guidance branch (`parity.paths.inputs.BRANCHES`
  names it: `cond`), and where branches are called one by one the model's family hands each call that branch's mask.

The other settings, in the order in which a port comes to them: padded keys and values are zeroed; `k_smooth` subtracts
the mean over all keys, which softmax does not see; then the sequence is filled up to whole blocks. A masked filling
changes nothing; with `block_padding=unmasked` the added keys count as valid tokens with logit 0 and value 0. They come
after smoothing, so smoothing is innocent in everything but them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.hooks.attach import attention_call
from parity.models import attention_kernels as kernels
from parity.models.attention_kernels import Visible
from parity.settings import Settings

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
        return -length % (self.block_kv or kernels.splash_block(length)) if self.block_padding == "unmasked" else 0


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
        out = _attend(query, key, value, valid, how, mark)
        seen(query, key, value, out)
    return out


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
    out, lse = _run(q, k, v, visible, how, rescaled, mark)
    if lse is not None:
        zeroed = (~valid).sum(dim=1)[:, None, None].to(lse.dtype)
        share = 1.0 - zeroed * torch.exp(-lse if logit is None else logit - lse)
        # Without any valid key there is nothing to share, and every value is 0.
        out = (out / share.masked_fill(share == 0.0, 1.0)[..., None]).to(v.dtype)
    if visible is not None and not visible.segments:
        out = out.masked_fill(~visible.queries[:, None, :, None], 0.0)  # not times 0, which would keep a NaN
    return out.permute(0, 2, 1, 3)


def _scaled_product(q: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Logits [B, heads, L] of one key [B, heads, 1, head dim] for every query, in float32 or wider."""
    wide = kernels.wide(q)
    return (q.to(wide) * key.to(wide)).sum(dim=-1) / math.sqrt(q.shape[-1])


def _visible(valid: torch.Tensor, mask: str) -> Visible | None:
    """Who sees whom; None where every query sees every key."""
    if mask == "exact":
        return Visible(valid, valid, segments=False)
    if mask == "segment_ids":
        return Visible(valid, valid, segments=True)
    if mask == "segment_ids_first_row":
        first = valid[:1].expand(valid.shape[0], -1)
        return Visible(first, first, segments=True)
    return None


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


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: Visible | None,
    how: AttentionSettings,
    lse: bool,
    mark: Mark,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention [B, heads, L, head dim] by the chosen kernel and, where asked, its log-sum-exp [B, heads, L]."""
    mark("attention.kernel")
    if how.softmax_dtype == "bfloat16":
        mark("attention.softmax_dtype")
        return kernels.narrow_softmax(q, k, v, visible, lse)
    if how.kernel == "splash":
        from parity.models import splash  # jax, only from here on

        mark("attention.block_q")
        mark("attention.block_kv")
        return splash.attention(q, k, v, visible, block_q=how.block_q, block_kv=how.block_kv, lse=lse)
    return (kernels.flex if how.kernel == "flex" else kernels.sdpa)(q, k, v, visible, lse)
