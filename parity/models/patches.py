"""Patches of a loaded model that realise settings: norms, rotary tables, timesteps.

Each replaces the forward of single module instances (or hooks them) and marks its setting when it runs, so that a
patch which the model never reaches is found out. They are written in torch's functions and serve both backends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from parity.errors import UsageError
from parity.hooks.torchtools import cast, named_tensors
from parity.settings import AUTO, MODEL, Reached, Settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_named(settings: Settings) -> torch.device:
    """The device that `device` names: of `auto` CUDA where there is one, else the CPU.

    Raises:
        UsageError: torch has no such device here.
    """
    name = settings.text("device")
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except Exception as error:  # each backend has its own
        raise UsageError(
            f"'device={name}': torch has no such device here ({str(error).splitlines()[0][:120]}); install the package "
            "that brings it, or name another"
        ) from None


def as_loaded(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A diffusers model cast as `from_pretrained(torch_dtype=...)` leaves one.

    In 16 bits the modules that its class names stay in float32 (Wan's norms and time embedding), and buffers that are
    in no checkpoint stay as they were made.
    """
    kept = set(getattr(type(model), "_keep_in_fp32_modules", None) or ()) if dtype.itemsize == 2 else set()
    saved = model.state_dict().keys()
    for name, x in named_tensors(model):
        if x.is_floating_point() and name in saved and not kept & set(name.split(".")):
            x.data = x.data.to(dtype)
    return model


def in_dtype(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A model in a working dtype, which one without tensors is asked for too. One that holds 16-bit weights of that
    dtype stays as its loader left it: which of the others are kept in float32 is its own choice."""
    found = {x.dtype for _, x in named_tensors(model) if x.is_floating_point()}
    return model if found == {dtype} or (dtype.itemsize == 2 and dtype in found) else cast(model, dtype)


def setting_dtype(settings: Settings, name: str) -> torch.dtype | None:
    """The dtype a setting names, None where it leaves the choice to the model."""
    text = settings.text(name)
    return None if text == MODEL else DTYPES[text]


def patch_norms(model: torch.nn.Module, settings: Settings, reached: Reached) -> None:
    """`norm_dtype`: every LayerNorm and RMSNorm computes in that dtype; its output keeps the input's dtype.

    Raises:
        UsageError: the model has norms of another kind, which the setting would leave as they are.
    """
    dtype = setting_dtype(settings, "norm_dtype")
    if dtype is None:
        return
    known = ("LayerNorm", "FP32LayerNorm", "RMSNorm")
    norms = [m for m in model.modules() if "Norm" in type(m).__name__ and not any(m.children())]
    other = sorted({type(m).__name__ for m in norms} - set(known))
    if other:
        raise UsageError(
            f"'norm_dtype={settings.text('norm_dtype')}' knows {', '.join(known)}, and this model has {other[0]} too: "
            "leave it at its default"
        )
    for module in norms:
        module.forward = _norm_forward(module, dtype, reached)


def _norm_forward(module: Any, dtype: torch.dtype, reached: Reached) -> Callable[[torch.Tensor], torch.Tensor]:
    rms = type(module).__name__ == "RMSNorm"
    eps = module.eps if module.eps is not None else torch.finfo(torch.float32).eps

    @functools.wraps(module.forward)  # which calls its argument by another name than others
    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        reached.mark("norm_dtype")
        x = hidden_states.to(dtype)
        if not rms:
            x = x - x.mean(dim=-1, keepdim=True)
        x = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps)
        if getattr(module, "weight", None) is not None:
            x = x * module.weight.to(dtype)
        if getattr(module, "bias", None) is not None:
            x = x + module.bias.to(dtype)
        return x.to(hidden_states.dtype)

    return forward


def patch_rope(model: Any, shape: Sequence[int], settings: Settings, reached: Reached) -> None:
    """`rope` and `rope_dtype`: tables computed once, before anything is compiled, or rounded to a dtype.

    Args:
        model: its `rope` takes the latents [B, C, T, H, W] and returns (cos, sin), each [tokens, head dim].
        shape: of the run's latents.
    """
    dtype = DTYPES[settings.text("rope_dtype")]
    cached = settings.text("rope") == "cached"
    if not cached and dtype == torch.float32:
        return
    compute, tables = model.rope.forward, tuple[torch.Tensor, ...]()

    def rounded(hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(table.to(dtype) for table in compute(hidden_states))

    if cached:
        parameter = next(model.parameters())
        with torch.no_grad():
            tables = rounded(torch.zeros(shape, device=parameter.device, dtype=parameter.dtype))

    def forward(hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reached.mark("rope")
        reached.mark("rope_dtype")
        return tables or rounded(hidden_states)

    model.rope.forward = forward


def patch_timestep_embedding(model: torch.nn.Module, settings: Settings, reached: Reached) -> None:
    """`timestep_dtype`: lets a timestep of another dtype than the weights' through the embedding's linear layers."""
    if settings.text("timestep_dtype") == MODEL:
        return
    for module in model.modules():
        if type(module).__name__ == "TimestepEmbedding":
            module.register_forward_pre_hook(_cast_first)


def _cast_first(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0].to(module.linear_1.weight.dtype), *args[1:])


def place_outputs(modules: Iterable[torch.nn.Module], place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have the tokens [B, tokens, channels] that modules give placed on a mesh."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        return tuple(place(x) for x in output) if isinstance(output, tuple) else place(output)

    for module in modules:
        module.register_forward_hook(hook)
