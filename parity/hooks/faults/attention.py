"""Known faults of a ported attention, simulated in the original: its mask dropped, keys zeroed, blocks filled.

Problem. A recording is made once, where the original runs; what a port got wrong is looked for later, elsewhere.

How. A call of the model is run again with one fault at a time: torch's own attention function is given other arguments
by a function mode, and nothing of the model's class is known. Among the calls that have a mask the longest are those of
the joint sequence, the shorter ones those of a text refiner. A fault that finds nothing to change is none of the
model's. Attention by another function (flex, a kernel of its own) is not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from parity.hooks.torchtools import SDPA, Handler, Intercept, of_attention

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
