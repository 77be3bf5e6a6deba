"""Known faults of ported video decoders, simulated in a model of torch's by what its own code calls.

Of a decoder that was written again in another framework the frames are all that it shows, and they say only how far
they are. So the reference decodes again with one fault at a time: a fault is a function of torch's, and what a model
that has it would make of the function's arguments. Nothing of the model's class is known. A fault that finds nothing to
change is none of the model's, and is not marked (`parity.settings.Reached`).

A ported video decoder differs where its axes do: its attention sees one frame at a time, its group norms take the
statistics of each frame, its convolutions pad with zeros. Attention is the function whose rows are frames times
positions, a causal convolution is a padding of five axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.functional import group_norm, pad

from parity.hooks.torchtools import SDPA, SDPA_NAMES, Intercept

Arguments = dict[str, Any]
"""Of one of torch's functions, by name."""
Sizes = tuple[int, int]
"""Of what a decoder works on, latents or a chunk or a tile of them: its batch and its frames."""
Around = Callable[[Callable[[Arguments], Any], Arguments, Sizes], Any]
"""What a call of a function gives with a fault; None where that finds nothing to change."""

_AXES = 5
"""Of a video, [B, C, T, H, W]."""

_NAMES: Mapping[Any, tuple[str, ...]] = {
    SDPA: SDPA_NAMES,
    pad: ("input", "pad", "mode", "value"),
    group_norm: ("input", "num_groups", "weight", "bias", "eps"),
}


_MASKS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]] = {
    "by_frame": torch.eq,
    "causal": torch.ge,
    "full": lambda query, key: None,
}
"""Which frames a query's frame sees."""


def _seen(how: str, attend: Callable[[Arguments], Any], given: Arguments, sizes: Sizes) -> Any:
    """Another mask of an attention whose rows are those of several frames."""
    (batch, frames), query, rows = sizes, given["query"], given["query"].shape[-2]
    several = frames > 1 and rows % frames == 0 and query.shape[0] % (batch * frames)
    masked = given.get("attn_mask") is not None or bool(given.get("is_causal"))
    wanted = {"by_frame": True, "full": masked, "causal": not masked}[how]  # none to be dropped, or one already
    if not several or given["key"].shape[-2] != rows or not wanted:
        return None
    frame = torch.arange(rows, device=query.device) // (rows // frames)
    return attend({**given, "attn_mask": _MASKS[how](frame[:, None], frame[None, :]), "is_causal": False})


def _by_frame(norm: Callable[[Arguments], Any], given: Arguments, sizes: Sizes) -> Any:
    """A norm of a video [B, C, T, H, W], of each frame by itself."""
    x = given["input"]
    alone = x.transpose(1, 2).flatten(0, 1)
    return norm({**given, "input": alone}).unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def _zeros(padded: Callable[[Arguments], Any], given: Arguments, sizes: Sizes) -> Any:
    """Zeros in place of repeated edges."""
    there = any(given["pad"]) and given.get("mode") == "replicate"
    return padded({**given, "mode": "constant", "value": 0.0}) if there else None


def _both_ends(padded: Callable[[Arguments], Any], given: Arguments, sizes: Sizes) -> Any:
    """As many frames behind as before."""
    *space, before, behind = given["pad"]
    if len(space) != 4 or before <= 1 or behind != 0:
        return None
    return padded({**given, "pad": [*space, before - before // 2, before // 2]})


FAULTS: Mapping[str, tuple[Callable[..., Any], Around]] = {
    **{f"vae.attention={how}": (SDPA, functools.partial(_seen, how)) for how in _MASKS},
    "vae.norm=by_frame": (group_norm, _by_frame),
    "vae.padding=zeros": (pad, _zeros),
    "vae.padding=both_ends": (pad, _both_ends),
}
"""Name, as `setting=value` of the catalogue -> the function of torch's that is called otherwise, and how."""


def wrong_from_here_on(decoder: torch.nn.Module, names: Iterable[str], mark: Callable[[str], None]) -> None:
    """Give a decoder, which takes latents [B, C, T, H, W] first, these faults, one of each function at most.

    Args:
        mark: is given the name of a fault, each time that it changes something.
    """
    faults = {FAULTS[name][0]: (name, FAULTS[name][1]) for name in names}
    forward = decoder.forward

    @functools.wraps(forward)
    def called(z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Arguments) -> Any:
            name, around = faults[func]
            given = {**dict(zip(_NAMES[func], args, strict=False)), **kwargs}
            found = None
            if func is SDPA or given["input"].ndim == _AXES:  # a norm or a padding of a video
                found = around(lambda changed: func(**changed), given, (z.shape[0], z.shape[2]))
            if found is None:
                return func(**given)
            mark(name)
            return found

        with Intercept(handle, only=faults):
            return forward(z, *args, **kwargs)

    decoder.forward = called
