"""The safetensors files that ports pass from one stage to the next, in the convention of the ports' own.

`stage1_embeddings.safetensors` holds what the text encoders gave, as the transformer takes it: embeddings under a name
of their own, their mask beside them, those of the negative prompt with `negative_` in front.
`stage2_latents.safetensors` holds the final latents of one generation, `latents`, and in its header the few numbers
that identify it; so the ports' stage 3 decodes ours and ours reads theirs.

They come from other people's programs, so nothing in them is believed: the header is checked first (names, shapes,
dtypes), and a tensor is read only when its shape is what the caller expects. A port may store bfloat16 as F32 and say
so in the header's `dtype_info`, a JSON object from tensor name to `torch.bfloat16`; the tensor is then given back as
bfloat16. Cost: one read of the tensors asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.files import replacing
from parity.models.folder import GenerationSpec
from parity.models.patches import DTYPES
from parity.settings import Settings

# A dimension above this is a damaged or foreign file; the largest real one is some 1000 tokens or pixels.
MAX_DIMENSION = 1 << 20

FLOATS = ("F32", "BF16", "F16")
MASKS = ("BOOL", "U8", "I8", "I16", "I32", "I64", *FLOATS)


class StageFile:
    """An open safetensors file whose every complaint names the file.

    Attributes:
        path: of the file. names: the tensors', sorted.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`; a missing, truncated or foreign file is a `UsageError`."""
        self.path = path
        if not path.is_file():
            raise UsageError(f"{path}: no such file; check the path: a file of tensors is wanted, .safetensors")
        try:
            self._file = safetensors.safe_open(path, framework="pt")
        except (OSError, safetensors.SafetensorError, UnicodeError) as error:
            raise UsageError(f"{path}: not a whole safetensors file: {error}; copy or write it again") from error
        self.names = tuple(sorted(self._file.keys()))
        text = (self._file.metadata() or {}).get("dtype_info", "{}")
        try:
            self._dtype_info = msgspec.json.decode(text, type=dict[str, str])
        except (msgspec.MsgspecError, RecursionError):
            raise UsageError(
                f"{path}: metadata dtype_info: expected a JSON object from tensor to dtype, found {text[:80]!r}"
            ) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the header states for a tensor; a missing one is a `UsageError`."""
        if name not in self.names:
            found = ", ".join(self.names) or "none"
            raise UsageError(f"{self.path}: tensor {name!r} is missing; expected it, found: {found}")
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str, expected: tuple[int | str, ...], dtypes: tuple[str, ...]) -> torch.Tensor:
        """Return one tensor, after its header entry was found to be as expected.

        Args:
            name: of the tensor.
            expected: a size for each dimension; a string stands for any size of at least one, and is how messages
                name that dimension.
            dtypes: what it may be stored as, in safetensors' names.

        Returns:
            The tensor on the CPU, in the dtype that the file means.

        Raises:
            UsageError: missing, of another shape, of another dtype.
        """
        shape = self.shape(name)
        fits = len(shape) == len(expected) and all(
            1 <= size <= MAX_DIMENSION if isinstance(wanted, str) else size == wanted
            for size, wanted in zip(shape, expected, strict=True)
        )
        if not fits:
            wanted = ", ".join(str(size) for size in expected)
            raise UsageError(f"{self.path}: tensor {name!r}: expected shape [{wanted}], found {list(shape)}")
        stored = self._file.get_slice(name).get_dtype()
        if stored not in dtypes:
            raise UsageError(f"{self.path}: tensor {name!r}: expected a dtype of {', '.join(dtypes)}, found {stored}")
        tensor: torch.Tensor = self._file.get_tensor(name)
        said = self._dtype_info.get(name, str(tensor.dtype))
        if said == str(tensor.dtype):
            return tensor
        if stored == "F32" and said in ("torch.bfloat16", "torch.float16"):
            return tensor.to(getattr(torch, said.removeprefix("torch.")))
        raise UsageError(f"{self.path}: tensor {name!r}: dtype_info says {said!r}, but it is stored as {stored}")


def check_finite(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of a file that has a NaN or an infinity in it."""
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise UsageError(f"{path}: tensor {name!r}: expected finite values, found {bad} NaN or Inf of {tensor.numel()}")


def write_stage_file(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and header strings atomically, with each tensor's dtype in `dtype_info` as the ports do.

    Raises:
        UsageError: the file cannot be written.
    """
    info = json.dumps({name: str(tensor.dtype) for name, tensor in tensors.items()})
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = safetensors.torch.save(whole, {"dtype_info": info, **metadata})
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


# --- the first stage


Conditions = dict[str, dict[str, torch.Tensor]]
"""Branch, then argument of the transformer, then tensor."""

_PREFIXES = {"cond": "", "uncond": "negative_"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The embeddings of one text encoder, on their way to the transformer.

    Attributes:
        argument: the transformer's that takes them. name: theirs in a stage-1 file.
        width: key of the transformer's config that holds it. length: tokens, where the transformer's config fixes them.
        tokens: how many the encoder gives, padding included.
        masked: whether the transformer is given their mask. may_be_empty: whether a prompt may leave no token.
        byt5: whether `text.byt5_dtype` is their encoder's dtype.
    """

    argument: str
    name: str
    width: str
    length: Callable[[Mapping[str, Any]], int | str] = lambda config: "L"
    tokens: Callable[[GenerationSpec], int] = lambda spec: spec.tokenizer_max_length
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


# --- the second


def write_stage2(path: Path, latents: torch.Tensor, **numbers: float) -> None:
    """Write the latents of a finished generation, atomically.

    Args:
        path: of the file to write or replace.
        latents: [B, C, T, H, W], on any device; kept in their dtype. NaN is written as it is: a broken run is what the
            file may have to show.
        numbers: that identify the run, as the ports' header has them: `seed`, `guidance_scale`, `num_frames` and
            `num_inference_steps`.

    Raises:
        UsageError: the file cannot be written.
    """
    write_stage_file(path, {"latents": latents}, {name: str(number) for name, number in numbers.items()})


def read_stage2(path: Path) -> torch.Tensor:
    """Read a port's latents.

    Returns:
        [B, C, T, H, W] on the CPU, in the dtype the file means, NaN and Inf as they are.

    Raises:
        UsageError: a missing, truncated or foreign file, or a missing or misshapen tensor.
    """
    return StageFile(path).read("latents", ("B", "C", "T", "H", "W"), FLOATS)
