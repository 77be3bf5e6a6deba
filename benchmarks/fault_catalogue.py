"""Faults that ports of video transformers have had, each a small patch of a loaded candidate.

None of them is known to the tool: they patch modules, attention, weights, guidance or schedule of a candidate after it
was loaded, as a port's own code would differ. `at` names where the fault sits: the module whose arithmetic it changes,
`preflight` for what must be seen before a forward, `loop` for the loop's own values.

A patch sees the candidate only: torchax tensors are told by their `jax` method, so that the reference, which runs in
the same process, stays as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from diffusers.models.embeddings import apply_rotary_emb
from torchax import interop

import parity.models.attention as joint
import parity.models.hunyuan_video_15 as hunyuan
from parity.hooks.attach import attention_call
from parity.models.attention import SETTLE
from parity.paths.jax.candidate import to_jax
from parity.paths.loaded import Loaded

Patch = Callable[[Loaded, Any], contextlib.AbstractContextManager[Any] | None]
"""Changes a loaded side, given with the module that the fault sits at; may return what undoes it."""
Change = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate that computes otherwise.

    Attributes:
        name, group: for the table. at: where a fault sits: module path, `preflight` or `loop`.
        patch: of the loaded side. steps: denoising steps that show it. settings: of the candidate.
    """

    name: str
    group: str = ""
    at: str = ""
    patch: Patch = lambda side, m: None
    steps: int = 1
    settings: tuple[str, ...] = ()

    @contextlib.contextmanager
    def apply(self, side: Loaded) -> Iterator[None]:
        """Within it the side has the patch."""
        with side.backend.scope():
            undo = self.patch(side, None if self.at in ("preflight", "loop") else module(side, self.at))
        with undo or contextlib.nullcontext():
            yield


FAULTS: list[Variant] = []
BLOCK = "transformer_blocks.1"
"""The block that block-wise faults sit in: not the first, so that what is before it must be told innocent."""


def fault(name: str, group: str, at: str, patch: Patch, **more: Any) -> None:
    """Enter a fault in the catalogue."""
    FAULTS.append(Variant(name, group, at, patch, **more))


def named(group: str, at: str, kind: Callable[[Change], Patch], **more: Any) -> Callable[[Change], Change]:
    """Enter one that takes more than a line, under the name of a function."""

    def enter(change: Change) -> Change:
        fault(change.__name__, group, at, kind(change), **more)
        return change

    return enter


# --- kinds of patches ------------------------------------------------------------------------------------------


def module(side: Loaded, path: str) -> Any:
    return side.backend.model.get_submodule(path)


def replaced(owner: Any, change: Change, method: str = "forward") -> contextlib.AbstractContextManager[Any]:
    """A method that gives way to `change(owner, old method, *args, **kwargs)`."""
    old = getattr(owner, method)
    return mock.patch.object(owner, method, lambda *args, **kwargs: change(owner, old, *args, **kwargs))


def patch(change: Patch) -> Patch:
    """Any other."""
    return change


def forward(change: Change) -> Patch:
    """Of the module that the fault sits at."""
    return lambda side, m: replaced(m, change)


def attributes(**values: Any) -> Patch:
    """Of the module that the fault sits at."""
    return lambda side, m: vars(m).update(values)


def sampler(method: str) -> Callable[[Change], Patch]:
    def changed(made: Any, change: Change) -> None:
        setattr(made, method, functools.partial(change, made, getattr(made, method)))

    return lambda change: lambda side, m: other_sampler(side, lambda made: changed(made, change))


def other_sampler(side: Loaded, change: Callable[[Any], None]) -> contextlib.AbstractContextManager[Any]:
    """Every loop of the side takes its schedule and steps from a sampler that is changed."""
    own, network = side.network.sampler, copy.copy(side.network)

    def sampler(seed: int) -> Any:
        made = own(seed)
        change(made)
        return made

    network.sampler = sampler  # type: ignore[method-assign]
    return mock.patch.object(side, "network", network)


def weight(name: str) -> Callable[[Change], Patch]:
    """A weight on the candidate's devices, changed before preflight."""

    def set_weight(side: Loaded, change: Change) -> None:
        params = side.backend.params  # type: ignore[attr-defined]
        host = torch.from_numpy(side.backend.host(interop.torch_view(params[name])).copy())
        params[name] = to_jax(change(host).to(side.backend.dtype))

    return lambda change: lambda side, m: set_weight(side, change)


def attention(change: Change) -> Patch:
    """The joint attention of all blocks gives way to `change(q, k, v, valid)`, [B, heads, L, d], valid [B, L]."""
    return lambda side, m: attending(change)


def one_attention(change: Change) -> Patch:
    """That of the module that the fault sits at, whoever calls it."""
    return lambda side, m: attending(change, m)


def attending(change: Change, only: Any = None) -> contextlib.AbstractContextManager[Any]:
    original = joint.attend
    inside = [only is None]

    def entered(m: Any, old: Any, *args: Any, **kwargs: Any) -> Any:
        inside[0] = True
        try:
            return old(*args, **kwargs)
        finally:
            inside[0] = False

    def attend(query: Any, key: Any, value: Any, valid: Any, *rest: Any) -> Any:
        if not hasattr(query, "jax") or not inside[0]:
            return original(query, key, value, valid, *rest)
        query, key, value = SETTLE.get()(query, key, value)
        with attention_call() as seen:
            out = change(*(x.permute(0, 2, 1, 3) for x in (query, key, value)), valid).permute(0, 2, 1, 3)
            seen(query, key, value, out)
        return out

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(joint, "attend", attend))
    if only is not None:
        stack.enter_context(replaced(only, entered))
    return stack


# --- attention, written out ------------------------------------------------------------------------------------


def logits(q: Any, k: Any) -> Any:
    return (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def rows(valid: Any, x: Any) -> Any:
    """1 for valid rows and 0 for padded ones, to be multiplied with."""
    return valid[:, None, :, None].to(x.dtype)


def weighed(scores: Any, v: Any, valid: Any, keep: Any = None) -> Any:
    """Values weighed by the softmax of logits.

    Args:
        valid: rows that count; None for all. keep: keys that each query sees, in their place.
    """
    if valid is None:
        return torch.softmax(scores, dim=-1) @ v
    hidden = ~(valid[:, None, None, :] if keep is None else keep)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).to(v.dtype) @ v * rows(valid, v)


def plain(q: Any, k: Any, v: Any, valid: Any, scale: float | None = None) -> Any:
    """Attention as it should be; multiplied by the scale, which in bfloat16 is another rounding than a division."""
    return weighed((q @ k.transpose(-1, -2)) * (scale or 1.0 / math.sqrt(q.shape[-1])), v, valid)


# --- masks -----------------------------------------------------------------------------------------------------

ATTENTION = "transformer_blocks.0.attn"
"""The first module to show what is wrong in all blocks."""

fault("mask_dropped", "mask", ATTENTION, attention(lambda q, k, v, valid: plain(q, k, v, None)))


@named("mask", ATTENTION, attention)
def mask_on_queries_not_keys(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k, v, None) * rows(valid, q)


@named("mask", ATTENTION, attention)
def mask_one_row_too_many(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k, v, torch.roll(valid, 1, dims=1) | valid) * rows(valid, q)


@named("mask", ATTENTION, attention)
def mask_one_row_too_few(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k, v, valid & torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1))


@named("mask", ATTENTION, patch)
def mask_of_the_first_batch_row(side: Loaded, m: Any) -> Any:
    condition = side.inputs.conditions["cond"]
    masks = [condition[f"encoder_attention_mask{s}"] for s in ("", "_2")]
    text = sum(x.shape[1] for x in masks) + side.case.spec.vision_num_semantic_tokens
    padding = text - int(sum(x.sum() for x in masks))

    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        order = torch.arange(valid.shape[1], device=valid.device)[None]
        return plain(q, k, v, order < valid.shape[1] - padding)

    return attending(change)


@named("mask", ATTENTION, attention)
def mask_added_as_zero_and_one(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return weighed(logits(q, k) + valid[:, None, None, :].to(q.dtype), v, None)


@named("mask", ATTENTION, attention)
def mask_too_weak(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return weighed(logits(q, k) - 6.0 * (~valid[:, None, None, :]).to(q.dtype), v, None)


@named("mask", "context_embedder", forward)
def pooled_text_without_mask(m: Any, old: Any, hidden_states: Any, timestep: Any, attention_mask: Any = None) -> Any:
    temb = m.time_text_embed(timestep, hidden_states.mean(dim=1))
    return m.token_refiner(m.proj_in(hidden_states), temb, attention_mask)


@named("mask", "context_embedder.token_refiner", forward)
def refiner_attention_without_mask(m: Any, old: Any, x: Any, temb: Any, mask: Any = None) -> Any:
    return old(x, temb, None)


# --- token order -----------------------------------------------------------------------------------------------


@named("order", "", patch)
def text_reordered_but_not_its_mask(side: Loaded, m: Any) -> Any:
    def change(owner: Any, old: Any, streams: Any, valid_first: bool) -> Any:
        if not hasattr(streams[0][0], "jax"):
            return old(streams, valid_first)
        return old(streams, True)[0], torch.cat([mask for _, mask in streams], dim=1)

    return replaced(hunyuan, change, "_joint_text")


fault("patches_off_by_one", "order", "x_embedder", forward(lambda m, old, x: torch.roll(old(x), 1, dims=1)))
fault("patches_width_before_height", "order", "x_embedder", forward(lambda m, old, x: old(x.transpose(3, 4))))


@named("order", "", forward)
def unpatchified_in_another_order(m: Any, old: Any, *args: Any, **kwargs: Any) -> Any:
    out = old(*args, **kwargs)[0]
    return (out.transpose(3, 4).reshape(out.shape),)


# --- rotary ----------------------------------------------------------------------------------------------------

fault("rotary_axes_in_wrong_order", "rotary", "rope", forward(lambda m, old, x: old(x.transpose(3, 4))))


@named("rotary", "rope", forward)
def rotary_off_by_one(m: Any, old: Any, x: Any) -> Any:
    return tuple(torch.roll(t, 1, 0) for t in old(x))


@named("rotary", "rope", forward)
def rotary_phase_in_bfloat16(m: Any, old: Any, x: Any) -> Any:
    cos, sin = old(x)
    phase = torch.atan2(sin, cos).to(torch.bfloat16).to(torch.float32)
    return torch.cos(phase), torch.sin(phase)


@named("rotary", "rope", forward)
def rotary_cache_of_another_size(m: Any, old: Any, x: Any) -> Any:
    b, c, t, h, w = x.shape
    return old(x.reshape(b, c, t, h * w // 2, 2) if h * w % 2 == 0 else x)


@named("rotary", f"{BLOCK}.attn", patch)
def rotary_missing_on_keys(side: Loaded, m: Any) -> Any:
    cos, sin = module(side, "rope")(side.backend.tensor(torch.zeros(side.case.latent_shape)))

    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        n = cos.shape[0]
        image = apply_rotary_emb(k[:, :, :n], (cos, -sin), sequence_dim=2)
        return plain(q, torch.cat([image, k[:, :, n:]], dim=2), v, valid)

    return attending(change, m)


fault("rotary_base_of_another_model", "rotary", "rope", attributes(theta=10000.0))


# --- norms -----------------------------------------------------------------------------------------------------

fault("norm_eps", "norm", f"{BLOCK}.norm2", attributes(eps=1e-4))
fault("rms_norm_eps", "norm", f"{BLOCK}.attn.norm_q", attributes(eps=1e-4))


@named("norm", f"{BLOCK}.norm2", forward)
def norm_statistics_in_bfloat16(m: Any, old: Any, x: Any) -> Any:
    low = x.to(torch.bfloat16)
    mean = low.mean(-1, keepdim=True)
    var = ((low - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean.to(x.dtype)) * torch.rsqrt(var.to(x.dtype) + 1e-6)


@named("norm", f"{BLOCK}.attn.norm_k", forward)
def norm_without_affine(m: Any, old: Any, x: Any) -> Any:
    return x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + m.eps).to(x.dtype)


@named("norm", f"{BLOCK}.attn.norm_q", forward)
def layer_norm_for_rms_norm(m: Any, old: Any, x: Any) -> Any:
    return old(x - x.mean(-1, keepdim=True))


@named("norm", f"{BLOCK}.attn.norm_q", forward)
def qk_norm_over_all_heads(m: Any, old: Any, x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + m.eps) * m.weight


# --- attention arithmetic --------------------------------------------------------------------------------------


@named("attention", f"{BLOCK}.attn", one_attention)
def scale_missing(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k, v, valid, 1.0)


@named("attention", f"{BLOCK}.attn", one_attention)
def scale_of_the_whole_width(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return plain(q, k, v, valid, 1.0 / math.sqrt(q.shape[-1] * q.shape[1]))


@named("attention", f"{BLOCK}.attn", one_attention)
def softmax_in_bfloat16(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return weighed(logits(q, k).to(torch.bfloat16), v, valid)


@named("attention", f"{BLOCK}.attn", one_attention)
def block_padding_unmasked(q: Any, k: Any, v: Any, valid: Any) -> Any:
    n = -q.shape[2] % 128
    k, v = (F.pad(x, (0, 0, 0, n)) for x in (k, v))
    return weighed(logits(q, k), v, valid, F.pad(valid, (0, n), value=True)[:, None, None, :])


@named("attention", f"{BLOCK}.attn", one_attention)
def heads_interleaved(q: Any, k: Any, v: Any, valid: Any) -> Any:
    out = plain(q, k, v, valid)
    b, h, n, d = out.shape
    return out.permute(0, 2, 3, 1).reshape(b, n, h, d).permute(0, 2, 1, 3)


@named("attention", f"{BLOCK}.attn", one_attention)
def logits_soft_capped(q: Any, k: Any, v: Any, valid: Any) -> Any:
    return weighed(10.0 * torch.tanh(logits(q, k) / 10.0), v, valid)


@named("attention", f"{BLOCK}.attn", one_attention)
def causal_by_accident(q: Any, k: Any, v: Any, valid: Any) -> Any:
    order = torch.arange(q.shape[2], device=valid.device)
    return weighed(logits(q, k), v, valid, valid[:, None, None, :] & (order[None, :] <= order[:, None])[None, None])


# --- weights ---------------------------------------------------------------------------------------------------


@named("weights", "preflight", weight(f"{BLOCK}.ff.net.2.weight"))
def one_weight_wrong(x: Any) -> Any:
    x[3, 5] += 0.05
    return x


fault("weight_transposed", "weights", "preflight", weight(f"{BLOCK}.attn.to_v.weight")(lambda x: x.T.contiguous()))
fault("bias_not_loaded", "weights", "preflight", weight(f"{BLOCK}.attn.to_out.0.bias")(torch.zeros_like))


@named("weights", f"{BLOCK}.ff.net.0.proj", forward)
def weight_rounded_on_the_way(m: Any, old: Any, x: Any) -> Any:
    """The file's weights are right; the port casts one of them at its use."""
    return F.linear(x, m.weight.to(torch.bfloat16).to(m.weight.dtype), m.bias)


@named("weights", "cond_type_embed", forward)
def tied_weight_not_tied(m: Any, old: Any, i: Any) -> Any:
    """One use of a shared table keeps a stale copy: ByT5's type embedding is Qwen's."""
    return old(torch.where(i == 1, torch.zeros_like(i), i))


# --- residuals, activations, modulation ------------------------------------------------------------------------


@named("arithmetic", f"{BLOCK}.norm1", forward)
def gate_missing(m: Any, old: Any, *args: Any, **kwargs: Any) -> Any:
    x, gate, *rest = old(*args, **kwargs)
    return (x, torch.ones_like(gate), *rest)


@named("arithmetic", BLOCK, forward)
def wrong_residual(m: Any, old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    image, text = old(x, *args, **kwargs)
    return image + 0.01 * x, text


@named("arithmetic", f"{BLOCK}.norm1", forward)
def shift_and_scale_swapped(m: Any, old: Any, *args: Any, **kwargs: Any) -> Any:
    x, gate, shift, scale, gate_mlp = old(*args, **kwargs)
    return x, gate, scale, shift, gate_mlp


fault("gelu_exact_for_tanh", "arithmetic", f"{BLOCK}.ff.net.0", attributes(approximate="none"))
fault("activation_missing", "arithmetic", f"{BLOCK}.norm1_context.silu", forward(lambda m, old, x: x))
fault("dropout_left_on", "arithmetic", f"{BLOCK}.ff", forward(lambda m, old, *a, **k: old(*a, **k) * 0.9))
fault("block_skipped", "arithmetic", BLOCK, forward(lambda m, old, x, text, *a, **k: (x, text)))


@named("arithmetic", f"{BLOCK}.ff", forward)
def nan_replaced_by_zero(m: Any, old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """A guard against overflow that fires on ordinary values."""
    return torch.where(old(x).abs() > 2.0, 0.0 * x, old(x))


@named("arithmetic", f"{BLOCK}.ff_context", forward)
def nan_produced(m: Any, old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return old(x) / (x - x) * 0.0


@named("arithmetic", f"{BLOCK}.ff", forward)
def clamped_to_float16(m: Any, old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return old(x).to(torch.float16).to(x.dtype)


# --- meshes ----------------------------------------------------------------------------------------------------


@named("mesh", f"{BLOCK}.ff.net.2", forward)
def all_reduce_forgotten(m: Any, old: Any, x: Any) -> Any:
    """Each of two devices keeps its own half of the sum."""
    half = x.shape[-1] // 2
    return F.linear(x[..., :half], m.weight[:, :half], m.bias)


@named("mesh", f"{BLOCK}.ff.net.2", forward)
def all_reduce_doubled(m: Any, old: Any, x: Any) -> Any:
    return 2.0 * F.linear(x, m.weight) + m.bias


fault("bias_added_by_each_device", "mesh", f"{BLOCK}.attn.to_out.0", forward(lambda m, old, x: old(x) + m.bias))


# --- time, guidance, schedule, state ---------------------------------------------------------------------------


@named("time", "time_embed", forward)
def timestep_rounded(m: Any, old: Any, t: Any, *args: Any, **kwargs: Any) -> Any:
    return old((t.to(torch.float32) / 4).round().mul(4).to(t.dtype) - 1)


fault("timestep_from_zero_to_one", "time", "time_embed", forward(lambda m, old, t, *a, **k: old(t / 1000)))
fault("sine_before_cosine", "time", "time_embed.time_proj", attributes(flip_sin_to_cos=False))
fault("time_frequencies_off", "time", "time_embed.time_proj", attributes(downscale_freq_shift=1))


@named("guidance", "loop", sampler("guide"))
def guidance_branches_swapped(s: Any, old: Any, p: Any, *args: Any) -> Any:
    return old({"cond": p["uncond"], "uncond": p["cond"]}, *args)


@named("guidance", "loop", sampler("guide"))
def guidance_in_bfloat16(s: Any, old: Any, p: Any, *args: Any) -> Any:
    return old({b: x.to(torch.bfloat16) for b, x in p.items()}, *args).to(p["cond"].dtype)


@named("guidance", "loop", sampler("guide"))
def guidance_scale_off(s: Any, old: Any, p: Any, *args: Any) -> Any:
    return old(p, *args) + 0.05 * (p["cond"] - p["uncond"])


@named("schedule", "preflight", patch, steps=4)
def schedule_shift_missing(side: Loaded, m: Any) -> Any:
    def unshifted(made: Any) -> None:
        made.scheduler.register_to_config(shift=1.0)
        made.scheduler.set_shift(1.0)

    return other_sampler(side, unshifted)


@named("schedule", "preflight", sampler("set_schedule"), steps=4)
def timesteps_repeat(s: Any, old: Any, *args: Any) -> None:
    old(*args)
    s.timesteps = s.scheduler.timesteps = (s.scheduler.timesteps / 400).round() * 400


@named("schedule", "preflight", sampler("set_schedule"), steps=4)
def scheduler_not_reset(s: Any, old: Any, *args: Any) -> None:
    old(*args)
    s.scheduler._step_index = 1


@named("schedule", "loop", sampler("step"))
def step_with_the_wrong_sign_of_a_term(s: Any, old: Any, p: Any, x: Any, i: int) -> Any:
    return old(p, x, i) + 1e-3 * p


@named("latents", "", patch)
def latents_height_and_width_swapped(side: Loaded, m: Any) -> Any:
    old = side.family.model_arguments

    def change(self: Any, case: Any, settings: Any, latents: Any, timestep: Any, dtype: Any) -> Any:
        swapped = latents.transpose(3, 4).reshape(latents.shape) if hasattr(latents, "jax") else latents
        return old(case, settings, swapped, timestep, dtype)

    return mock.patch.object(type(side.family), "model_arguments", change)


@named("state", "context_embedder", patch, settings=("jit=false",))
def text_of_the_other_branch_cached(side: Loaded, m: Any) -> Any:
    """The refined text of the first branch is kept for the second: seen eagerly, as a port without jit does it."""
    kept: dict[str, Any] = {}
    return replaced(m, lambda m, old, *a, **k: kept.setdefault("text", old(*a, **k)))


@named("state", BLOCK, patch, steps=2, settings=("jit=false",))
def stale_cache_between_steps(side: Loaded, m: Any) -> Any:
    kept: dict[int, Any] = {}
    calls = itertools.count()
    return replaced(m, lambda m, old, *a, **k: kept.setdefault(next(calls) % 2, old(*a, **k)))
