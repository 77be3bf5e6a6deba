"""Known faults of ported video decoders, simulated in a model of torch's by what its own code calls.

Of a decoder that was written again in another framework the frames are all that it shows, and they say only how far
they are. So the reference decodes again with one fault at a time: a `Fault` is a function of torch's, and what a model
that has it would make of the function's arguments. Nothing of the model's class is known. A fault that finds nothing to
change is none of the model's, and is not marked (`parity.settings.Reached`).

A ported video decoder differs where its axes do: its attention sees one frame at a time, its group norms take the
statistics of each frame, its convolutions pad with zeros. Attention is the function whose rows are frames times
positions, a causal convolution is a padding of five axes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import group_norm, pad

from parity.hooks.methods import replaced
from parity.hooks.torchtools import SDPA, SDPA_NAMES, Intercept

Arguments = dict[str, Any]
"""Of one of torch's functions, by name."""
Call = Callable[[Arguments], Any]
"""That function."""
Change = Callable[[Arguments], Arguments]
"""The arguments that a fault changes; none where it finds nothing to change."""

_NAMES = {
    SDPA: SDPA_NAMES,
    pad: ("input", "pad", "mode", "value"),
    group_norm: ("input", "num_groups", "weight", "bias", "eps"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A known fault.

    Attributes:
        name: `setting=value`. function: of torch's, that is called otherwise.
        around: what a call of the function gives with the fault; None where that finds nothing to change.
    """

    name: str
    function: Callable[..., Any]
    around: Callable[[Call, Arguments], Any]


def _changing(name: str, function: Callable[..., Any], change: Change) -> Fault:
    """A fault of the arguments alone."""

    def around(call: Call, given: Arguments) -> Any:
        changed = change(given)
        return call({**given, **changed}) if changed else None

    return Fault(name, function, around)


class Faulty(Intercept):
    """Within it torch's functions compute what a model with these faults would, one fault at most of each function.

    Args:
        mark: is given the name of a fault, each time that it changes something.
    """

    def __init__(self, faults: Iterable[Fault], mark: Callable[[str], None]) -> None:
        super().__init__(self._handle)
        self.faults, self.mark = {fault.function: fault for fault in faults}, mark

    def _handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Arguments) -> Any:
        fault = self.faults.get(func)
        if fault is None:
            return func(*args, **kwargs)
        given = {**dict(zip(_NAMES[func], args, strict=False)), **kwargs}
        found = fault.around(lambda changed: func(**changed), given)
        if found is None:
            return func(**given)
        self.mark(fault.name)
        return found


_AXES = 5
"""Of a video, [B, C, T, H, W]."""


@dataclass
class Video:
    """What a decoder works on: latents, or a chunk or a tile of them.

    Attributes:
        sizes: its batch and its frames.
    """

    sizes: tuple[int, int] = (1, 1)

    def of(self, z: torch.Tensor) -> AbstractContextManager[None]:
        """Within it, the decoder works on these, [B, C, T, H, W]."""
        return replaced(self, "sizes", (z.shape[0], z.shape[2])) if z.ndim == _AXES else contextlib.nullcontext()

    def forward(
        self, decoder: torch.nn.Module, within: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    ) -> Callable[..., Any]:
        """The forward of a decoder, which works on what it is given: a chunk or a tile, within a context of its own."""
        forward = decoder.forward

        @functools.wraps(forward)
        def called(z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with self.of(z), within():
                return forward(z, *args, **kwargs)

        return called

    def faults(self) -> dict[str, Fault]:
        """The faults of a decoder by name; their words are the catalogue's."""
        found = [
            *(_changing(f"vae.attention={how}", SDPA, functools.partial(self._seen, how)) for how in _MASKS),
            Fault("vae.norm=by_frame", group_norm, _by_frame),
            _changing("vae.padding=zeros", pad, _zeros),
            _changing("vae.padding=both_ends", pad, _both_ends),
        ]
        return {fault.name: fault for fault in found}

    def _seen(self, how: str, given: Arguments) -> Arguments:
        """Another mask of an attention whose rows are those of several frames."""
        (batch, frames), query, rows = self.sizes, given["query"], given["query"].shape[-2]
        several = frames > 1 and rows % frames == 0 and query.shape[0] % (batch * frames)
        masked = given.get("attn_mask") is not None or bool(given.get("is_causal"))
        wanted = {"by_frame": True, "full": masked, "causal": not masked}[how]  # none to be dropped, or one already
        if not several or given["key"].shape[-2] != rows or not wanted:
            return {}
        frame = torch.arange(rows, device=query.device) // (rows // frames)
        return {"attn_mask": _MASKS[how](frame[:, None], frame[None, :]), "is_causal": False}


_MASKS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]] = {
    "by_frame": torch.eq,
    "causal": torch.ge,
    "full": lambda query, key: None,
}
"""Which frames a query's frame sees."""


def _by_frame(norm: Call, given: Arguments) -> Any:
    """A norm of a video [B, C, T, H, W], of each frame by itself."""
    x = given["input"]
    if x.ndim != _AXES:
        return None
    alone = x.transpose(1, 2).flatten(0, 1)
    return norm({**given, "input": alone}).unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def _is_video(given: Arguments) -> bool:
    """Whether what is padded is one."""
    return isinstance(given["input"], torch.Tensor) and given["input"].ndim == _AXES


def _zeros(given: Arguments) -> Arguments:
    """Zeros in place of repeated edges."""
    there = _is_video(given) and any(given["pad"]) and given.get("mode") == "replicate"
    return {"mode": "constant", "value": 0.0} if there else {}


def _both_ends(given: Arguments) -> Arguments:
    """As many frames behind as before."""
    *space, before, behind = given["pad"]
    if not _is_video(given) or len(space) != 4 or before <= 1 or behind != 0:
        return {}
    return {"pad": [*space, before - before // 2, before // 2]}


def wrong_from_here_on(decoder: torch.nn.Module, names: Iterable[str], mark: Callable[[str], None]) -> None:
    """Give a decoder, which takes latents [B, C, T, H, W] first, these faults."""
    video = Video()
    faults = [video.faults()[name] for name in names]
    decoder.forward = video.forward(decoder, lambda: Faulty(faults, mark))
