"""Known faults of ports, simulated in a model of torch's by what its own code calls: of an attention, whatever the
model, which following tries (`parity.paths.follow`), and of video decoders.

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
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import group_norm, pad

from parity.hooks.torchtools import SDPA, SDPA_NAMES, Intercept, of_attention

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


def _unscaled(given: Arguments, scale: float | None) -> Arguments | None:
    """Another scale of the logits, if it is not the call's own."""
    own = given.get("scale") or given["query"].shape[-1] ** -0.5
    other = given["query"].shape[-1] ** -0.5 if scale is None else scale
    return None if math.isclose(own, other) else {**given, "scale": other}


def _masked(how: Callable[[torch.Tensor, Arguments], Arguments]) -> Callable[[Arguments], Arguments | None]:
    """What is done to a mask, given as booleans, where there is one that leaves keys out."""

    def attention(given: Arguments) -> Arguments | None:
        mask = given.get("attn_mask")
        if mask is None or mask.numel() > MOST_PAIRS:
            return None
        reads = mask if mask.dtype == torch.bool else mask > LEAST_READ
        return None if bool(reads.all()) else {**given, **how(reads, given)}

    return attention


LEAST_READ = -1e3
"""What a mask that is added holds where a key is read, at least."""


def _zeroed(reads: torch.Tensor, given: Arguments) -> Arguments:
    keep = reads.any(-2).unsqueeze(-1)
    return {"key": given["key"] * keep, "value": given["value"] * keep, "attn_mask": None}


def _causal(given: Arguments) -> Arguments | None:
    """Causal where it is not; of as many queries as keys."""
    many, mask = (given["query"].shape[-2], given["key"].shape[-2]), given.get("attn_mask")
    scores = math.prod(given["query"].shape[:-1]) * many[1]
    if given.get("is_causal") or many[0] != many[1] or (mask is not None and scores > MOST_PAIRS):
        return None
    if mask is None:
        return {**given, "is_causal": True}
    before = torch.ones(many, dtype=torch.bool, device=mask.device).tril()
    return {**given, "attn_mask": mask & before if mask.dtype == torch.bool else mask.masked_fill(~before, -torch.inf)}


MOST_PAIRS = 1 << 28
"""Of queries and keys, for which a mask as large is made."""


ATTENTION_FAULTS: Mapping[str, Callable[[Arguments], Arguments | None]] = {
    "without its mask": _masked(lambda reads, given: {"attn_mask": None}),
    "with keys and values of zero where its mask leaves them out": _masked(_zeroed),
    "with its mask inverted": _masked(lambda reads, given: {"attn_mask": ~reads}),
    "with its mask added as ones and zeros": _masked(lambda reads, given: {"attn_mask": reads.to(given["query"])}),
    "that is causal": _causal,
    "that is not causal": lambda given: {**given, "is_causal": False} if given.get("is_causal") else None,
    "scaled by the root of its heads' width": lambda given: _unscaled(given, None),
    "without a scale": lambda given: _unscaled(given, 1.0),
    "scaled twice": lambda given: _unscaled(given, 1.0 / given["query"].shape[-1]),
    "scaled as of heads that are 128 wide": lambda given: _unscaled(given, 128**-0.5),
}
"""What an attention does with a known fault -> its arguments then, of those by name that it has; None where the fault
changes nothing."""


def faults_of(args: tuple[Any, ...], kwargs: Arguments, known: Container[str]) -> Iterator[str]:
    """The faults, beside those that are known, that change something in a call of torch's attention."""
    given = of_attention(args, kwargs)
    yield from (name for name, fault in ATTENTION_FAULTS.items() if name not in known and fault(given) is not None)


def attention_with(fault: str, args: tuple[Any, ...], kwargs: Arguments) -> torch.Tensor:
    """What a call of torch's attention gives with a fault of `ATTENTION_FAULTS`."""
    given = of_attention(args, kwargs)
    return SDPA(**(ATTENTION_FAULTS[fault](given) or given))


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
