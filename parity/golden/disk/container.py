"""The safetensors container: written with stable bytes, read by memory map, checked before memory is taken.

Problem. A part of a golden must be a safetensors file that anything can open, but the library alone is not enough:
its numpy side has no bfloat16, its writer needs all tensors as bytes in memory, and its metadata comes out in any
order, so that two equal runs give unequal files.

How. The format is small: 8 bytes of header length (little endian), a JSON header that gives each tensor's dtype, shape
and byte range, then the bytes without gaps. `header` and `data` write it in blocks; `parse` checks every number of a
header against the file's size before an array is made, then views the map. Tensors are ordered by falling item size,
which keeps each aligned. Files load with the safetensors library (a test).

bfloat16. numpy has no such dtype. Values are held as float32 (every bfloat16 is one) and stored as BF16 where the
record says `bfloat16` and no bit is lost; an ml_dtypes array is stored as it is. `parse` hands out the raw 16 bits,
and `widen` makes float32 of them, exactly.

Cost. Writing copies at most one block of 1 MB at a time, whatever the strides; reading copies nothing but what is
widened, and that in memory up to 16 MB a value only.
"""

from __future__ import annotations

import json
import math
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.golden.strict import MalformedError, as_int, as_list, as_object, as_text, has_too_many, parse, shown

MAX_HEADER = 100_000_000
"""Bytes of a header at most: the safetensors library's own limit."""
BLOCK = 1 << 18
"""Elements converted and written at a time."""
WIDE = 1 << 22
"""Elements of a bfloat16 value that are widened in memory at most: 16 MB of float32."""
METADATA = "__metadata__"
BFLOAT16 = "BF16"

_STORAGE = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    BFLOAT16: np.dtype("<u2"),  # raw bits
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}


def storage(dtype: str) -> np.dtype[Any]:
    """How values of a safetensors dtype lie in a file; of `BF16` the raw bits."""
    return _STORAGE[dtype]


_TENSOR = frozenset({"dtype", "shape", "data_offsets"})
_NAMES = {dtype.name: name for name, dtype in _STORAGE.items() if name != BFLOAT16}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array and the dtype it is stored as.

    Attributes:
        dtype: the safetensors name, such as `F32`.
        array: the values; for `BF16` the raw bits (uint16), or, on the way to disk, float32 values that fit.
    """

    dtype: str
    array: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return math.prod(self.array.shape) * _STORAGE[self.dtype].itemsize


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements in C order and little endian, in contiguous 1-D blocks, each valid until the next is taken."""
    if array.size == 0:
        return
    contiguous: Any = [["readonly", "contig"]]  # numpy's own annotations misspell the flag
    yield from np.nditer(
        [array],
        flags=["external_loop", "buffered"],
        op_flags=contiguous,
        op_dtypes=[array.dtype.newbyteorder("<")],
        order="C",
        casting="equiv",
        buffersize=BLOCK,
    )


def _fits_bfloat16(array: np.ndarray) -> bool:
    return not any((block.view(np.uint32) & 0xFFFF).any() for block in blocks(array))


def tensor(array: np.ndarray, dtype: str = "") -> Tensor:
    """How an array is stored.

    Args:
        array: any shape and strides.
        dtype: what the values are, in numpy's names, where the array cannot say it: `bfloat16` held as float32.

    Raises:
        MalformedError: a dtype that safetensors has no name for, such as object or complex.
    """
    name = array.dtype.name
    if name == "bfloat16":  # ml_dtypes: not imported here, and not needed to see the bits
        return Tensor(BFLOAT16, array.view(np.uint16))
    if dtype == "bfloat16" and name == "float32" and _fits_bfloat16(array):
        return Tensor(BFLOAT16, array)
    if name not in _NAMES:
        raise MalformedError(f"values of dtype {name} cannot be stored; convert them to one of {', '.join(_NAMES)}")
    return Tensor(_NAMES[name], array)


def widen(bits: np.ndarray) -> np.ndarray:
    """float32 values of raw bfloat16 bits (uint16), exactly, NaN payloads included; read-only.

    More than WIDE elements go to a temporary file without a name, which is mapped, so that memory stays bounded.

    Raises:
        OSError: the temporary folder is full.
    """
    if bits.size <= WIDE:
        wide = _widened(bits)
        wide.flags.writeable = False
        return wide
    with tempfile.TemporaryFile(prefix="parity-") as spool:
        for block in blocks(bits):
            spool.write(_widened(block).data)
        spool.flush()
        mapped = mmap.mmap(spool.fileno(), 4 * bits.size, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype=np.float32).reshape(bits.shape)


def _widened(bits: np.ndarray) -> np.ndarray:
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _ordered(tensors: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    return sorted(tensors.items(), key=lambda item: -_STORAGE[item[1].dtype].itemsize)  # stable


def header(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The file's bytes before the data.

    Raises:
        MalformedError: the header is longer, or holds more values, than readers accept.
    """
    entries: dict[str, Any] = {METADATA: metadata}
    offset = 0
    for name, item in _ordered(tensors):
        end = offset + item.nbytes
        entries[name] = {"dtype": item.dtype, "shape": list(item.array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise MalformedError(f"the step's records need a header of {len(text)} bytes, more than {MAX_HEADER}")
    if has_too_many(text):
        raise MalformedError("the step has more records than readers take (some 100,000): observe fewer sites")
    return len(text).to_bytes(8, "little") + text


def data(tensors: dict[str, Tensor]) -> Iterator[np.ndarray]:
    """The file's bytes after the header, as uint8 blocks, each valid until the next is taken."""
    for _, item in _ordered(tensors):
        narrow = item.dtype == BFLOAT16 and item.array.dtype == np.float32
        for block in blocks(item.array):
            yield ((block.view(np.uint32) >> np.uint32(16)).astype("<u2") if narrow else block).view(np.uint8)


def parse_container(buffer: memoryview) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file; arrays are read-only views of `buffer`.

    Raises:
        MalformedError: anything at all that does not add up.
    """
    if len(buffer) < 8:
        raise MalformedError(f"it is {len(buffer)} bytes long, too short for a safetensors file")
    length = int.from_bytes(buffer[:8], "little")
    if length > min(MAX_HEADER, len(buffer) - 8):
        raise MalformedError(f"its header claims {length} bytes of a file of {len(buffer)}")
    entries = parse(bytes(buffer[8 : 8 + length]))
    metadata = entries.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedError("its metadata is not an object of strings")
    body = buffer[8 + length :]
    ranges: list[tuple[int, int]] = []
    tensors = {name: _view(name, entry, body, ranges) for name, entry in entries.items()}
    _check_cover(ranges, len(body))
    return metadata, tensors


def _view(name: str, entry: Any, body: memoryview, ranges: list[tuple[int, int]]) -> Tensor:
    what = f"tensor {shown(name)}"
    fields = as_object(entry, what, _TENSOR)
    dtype = as_text(fields["dtype"], f"the dtype of {what}")
    if dtype not in _STORAGE:
        raise MalformedError(f"{what} has the dtype {shown(dtype)}, which goldens do not hold")
    shape = [as_int(n, f"the shape of {what}") for n in as_list(fields["shape"], f"the shape of {what}", 64)]
    offsets = as_list(fields["data_offsets"], f"the offsets of {what}", 2)
    start, end = (as_int(n, f"the offsets of {what}", most=len(body)) for n in _pair(offsets, what))
    if end - start != math.prod(shape) * _STORAGE[dtype].itemsize:
        raise MalformedError(f"{what} of shape {shown(shape)} does not fill bytes {start} to {end}")
    ranges.append((start, end))
    try:
        return Tensor(dtype, np.frombuffer(body[start:end], dtype=_STORAGE[dtype]).reshape(shape))
    except ValueError as error:  # sizes beside a zero that numpy cannot hold
        raise MalformedError(f"{what} has the shape {shown(shape)} ({error})") from None


def _pair(items: Sequence[Any], what: str) -> Sequence[Any]:
    if len(items) != 2:
        raise MalformedError(f"the offsets of {what} are {shown(items)}, not two numbers")
    return items


def _check_cover(ranges: list[tuple[int, int]], length: int) -> None:
    """Tensors follow each other without gap or overlap to the end, as the safetensors library demands too."""
    position = 0
    for start, end in sorted(ranges):
        if start != position:
            raise MalformedError(f"its tensors leave a gap or overlap at byte {position}")
        position = end
    if position != length:
        raise MalformedError(f"its tensors end at byte {position} of {length}")
