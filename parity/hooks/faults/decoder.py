"""Known faults of a ported video decoder, simulated in the original: attention by frame, norms by frame, other padding.

Problem. A decoder that was written again in another framework differs where its axes do: its attention sees one frame
at a time, its group norms take the statistics of each frame, its convolutions pad with zeros. The frames are all that
such a port shows, and they say no more than how far they are.

How. What the original calls of torch is given other arguments by a function mode around each call of its decoder, and
nothing of its class is known: attention is the function whose rows are frames times positions, a causal convolution is
a padding of five axes. What the original does not have changes nothing and is not marked (`parity.reached`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from parity.hooks.torchtools import SDPA, Intercept, of_attention
from parity.settings import BY_NAME

Mark = Callable[[str], None]
"""Told the name of a setting whose code was reached."""

ATTENTION, NORM, PADDING = "vae.attention", "vae.norm", "vae.padding"
KNOWN = (ATTENTION, NORM, PADDING)
"""The settings whose faults are simulated here; their values and words are the catalogue's."""
MODEL = "model"
"""The value of a setting that leaves the original as it is."""
FAULTS = tuple(f"{name}={value}" for name in KNOWN for value in BY_NAME[name].values if value != MODEL)

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
