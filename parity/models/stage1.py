"""The stage-1 file of a port: what its text encoders gave, as the transformer takes it.

Written in the convention of the ports' own `stage1_embeddings.safetensors`: embeddings under a name of their own, their
mask beside them, those of the negative prompt with `negative_` in front. Cost: one read of some megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parity.errors import UsageError
from parity.models.patches import DTYPES
from parity.models.stage_files import FLOATS, MASKS, StageFile, check_finite, write_stage_file
from parity.settings import Settings

Conditions = dict[str, dict[str, torch.Tensor]]
"""Branch, then argument of the transformer, then tensor."""

_PREFIXES = {"cond": "", "uncond": "negative_"}


def _any_length(config: Mapping[str, Any]) -> int | str:
    return "L"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The embeddings of one text encoder, on their way to the transformer.

    Attributes:
        argument: the transformer's that takes them. name: theirs in a stage-1 file.
        width: key of the transformer's config that holds it. length: tokens, where the transformer's config fixes them.
        masked: whether the transformer is given their mask. may_be_empty: whether a prompt may leave no token.
        byt5: whether `text.byt5_dtype` is their encoder's dtype.
    """

    argument: str
    name: str
    width: str
    length: Callable[[Mapping[str, Any]], int | str] = _any_length
    masked: bool = True
    may_be_empty: bool = False
    byt5: bool = False

    @property
    def mask_argument(self) -> str:
        return self.argument.replace("hidden_states", "attention_mask")

    @property
    def mask_name(self) -> str:
        return self.name.replace("embeds", "embeds_mask")

    def dtype(self, settings: Settings) -> torch.dtype:
        """That their encoder runs in."""
        byt5 = settings.text("text.byt5_dtype") if self.byt5 else "same"
        return DTYPES[settings.text("dtype") if byt5 == "same" else byt5]


def read_stage1(path: Path, streams: Sequence[Stream], config: Mapping[str, Any]) -> Conditions:
    """Read a stage-1 file and check it against the transformer.

    Args:
        config: the transformer's.

    Returns:
        Branch -> argument -> embeddings [1, L, D] and masks [1, L], on the CPU, in the dtypes that the file means.
        Other tensors of the file are not looked at.

    Raises:
        UsageError: a missing, truncated or foreign file; a tensor that is missing, misshapen, of a foreign dtype, not
            finite; a mask with other values than 0 and 1, or one without a token that must have one.
    """
    conditions: Conditions = {branch: {} for branch in _PREFIXES}
    file = StageFile(path)
    for stream in streams:
        length = stream.length(config)
        for branch, prefix in _PREFIXES.items():
            name, mask_name = prefix + stream.name, prefix + stream.mask_name
            embeds = file.read(name, (1, length, int(config[stream.width])), FLOATS)
            length = embeds.shape[1]  # the mask and the other branch are padded to it
            mask = file.read(mask_name, (1, length), MASKS) if stream.masked else None
            check_finite(path, name, embeds)
            conditions[branch][stream.argument] = embeds
            if mask is not None:
                _check_mask(path, mask_name, mask, may_be_empty=stream.may_be_empty)
                conditions[branch][stream.mask_argument] = mask
    return conditions


def write_stage1(path: Path, streams: Sequence[Stream], conditions: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write embeddings and masks as a port's first stage does, atomically; `read_stage1` gives the same bits back.

    Raises:
        UsageError: the file cannot be written.
    """
    tensors = {}
    for branch, prefix in _PREFIXES.items():
        for stream in streams:
            tensors[prefix + stream.name] = conditions[branch][stream.argument]
            if stream.masked:
                tensors[prefix + stream.mask_name] = conditions[branch][stream.mask_argument]
    write_stage_file(path, tensors, {})


def _check_mask(path: Path, name: str, mask: torch.Tensor, *, may_be_empty: bool) -> None:
    check_finite(path, name, mask)
    if not bool(((mask == 0) | (mask == 1)).all()):
        other = mask[(mask != 0) & (mask != 1)][0].item()
        raise UsageError(f"{path}: tensor {name!r}: expected a mask of 0 and 1, found {other}")
    if not may_be_empty and not bool(mask.any()):
        # The refiner divides by the number of tokens, so everything behind an empty mask would be NaN.
        raise UsageError(f"{path}: tensor {name!r}: expected at least one token, found a mask of zeros")
