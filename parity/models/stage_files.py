"""Reading and writing the safetensors files that ports pass from one stage to the next.

They come from other people's programs, so nothing in them is believed: the header is checked first (names, shapes,
dtypes), and a tensor is read only when its shape is what the caller expects. A port may store bfloat16 as F32 and say
so in the header's `dtype_info`, a JSON object from tensor name to `torch.bfloat16`; the tensor is then given back as
bfloat16. Cost: one read of the tensors asked for.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import msgspec
import safetensors
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.files import replacing

# A dimension above this is a damaged or foreign file; the largest real one is some 1000 tokens or pixels.
MAX_DIMENSION = 1 << 20

FLOATS = ("F32", "BF16", "F16")
MASKS = ("BOOL", "U8", "I8", "I16", "I32", "I64", *FLOATS)


class StageFile:
    """An open safetensors file whose every complaint names the file.

    Attributes:
        path: of the file.
        metadata: the header's strings, `dtype_info` among them.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Open `path`; a missing, truncated or foreign file is a `UsageError`."""
        self.path = path
        if not path.is_file():
            raise UsageError(f"{path}: no such file; check the path: a file of tensors is wanted, .safetensors")
        try:
            self._file = safetensors.safe_open(path, framework="pt")
        except (OSError, safetensors.SafetensorError, UnicodeError) as error:
            raise UsageError(f"{path}: not a whole safetensors file: {error}; copy or write it again") from error
        self.metadata: dict[str, str] = dict(self._file.metadata() or {})
        self._names = set(self._file.keys())
        self._dtype_info = self._parse_dtype_info()

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names, sorted."""
        return tuple(sorted(self._names))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the header states for a tensor; a missing one is a `UsageError`."""
        if name not in self._names:
            found = ", ".join(sorted(self._names)) or "none"
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

    def _parse_dtype_info(self) -> dict[str, str]:
        text = self.metadata.get("dtype_info", "{}")
        try:
            return msgspec.json.decode(text, type=dict[str, str])
        except (msgspec.MsgspecError, RecursionError):
            raise UsageError(
                f"{self.path}: metadata dtype_info: expected a JSON object from tensor to dtype, found {text[:80]!r}"
            ) from None


def check_finite(path: pathlib.Path, name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of a file that has a NaN or an infinity in it."""
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise UsageError(f"{path}: tensor {name!r}: expected finite values, found {bad} NaN or Inf of {tensor.numel()}")


def write_stage_file(path: pathlib.Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
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
