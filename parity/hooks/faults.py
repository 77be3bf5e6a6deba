"""Known faults of ports, simulated in a model of torch's by what its own code calls.

Problem. A recording is made once, where the original runs; what a port got wrong is looked for later, elsewhere. Of a
decoder that was written again in another framework the frames are all that it shows, and they say no more than how far
they are.

How. A call of the model is run again with one fault at a time: what it calls of torch is given other arguments by a
function mode, and nothing of the model's class is known. A fault that finds nothing to change is none of the model's,
and is not marked (`parity.reached`).

A ported attention may drop its mask, zero keys or fill blocks. Among the calls that have a mask the longest are those
of the joint sequence, the shorter ones those of a text refiner. Attention by another function (flex, a kernel of its
own) is not reached.

A ported video decoder differs where its axes do: its attention sees one frame at a time, its group norms take the
statistics of each frame, its convolutions pad with zeros. Attention is the function whose rows are frames times
positions, a causal convolution is a padding of five axes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from parity.hooks.torchtools import SDPA, Handler, Intercept, of_attention
from parity.settings import BY_NAME, MODEL

Masked = Literal["", "none", "zero_kv", "causal"]
BLOCKS = (128, 256, 512, 1024, 2048)
"""Sizes of a kernel's blocks of keys."""
_LEAST = -1e4
"""Additive masks hold less where a key is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFault:
    """A fault, or several at once.

    Attributes:
        mask: what stands for the mask: `none`, keys and values times 0, or only keys that come before.
        refiner: whether the calls that are shorter than the longest with a mask have it, and no others.
        block: of keys, the last of which zeros fill that every query sees; 0 for none. scale: of the logits.
    """

    mask: Masked = ""
    refiner: bool = False
    block: int = 0
    scale: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """`setting=value` of each fault."""
        masked = "refiner.mask" if self.refiner else "attention.mask"
        found = [f"{masked}={self.mask}"] if self.mask else []
        found += [f"attention.block_padding=unmasked in blocks of {self.block}"] if self.block else []
        return (*found, *([] if self.scale is None else [f"attention.scale={self.scale:g}"]))


@dataclass
class Lengths:
    """What the attention calls of the model have shown.

    Attributes:
        keys: numbers of keys of all calls. masked: of those with a mask.
    """

    keys: set[int]
    masked: set[int]

    def faults(self) -> Iterator[AttentionFault]:
        """The faults that can change something, those of one cause first."""
        blocks = {-max(self.keys) % block: block for block in reversed(BLOCKS)} if self.keys else {}
        filled = [AttentionFault(block=block) for fill, block in sorted(blocks.items()) if fill]
        if self.masked:
            masks = [AttentionFault(mask="none"), AttentionFault(mask="zero_kv")]
            yield from masks
            if len(self.masked) > 1:
                yield AttentionFault(mask="none", refiner=True)
        yield AttentionFault(mask="causal")
        yield AttentionFault(scale=1.0)
        yield from filled
        if self.masked:
            yield from (replace(mask, block=fill.block) for mask in masks for fill in filled)


def _calling(call: Callable[[dict[str, Any]], Any]) -> Handler:
    """Has torch's attention function called by `call`, its arguments by name."""
    return lambda func, args, kwargs: call(of_attention(args, kwargs)) if func is SDPA else func(*args, **kwargs)


def looking(seen: Lengths) -> Intercept:
    """Within it the lengths of the attention calls are taken down."""

    def call(given: dict[str, Any]) -> Any:
        keys = int(given["key"].shape[-2])
        seen.keys.add(keys)
        if given.get("attn_mask") is not None:
            seen.masked.add(keys)
        return SDPA(**given)

    return Intercept(_calling(call))


class Faulty(Intercept):
    """Within it torch's attention function has a fault; `changed` counts the calls that it changed.

    Args:
        seen: what the calls are like without it.
    """

    def __init__(self, fault: AttentionFault, seen: Lengths) -> None:
        super().__init__(_calling(self._wrong))
        self.fault, self.seen, self.changed = fault, seen, 0

    def _wrong(self, given: dict[str, Any]) -> Any:
        keys = int(given["key"].shape[-2])
        if self.seen.masked and keys in self.seen.masked:
            short = keys < max(self.seen.masked)
            if short != self.fault.refiner:
                return SDPA(**given)
        new = dict(given)
        if self.fault.mask:
            new |= _masked(self.fault.mask, given)
        if self.fault.block and keys == max(self.seen.keys):
            new |= _filled(self.fault.block, new)
        if self.fault.scale is not None:
            new["scale"] = self.fault.scale
        self.changed += any(new.get(name) is not given.get(name) for name in new)
        return SDPA(**new)


def _masked(how: Masked, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with another mask; none where it would change nothing."""
    mask, query, key = given.get("attn_mask"), given["query"], given["key"]
    if how == "causal":
        if given.get("is_causal"):
            return {}
        before = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if mask is None:
            return {"attn_mask": before}
        return {"attn_mask": mask & before if mask.dtype == torch.bool else mask.masked_fill(~before, float("-inf"))}
    if mask is None:
        return {}
    if how == "none":
        return {"attn_mask": None}
    seen = mask if mask.dtype == torch.bool else mask > _LEAST
    read = (seen.any(dim=-2) if seen.ndim > 1 else seen)[..., None].to(key.dtype)
    return {"attn_mask": None, "key": key * read, "value": given["value"] * read}


def _filled(block: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with keys and values of zero behind the others, which every query sees."""
    fill = -int(given["key"].shape[-2]) % block
    if not fill or given.get("is_causal"):
        return {}
    mask = given.get("attn_mask")
    pad = torch.nn.functional.pad
    longer = None if mask is None else pad(mask, (0, fill), value=True if mask.dtype == torch.bool else 0.0)
    return {
        "key": pad(given["key"], (0, 0, 0, fill)), "value": pad(given["value"], (0, 0, 0, fill)), "attn_mask": longer,
    }  # fmt: skip


Mark = Callable[[str], None]
"""Told the name of a setting whose code was reached."""

ATTENTION, NORM, PADDING = "vae.attention", "vae.norm", "vae.padding"
KNOWN = (ATTENTION, NORM, PADDING)
"""The settings whose faults are simulated here; their values and words are the catalogue's."""
FAULTS = tuple(f"{name}={value}" for name in KNOWN for value in BY_NAME[name].kind.values if value != MODEL)

_group_norm, _pad = torch.nn.functional.group_norm, torch.nn.functional.pad
_AXES = 5
"""Of a video, [B, C, T, H, W]."""


class DecoderFaults(Intercept):
    """Within it, torch's functions compute what a decoder with these faults would.

    Args:
        values: setting -> value, of `vae.*`. shape: of the latents that the decoder was given, [B, C, T, H, W].
    """

    def __init__(self, values: Mapping[str, str], shape: tuple[int, ...], mark: Mark) -> None:
        super().__init__(self._call)
        self.values, self.mark = values, mark
        self.batch, self.frames = shape[0], shape[2]

    @contextlib.contextmanager
    def of(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Within it, the decoder works on these latents: a chunk or a tile of the whole."""
        before = self.batch, self.frames
        self.batch, self.frames = shape[0], shape[2]
        try:
            yield
        finally:
            self.batch, self.frames = before

    def _call(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if func is SDPA and self.values.get(ATTENTION, MODEL) != MODEL:
            return SDPA(**self._attention(of_attention(args, given)))
        if func is _pad and self.values.get(PADDING, MODEL) != MODEL:
            return self._padded(args, given)
        if func is _group_norm and self.values.get(NORM, MODEL) != MODEL and args[0].ndim == _AXES:
            self.mark("vae.norm")
            return _by_frame(lambda x: func(x, *args[1:], **given), args[0])
        return func(*args, **given)

    def _attention(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments of an attention whose rows are those of several frames, with another mask."""
        query, rows = given["query"], given["query"].shape[-2]
        several = self.frames > 1 and rows % self.frames == 0 and query.shape[0] % (self.batch * self.frames)
        if not several or given["key"].shape[-2] != rows:
            return given
        masked = given.get("attn_mask") is not None or bool(given.get("is_causal"))
        how = self.values[ATTENTION]
        if not {"by_frame": True, "full": masked, "causal": not masked}[how]:  # none to be dropped, or one already
            return given
        frame = torch.arange(rows, device=query.device) // (rows // self.frames)
        seen = {
            "by_frame": frame[:, None] == frame[None, :],
            "causal": frame[:, None] >= frame[None, :],
            "full": None,
        }[how]
        self.mark("vae.attention")
        return {**given, "attn_mask": seen, "is_causal": False}

    def _padded(self, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """A padding of a video: by zeros, or as many frames behind as before."""
        x, sizes, *rest = args
        mode = given.pop("mode", rest[0] if rest else "constant")
        value = given.pop("value", rest[1] if len(rest) > 1 else None)
        sizes = list(sizes)
        if isinstance(x, torch.Tensor) and x.ndim == _AXES and any(sizes):
            if self.values[PADDING] == "zeros" and mode == "replicate":
                self.mark("vae.padding")
                mode, value = "constant", 0.0
            elif self.values[PADDING] == "both_ends" and len(sizes) == 6 and sizes[4] > 1 and sizes[5] == 0:
                self.mark("vae.padding")
                sizes[4:] = [sizes[4] - sizes[4] // 2, sizes[4] // 2]
        return _pad(x, sizes, mode, value)


def _by_frame(norm: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A norm of a video [B, C, T, H, W], of each frame by itself."""
    batch, frames = x.shape[0], x.shape[2]
    alone = x.transpose(1, 2).reshape(batch * frames, x.shape[1], *x.shape[3:])
    return norm(alone).reshape(batch, frames, *alone.shape[1:]).transpose(1, 2)


def wrong_from_here_on(
    decoder: torch.nn.Module, values: Mapping[str, str], mark: Mark, around: DecoderFaults | None = None
) -> None:
    """Give a decoder these faults: its calls, which take latents [B, C, T, H, W] first, are of a subclass of its class.

    Args:
        values: setting -> value; those that are not of a decoder are left alone. around: what the calls are within,
            where more than the decoder has the faults.
    """
    own: Any = type(decoder)

    class Faulty(own):
        def forward(self, z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if z.ndim != _AXES:
                return super().forward(z, *args, **kwargs)
            shape = tuple(z.shape)
            with DecoderFaults(values, shape, mark) if around is None else around.of(shape):
                return super().forward(z, *args, **kwargs)

    decoder.__class__ = Faulty


@contextlib.contextmanager
def faulty(vae: torch.nn.Module, z: torch.Tensor, values: Mapping[str, str], mark: Mark) -> Iterator[None]:
    """Within it, a VAE that decodes these latents has these faults, in its `decoder` and around it."""
    if z.ndim != _AXES:
        yield
        return
    decoder = getattr(vae, "decoder", None)
    own: Any = type(decoder)
    around = DecoderFaults(values, tuple(z.shape), mark)
    if isinstance(decoder, torch.nn.Module):
        wrong_from_here_on(decoder, values, mark, around)
    try:
        with around:
            yield
    finally:
        if isinstance(decoder, torch.nn.Module):
            decoder.__class__ = own
