"""Arrays in a safetensors file, written and checked by the safetensors library, bfloat16 included."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, safe_open, serialize

from parity.errors import MalformedError, shown

BFLOAT16 = "bfloat16"
_STORED = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(x).name for name, x in _STORED.items() if name != "BF16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """Values and what they are on disk.

    Attributes:
        bits: the values; of bfloat16 the raw bits, uint16. dtype: in numpy's names, and `bfloat16`.
    """

    bits: np.ndarray
    dtype: str

    @classmethod
    def of(cls, values: np.ndarray, dtype: str = "") -> Stored:
        """Values in C order and little endian.

        Args:
            dtype: what they are where the array cannot say it: `bfloat16`, held as float32. It is stored as such where
                no bit is lost.

        Raises:
            MalformedError: a dtype that safetensors has no name for, such as object or complex.
        """
        name = values.dtype.name
        if name == BFLOAT16:  # ml_dtypes: not imported here, and not needed to see the bits
            return cls(np.ascontiguousarray(values.view(np.uint16)).reshape(values.shape), BFLOAT16)
        if name not in _NAMES:
            raise MalformedError(f"values of dtype {name} cannot be stored; convert them to one of {sorted(_NAMES)}")
        values = np.asarray(values, values.dtype.newbyteorder("<"), order="C")
        if dtype == BFLOAT16 and name == "float32":
            bits = values.view(np.uint32)
            if not (bits & np.uint32(0xFFFF)).any():
                return cls(np.asarray(bits >> np.uint32(16), np.uint16), BFLOAT16)
        return cls(values, name)

    @property
    def values(self) -> np.ndarray:
        """Of bfloat16 a float32 copy, exact, NaN payloads included; of all else the array itself."""
        if self.dtype != BFLOAT16:
            return self.bits
        wide = self.bits.astype(np.uint32)
        wide <<= np.uint32(16)
        values = wide.view(np.float32)
        values.flags.writeable = False
        return values


def write_tensors(path: Path, arrays: Mapping[str, Stored], metadata: tuple[str, str]) -> None:
    """Write a safetensors file; equal arguments give equal bytes.

    Cost: its content in memory once more.

    Args:
        metadata: one name and its text: several would come in any order.

    Raises:
        OSError: it cannot be written.
    """
    assert sys.byteorder == "little"
    specs = {
        name: TensorSpec(dtype=x.dtype, shape=list(x.bits.shape), data_ptr=x.bits.ctypes.data, data_len=x.bits.nbytes)
        for name, x in arrays.items()
    }
    try:
        content = serialize(specs, metadata=dict([metadata]))
    except SafetensorError as error:
        raise MalformedError(str(error)) from None
    path.write_bytes(content)


def read_tensors(path: Path, buffer: memoryview) -> tuple[dict[str, str], dict[str, Stored]]:
    """The metadata and the tensors of a safetensors file.

    Args:
        path: of the file, which the library checks. buffer: its content, mapped: the arrays are read-only views of it.

    Raises:
        MalformedError: it is no safetensors file, or holds what goldens do not.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata, slices = file.metadata() or {}, {name: file.get_slice(name) for name in file.offset_keys()}
            entries = [(name, x.get_dtype(), tuple(x.get_shape())) for name, x in slices.items()]
    except (SafetensorError, OverflowError, UnicodeError) as error:
        raise MalformedError(f"it is no sound safetensors file ({shown(str(error))})") from None
    at, found = 8 + int.from_bytes(buffer[:8], "little"), {}
    for name, dtype, shape in entries:  # one after the other, without a gap: the library demands it
        if dtype not in _STORED:
            raise MalformedError(f"tensor {shown(name)} has the dtype {shown(dtype)}, which goldens do not hold")
        stored = np.dtype(_STORED[dtype])
        size = math.prod(shape) * stored.itemsize
        try:
            bits = np.frombuffer(buffer[at : at + size], stored).reshape(shape)
        except ValueError as error:  # sizes beside a zero that numpy cannot hold
            raise MalformedError(f"tensor {shown(name)} has the shape {shown(shape)} ({error})") from None
        found[name] = Stored(bits, BFLOAT16 if dtype == "BF16" else stored.name)
        at += size
    return metadata, found
