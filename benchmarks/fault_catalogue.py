"""Faults that ports of video transformers have had, each a small patch of a loaded candidate.

None of them is known to the tool: they patch modules, attention, weights, guidance or schedule of a candidate after it
was loaded, as a port's own code would differ. `at` names where the fault sits: the module whose arithmetic it changes,
`preflight` for what must be seen before a forward, `loop` for the loop's own values.

A patch sees the candidate only: torchax tensors are told by their `jax` method, so that the reference, which runs in
the same process, stays as it is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from torchax import interop

import parity.models.hunyuan_video_15.transformer as hunyuan
from parity.hooks.attach import attention_call
from parity.models.attention import SETTLE
from parity.paths.jax.candidate import to_jax
from parity.paths.loaded import Loaded


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name, group: for the table. at: module path, `preflight` or `loop`. apply: a context in which the side has it.
        steps: denoising steps that show it. settings: of the candidate.
    """

    name: str
    group: str
    at: str
    apply: Callable[[Loaded], contextlib.AbstractContextManager[None]]
    steps: int = 1
    settings: tuple[str, ...] = ()


FAULTS: list[Fault] = []
BLOCK = 1
"""The block that block-wise faults sit in: not the first, so that what is before it must be told innocent."""


def fault(
    group: str, at: str, steps: int = 1, settings: tuple[str, ...] = ()
) -> Callable[[Callable[[Loaded], Any]], Callable[[Loaded], Any]]:
    """Enter a patch in the catalogue; it may return a context manager for what must be undone."""

    def enter(patch: Callable[[Loaded], Any]) -> Callable[[Loaded], Any]:
        @contextlib.contextmanager
        def apply(side: Loaded) -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                with side.backend.scope():
                    undo = patch(side)
                if undo is not None:
                    stack.enter_context(undo)
                yield

        FAULTS.append(Fault(patch.__name__, group, at.format(b=f"transformer_blocks.{BLOCK}"), apply, steps, settings))
        return patch

    return enter


def module(side: Loaded, path: str) -> Any:
    return side.backend.module().get_submodule(path.format(b=f"transformer_blocks.{BLOCK}"))


def wrap(m: Any, change: Callable[..., Any]) -> None:
    """Replace a module's forward by `change(old forward, *args, **kwargs)`."""
    old = m.forward
    m.forward = lambda *args, **kwargs: change(old, *args, **kwargs)


Attend = Callable[..., torch.Tensor]


def attention(change: Callable[..., torch.Tensor], only: Any = None) -> contextlib.AbstractContextManager[Any]:
    """The candidate's joint attention replaced by `change(q, k, v, valid)`, [B, heads, L, d], valid [B, L].

    Args:
        only: the module in whose calls it is changed, whoever calls it; None for all.
    """
    original = hunyuan.attend
    inside = [only is None]
    if only is not None:

        def entered(old: Any, *args: Any, **kwargs: Any) -> Any:
            inside[0] = True
            try:
                return old(*args, **kwargs)
            finally:
                inside[0] = False

        wrap(only, entered)

    def attend(query: Any, key: Any, value: Any, valid: Any, *rest: Any) -> Any:
        if not hasattr(query, "jax") or not inside[0]:
            return original(query, key, value, valid, *rest)
        query, key, value = SETTLE.get()(query, key, value)
        with attention_call() as seen:
            out = change(*(x.permute(0, 2, 1, 3) for x in (query, key, value)), valid).permute(0, 2, 1, 3)
            seen(query, key, value, out)
        return out

    return mock.patch.object(hunyuan, "attend", attend)


def plain(q: Any, k: Any, v: Any, valid: Any, scale: float | None = None) -> Any:
    """Attention as it should be, written out."""
    scores = (q @ k.transpose(-1, -2)) * (scale if scale is not None else 1.0 / math.sqrt(q.shape[-1]))
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, :], float("-inf"))
    out = torch.softmax(scores, dim=-1) @ v
    return out if valid is None else out * valid[:, None, :, None].to(out.dtype)


def shifted(valid: Any, by: int) -> Any:
    """A mask with `by` more valid tokens at the end of the valid ones (fewer where negative)."""
    return torch.roll(valid, by, dims=1) | valid if by > 0 else torch.roll(valid, by, dims=1) & valid


# --- masks -----------------------------------------------------------------------------------------------------

ATTENTION = "transformer_blocks.0.attn"


@fault("mask", ATTENTION)
def mask_dropped(side: Loaded) -> Any:
    return attention(lambda q, k, v, valid: plain(q, k, v, None))


@fault("mask", ATTENTION)
def mask_on_queries_not_keys(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        return plain(q, k, v, None) * valid[:, None, :, None].to(q.dtype)

    return attention(change)


@fault("mask", ATTENTION)
def mask_one_row_too_many(side: Loaded) -> Any:
    return attention(lambda q, k, v, valid: plain(q, k, v, shifted(valid, 1)) * valid[:, None, :, None].to(q.dtype))


@fault("mask", ATTENTION)
def mask_one_row_too_few(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        keep = valid & torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], dim=1)
        return plain(q, k, v, keep)

    return attention(change)


@fault("mask", ATTENTION)
def mask_of_the_first_batch_row(side: Loaded) -> Any:
    condition = side.inputs.conditions["cond"]
    lengths = [condition[f"encoder_attention_mask{s}"] for s in ("", "_2")]
    count = int(sum(x.sum() for x in lengths))

    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        text = sum(x.shape[1] for x in lengths) + side.case.spec.vision_num_semantic_tokens
        image = valid.shape[1] - text
        first = torch.arange(valid.shape[1], device=valid.device)[None] < image + count
        return plain(q, k, v, first)

    return attention(change)


@fault("mask", ATTENTION)
def mask_added_as_zero_and_one(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + valid[:, None, None, :].to(q.dtype)
        return torch.softmax(scores, dim=-1) @ v

    return attention(change)


@fault("mask", ATTENTION)
def mask_too_weak(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        scores = scores - 6.0 * (~valid[:, None, None, :]).to(q.dtype)
        return torch.softmax(scores, dim=-1) @ v

    return attention(change)


@fault("mask", "context_embedder")
def pooled_text_without_mask(side: Loaded) -> Any:
    def change(old: Any, hidden_states: Any, timestep: Any, attention_mask: Any = None) -> Any:
        m = module(side, "context_embedder")
        temb = m.time_text_embed(timestep, hidden_states.mean(dim=1))
        return m.token_refiner(m.proj_in(hidden_states), temb, attention_mask)

    wrap(module(side, "context_embedder"), change)


@fault("mask", "context_embedder.token_refiner")
def refiner_attention_without_mask(side: Loaded) -> Any:
    wrap(module(side, "context_embedder.token_refiner"), lambda old, x, temb, mask=None: old(x, temb, None))


# --- token order -----------------------------------------------------------------------------------------------


@fault("order", "")
def text_reordered_but_not_its_mask(side: Loaded) -> Any:
    original = hunyuan._joint_text

    def joint(streams: Any, valid_first: bool) -> Any:
        if not hasattr(streams[0][0], "jax"):
            return original(streams, valid_first)
        text, _ = original(streams, True)
        return text, torch.cat([m for _, m in streams], dim=1)

    return mock.patch.object(hunyuan, "_joint_text", joint)


@fault("order", "x_embedder")
def patches_off_by_one(side: Loaded) -> Any:
    wrap(module(side, "x_embedder"), lambda old, x: torch.roll(old(x), 1, dims=1))


@fault("order", "x_embedder")
def patches_width_before_height(side: Loaded) -> Any:
    wrap(module(side, "x_embedder"), lambda old, x: old(x.transpose(3, 4)))


@fault("order", "")
def unpatchified_in_another_order(side: Loaded) -> Any:
    def change(old: Any, *args: Any, **kwargs: Any) -> Any:
        out = old(*args, **kwargs)[0]
        return (out.transpose(3, 4).reshape(out.shape),)

    wrap(side.backend.module(), change)


# --- rotary ----------------------------------------------------------------------------------------------------


@fault("rotary", "rope")
def rotary_axes_in_wrong_order(side: Loaded) -> Any:
    wrap(module(side, "rope"), lambda old, x: old(x.transpose(3, 4)))


@fault("rotary", "rope")
def rotary_off_by_one(side: Loaded) -> Any:
    wrap(module(side, "rope"), lambda old, x: tuple(torch.roll(t, 1, 0) for t in old(x)))


@fault("rotary", "rope")
def rotary_phase_in_bfloat16(side: Loaded) -> Any:
    def change(old: Any, x: Any) -> Any:
        cos, sin = old(x)
        phase = torch.atan2(sin, cos).to(torch.bfloat16).to(torch.float32)
        return torch.cos(phase), torch.sin(phase)

    wrap(module(side, "rope"), change)


@fault("rotary", "rope")
def rotary_cache_of_another_size(side: Loaded) -> Any:
    def change(old: Any, x: Any) -> Any:
        b, c, t, h, w = x.shape
        cos, sin = old(x.reshape(b, c, t, h * w // 2, 2) if h * w % 2 == 0 else x)
        return cos, sin

    wrap(module(side, "rope"), change)


@fault("rotary", "{b}.attn")
def rotary_missing_on_keys(side: Loaded) -> Any:
    from diffusers.models.embeddings import apply_rotary_emb

    cos, sin = module(side, "rope")(side.backend.tensor(torch.zeros(side.case.latent_shape)))

    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        n = cos.shape[0]
        image = apply_rotary_emb(k[:, :, :n], (cos, -sin), sequence_dim=2)
        return plain(q, torch.cat([image, k[:, :, n:]], dim=2), v, valid)

    return attention(change, only=module(side, "{b}.attn"))


@fault("rotary", "rope")
def rotary_base_of_another_model(side: Loaded) -> Any:
    module(side, "rope").theta = 10000.0


# --- norms -----------------------------------------------------------------------------------------------------


@fault("norm", "{b}.norm2")
def norm_eps(side: Loaded) -> Any:
    module(side, "{b}.norm2").eps = 1e-4


@fault("norm", "{b}.attn.norm_q")
def rms_norm_eps(side: Loaded) -> Any:
    module(side, "{b}.attn.norm_q").eps = 1e-4


@fault("norm", "{b}.norm2")
def norm_statistics_in_bfloat16(side: Loaded) -> Any:
    def change(old: Any, x: Any) -> Any:
        low = x.to(torch.bfloat16)
        mean = low.mean(-1, keepdim=True)
        var = ((low - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean.to(x.dtype)) * torch.rsqrt(var.to(x.dtype) + 1e-6)

    wrap(module(side, "{b}.norm2"), change)


@fault("norm", "{b}.attn.norm_k")
def norm_without_affine(side: Loaded) -> Any:
    m = module(side, "{b}.attn.norm_k")
    wrap(m, lambda old, x: x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + m.eps).to(x.dtype))


@fault("norm", "{b}.attn.norm_q")
def layer_norm_for_rms_norm(side: Loaded) -> Any:
    wrap(module(side, "{b}.attn.norm_q"), lambda old, x: old(x - x.mean(-1, keepdim=True)))


@fault("norm", "{b}.attn.norm_q")
def qk_norm_over_all_heads(side: Loaded) -> Any:
    m = module(side, "{b}.attn.norm_q")
    wrap(m, lambda old, x: x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + m.eps) * m.weight)


# --- attention arithmetic --------------------------------------------------------------------------------------


@fault("attention", "{b}.attn")
def scale_missing(side: Loaded) -> Any:
    return attention(lambda q, k, v, valid: plain(q, k, v, valid, 1.0), only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def scale_of_the_whole_width(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        return plain(q, k, v, valid, 1.0 / math.sqrt(q.shape[-1] * q.shape[1]))

    return attention(change, only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def softmax_in_bfloat16(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~valid[:, None, None, :], float("-inf"))
        low = torch.softmax(scores.to(torch.bfloat16), dim=-1).to(v.dtype)
        return (low @ v) * valid[:, None, :, None].to(v.dtype)

    return attention(change, only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def block_padding_unmasked(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        n = -q.shape[2] % 128
        k, v = (F.pad(x, (0, 0, 0, n)) for x in (k, v))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        keep = F.pad(valid, (0, n), value=True)
        out = torch.softmax(scores.masked_fill(~keep[:, None, None, :], float("-inf")), dim=-1) @ v
        return out * valid[:, None, :, None].to(out.dtype)

    return attention(change, only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def heads_interleaved(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        out = plain(q, k, v, valid)
        b, h, n, d = out.shape
        return out.permute(0, 2, 3, 1).reshape(b, n, h, d).permute(0, 2, 1, 3)

    return attention(change, only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def logits_soft_capped(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = 10.0 * torch.tanh((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) / 10.0)
        scores = scores.masked_fill(~valid[:, None, None, :], float("-inf"))
        return (torch.softmax(scores, dim=-1) @ v) * valid[:, None, :, None].to(v.dtype)

    return attention(change, only=module(side, "{b}.attn"))


@fault("attention", "{b}.attn")
def causal_by_accident(side: Loaded) -> Any:
    def change(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        order = torch.arange(q.shape[2], device=valid.device)
        keep = valid[:, None, None, :] & (order[None, :] <= order[:, None])[None, None]
        return torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1) @ v * valid[:, None, :, None].to(v.dtype)

    return attention(change, only=module(side, "{b}.attn"))


# --- weights ---------------------------------------------------------------------------------------------------


def set_weight(side: Loaded, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace a weight on the candidate's devices, before preflight."""
    params = side.backend.params  # type: ignore[attr-defined]
    name = name.format(b=f"transformer_blocks.{BLOCK}")
    host = torch.from_numpy(side.backend.host(interop.torch_view(params[name])).copy())
    params[name] = to_jax(change(host).to(side.backend.dtype))


@fault("weights", "preflight")
def one_weight_wrong(side: Loaded) -> Any:
    def change(x: torch.Tensor) -> torch.Tensor:
        x[3, 5] += 0.05
        return x

    set_weight(side, "{b}.ff.net.2.weight", change)


@fault("weights", "preflight")
def weight_transposed(side: Loaded) -> Any:
    set_weight(side, "{b}.attn.to_v.weight", lambda x: x.T.contiguous())


@fault("weights", "preflight")
def bias_not_loaded(side: Loaded) -> Any:
    set_weight(side, "{b}.attn.to_out.0.bias", torch.zeros_like)


@fault("weights", "{b}.ff.net.0.proj")
def weight_rounded_on_the_way(side: Loaded) -> Any:
    """The file's weights are right; the port casts one of them at its use."""
    m = module(side, "{b}.ff.net.0.proj")
    wrap(m, lambda old, x: F.linear(x, m.weight.to(torch.bfloat16).to(m.weight.dtype), m.bias))


@fault("weights", "cond_type_embed")
def tied_weight_not_tied(side: Loaded) -> Any:
    """One use of a shared table keeps a stale copy: ByT5's type embedding is Qwen's."""
    wrap(module(side, "cond_type_embed"), lambda old, i: old(torch.where(i == 1, torch.zeros_like(i), i)))


# --- residuals, activations, modulation ------------------------------------------------------------------------


@fault("arithmetic", "{b}.norm1")
def gate_missing(side: Loaded) -> Any:
    def change(old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        x, gate, *rest = old(x, *args, **kwargs)
        return (x, torch.ones_like(gate), *rest)

    wrap(module(side, "{b}.norm1"), change)


@fault("arithmetic", "{b}")
def wrong_residual(side: Loaded) -> Any:
    def change(old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        image, text = old(x, *args, **kwargs)
        return image + 0.01 * x, text

    wrap(module(side, "{b}"), change)


@fault("arithmetic", "{b}.norm1")
def shift_and_scale_swapped(side: Loaded) -> Any:
    def change(old: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        x, gate, shift, scale, gate_mlp = old(x, *args, **kwargs)
        return x, gate, scale, shift, gate_mlp

    wrap(module(side, "{b}.norm1"), change)


@fault("arithmetic", "{b}.ff.net.0")
def gelu_exact_for_tanh(side: Loaded) -> Any:
    module(side, "{b}.ff.net.0").approximate = "none"


@fault("arithmetic", "{b}.norm1_context.silu")
def activation_missing(side: Loaded) -> Any:
    wrap(module(side, "{b}.norm1_context.silu"), lambda old, x: x)


@fault("arithmetic", "{b}.ff")
def dropout_left_on(side: Loaded) -> Any:
    wrap(module(side, "{b}.ff"), lambda old, x, *a, **k: old(x, *a, **k) * 0.9)


@fault("arithmetic", "{b}")
def block_skipped(side: Loaded) -> Any:
    wrap(module(side, "{b}"), lambda old, x, text, *a, **k: (x, text))


@fault("arithmetic", "{b}.ff")
def nan_replaced_by_zero(side: Loaded) -> Any:
    """A guard against overflow that fires on ordinary values."""
    wrap(module(side, "{b}.ff"), lambda old, x, *a, **k: torch.where(old(x).abs() > 2.0, 0.0 * x, old(x)))


@fault("arithmetic", "{b}.ff_context")
def nan_produced(side: Loaded) -> Any:
    wrap(module(side, "{b}.ff_context"), lambda old, x, *a, **k: old(x) / (x - x) * 0.0)


@fault("arithmetic", "{b}.ff")
def clamped_to_float16(side: Loaded) -> Any:
    wrap(module(side, "{b}.ff"), lambda old, x, *a, **k: old(x).to(torch.float16).to(x.dtype))


# --- meshes ----------------------------------------------------------------------------------------------------


@fault("mesh", "{b}.ff.net.2")
def all_reduce_forgotten(side: Loaded) -> Any:
    """Each of two devices keeps its own half of the sum."""
    m = module(side, "{b}.ff.net.2")
    wrap(m, lambda old, x: F.linear(x[..., : x.shape[-1] // 2], m.weight[:, : x.shape[-1] // 2], m.bias))


@fault("mesh", "{b}.ff.net.2")
def all_reduce_doubled(side: Loaded) -> Any:
    m = module(side, "{b}.ff.net.2")
    wrap(m, lambda old, x: 2.0 * F.linear(x, m.weight) + m.bias)


@fault("mesh", "{b}.attn.to_out.0")
def bias_added_by_each_device(side: Loaded) -> Any:
    m = module(side, "{b}.attn.to_out.0")
    wrap(m, lambda old, x: old(x) + m.bias)


# --- time, guidance, schedule, state ---------------------------------------------------------------------------


@fault("time", "time_embed")
def timestep_rounded(side: Loaded) -> Any:
    wrap(
        module(side, "time_embed"),
        lambda old, t, *a, **k: old((t.to(torch.float32) / 4).round().mul(4).to(t.dtype) - 1),
    )


@fault("time", "time_embed")
def timestep_from_zero_to_one(side: Loaded) -> Any:
    wrap(module(side, "time_embed"), lambda old, t, *a, **k: old(t / 1000))


@fault("time", "time_embed.time_proj")
def sine_before_cosine(side: Loaded) -> Any:
    module(side, "time_embed.time_proj").flip_sin_to_cos = False


@fault("time", "time_embed.time_proj")
def time_frequencies_off(side: Loaded) -> Any:
    module(side, "time_embed.time_proj").downscale_freq_shift = 1


def guide(side: Loaded, change: Callable[..., Any]) -> None:
    old = side.sampler.guide
    side.sampler.guide = lambda *args, **kwargs: change(old, *args, **kwargs)  # type: ignore[method-assign]


@fault("guidance", "loop")
def guidance_branches_swapped(side: Loaded) -> Any:
    guide(side, lambda old, p, *a: old({"cond": p["uncond"], "uncond": p["cond"]}, *a))


@fault("guidance", "loop")
def guidance_in_bfloat16(side: Loaded) -> Any:
    guide(side, lambda old, p, *a: old({b: x.to(torch.bfloat16) for b, x in p.items()}, *a).to(p["cond"].dtype))


@fault("guidance", "loop")
def guidance_scale_off(side: Loaded) -> Any:
    guide(side, lambda old, p, *a: old(p, *a) + 0.05 * (p["cond"] - p["uncond"]))


def scheduler(side: Loaded) -> Any:
    return side.sampler.scheduler  # type: ignore[attr-defined]


@fault("schedule", "preflight", steps=4)
def schedule_shift_missing(side: Loaded) -> Any:
    scheduler(side).register_to_config(shift=1.0)
    scheduler(side).set_shift(1.0)


@fault("schedule", "preflight", steps=4)
def timesteps_repeat(side: Loaded) -> Any:
    old = side.sampler.set_schedule

    def change(*args: Any) -> None:
        old(*args)
        scheduler(side).timesteps = (scheduler(side).timesteps / 400).round() * 400
        side.sampler.timesteps = scheduler(side).timesteps

    side.sampler.set_schedule = change  # type: ignore[method-assign]


@fault("schedule", "preflight", steps=4)
def scheduler_not_reset(side: Loaded) -> Any:
    old = side.sampler.set_schedule

    def change(*args: Any) -> None:
        old(*args)
        scheduler(side)._step_index = 1

    side.sampler.set_schedule = change  # type: ignore[method-assign]


@fault("schedule", "loop")
def step_with_the_wrong_sign_of_a_term(side: Loaded) -> Any:
    old = side.sampler.step
    side.sampler.step = lambda p, x, i: old(p, x, i) + 1e-3 * p  # type: ignore[method-assign]


@fault("latents", "")
def latents_height_and_width_swapped(side: Loaded) -> Any:
    old = side.family.model_arguments
    families = type(side.family)

    def change(self: Any, case: Any, settings: Any, latents: Any, timestep: Any, dtype: Any) -> Any:
        swapped = latents.transpose(3, 4).reshape(latents.shape) if hasattr(latents, "jax") else latents
        return old(case, settings, swapped, timestep, dtype)

    return mock.patch.object(families, "model_arguments", change)


@fault("state", "context_embedder", settings=("jit=false",))
def text_of_the_other_branch_cached(side: Loaded) -> Any:
    """The refined text of the first branch is kept for the second: seen eagerly, as a port without jit does it."""
    kept: list[Any] = []

    def change(old: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(old(*args, **kwargs))
        return kept[0]

    wrap(module(side, "context_embedder"), change)


@fault("state", "{b}", steps=2, settings=("jit=false",))
def stale_cache_between_steps(side: Loaded) -> Any:
    kept: dict[int, Any] = {}
    calls = [0]

    def change(old: Any, *args: Any, **kwargs: Any) -> Any:
        branch = calls[0] % 2
        calls[0] += 1
        kept.setdefault(branch, old(*args, **kwargs))
        return kept[branch]

    wrap(module(side, "{b}"), change)
