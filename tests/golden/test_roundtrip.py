"""What is written is what is read, bit for bit, for every kind of record."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter
from parity.golden.disk.format import encode_manifest
from parity.golden.disk.part import read_part, write_part
from parity.records import Floor, Key, Moments, Record, StepRecords
from parity.sketch import BINS, geometry
from tests.support.made import PROVENANCE, assert_same, mixed_step, write

DTYPES = ("bool", "i1", "u1", "<i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f4", ">i8")
SHAPES = st.one_of(
    st.just(()), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5), st.sampled_from([(70, 40), (3000,)])
)
WORDS = st.characters(codec="utf-8")
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(WORDS, min_size=1, max_size=12) | st.sampled_from(["块.0:out", "a\x00b", "__metadata__", "value.0"])
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    NUMBERS,
    st.text(WORDS, max_size=8),
    st.sampled_from(["nan", ""]),
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[np.ndarray, str]:
    """Values of any dtype, shape, strides and byte order, with the dtype's name as a record has it."""
    dtype, shape = draw(st.sampled_from((*DTYPES, "bfloat16"))), draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype == "bfloat16":
        bits = rng.integers(0, 2**16, shape, dtype=np.uint32) << np.uint32(16)
        return np.asarray(bits, np.uint32).view(np.float32), dtype  # NaNs with payloads among them
    raw = np.frombuffer(rng.bytes(math.prod(shape) * np.dtype(dtype).itemsize), np.uint8)
    x = (raw % 2 if dtype == "bool" else raw).astype(np.uint8).view(dtype).reshape(shape)
    x = draw(st.sampled_from([x, x.T, x[::-1] if x.ndim else x, np.repeat(x, 2, 0)[::2] if x.ndim else x]))
    return x, x.dtype.name


@st.composite
def records(draw: st.DrawFn, key: Key) -> Record:
    kind = draw(st.sampled_from(["tensor", "none", "scalar"]))
    if kind == "none":
        return Record(key, "none")
    if kind == "scalar":
        return Record(key, "scalar", dtype=draw(st.sampled_from(["", "float"])), value=draw(SCALARS))
    x, dtype = draw(arrays())
    view = geometry(x.shape)
    moments = draw(st.none() | st.builds(Moments, st.just(x.size), st.just(0), st.just(0), *[NUMBERS] * 4))
    filled = draw(st.none() | st.sampled_from([0.0, 1.5, math.nan, math.inf, -math.inf]))
    sketch = None if filled is None else np.full(view.size, filled, np.float32)
    value = draw(st.sampled_from([None, x]))
    return Record(key, "tensor", x.shape, dtype, "", (view.rows, view.channels), moments, sketch, value)


@st.composite
def steps(draw: st.DrawFn) -> StepRecords:
    step = draw(st.integers(-1, 10_000))
    key = st.builds(
        Key, st.text(WORDS, max_size=5), st.just(step), st.text(WORDS, max_size=5), NAMES, st.integers(0, 3)
    )
    keys = draw(st.lists(key, max_size=5, unique=True))
    bins = st.none() | st.integers(0, BINS).map(lambda n: np.full(n, math.nan, np.float32))
    unknown = st.just(math.nan) | st.floats(0)
    floor = st.builds(Floor, st.floats(0, allow_infinity=True) | st.just(math.nan), bins, unknown)
    floors = {key: draw(floor) for key in keys if draw(st.booleans())}
    return StepRecords(step, tuple(draw(records(key)) for key in keys), floors)


def there_and_back(step: StepRecords, path: Path) -> StepRecords:
    write_part(path, step)
    return read_part(path, memoryview(path.read_bytes()), step.step)


@given(steps())
@settings(max_examples=50)
def test_every_record_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, step: StepRecords) -> None:
    folder = tmp_path_factory.mktemp("part")
    assert_same(step, there_and_back(step, folder / "a"))
    write_part(folder / "b", there_and_back(step, folder / "a"))
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_goldens_come_back_through_files(tmp_path: Path) -> None:
    golden = Golden.open(write(tmp_path, PROVENANCE, [mixed_step(step) for step in (-1, 0, 12)]))
    assert (golden.steps, golden.complete, golden.provenance) == ((-1, 0, 12), True, PROVENANCE)
    assert golden.bytes == sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    for step in golden.steps:
        assert_same(mixed_step(step), golden.read_step(step))
    with pytest.raises(UsageError, match="no step 3 in this golden; it holds: -1, 0, 12"):
        golden.read_step(3)


# --- what is refused before it is written ----------------------------------------------------------------------

KEY = Key("t", 0, "", "a:out")
GOOD = Record(KEY, "tensor", (2, 3), "float32", "", (2, 3), None, np.zeros(6, np.float32))


def bad(**changes: object) -> Record:
    return dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (bad(key=Key("t", 1, "", "a:out")), "does not belong to step 0"),
        (bad(frame=(3, 3)), r"float32 \[9\]"),
        (bad(value=np.zeros((3, 2))), r"shape \(3, 2\)"),
        (Record(KEY, "scalar"), "a scalar with the value None"),
    ],
)
def test_a_record_that_the_format_does_not_allow_is_not_written(tmp_path: Path, record: Record, word: str) -> None:
    writer = GoldenWriter(tmp_path, PROVENANCE)
    with pytest.raises(UsageError, match=word):
        writer.write_step(StepRecords(0, (record,)))
    assert Golden.open(tmp_path).steps == ()


# --- provenance ------------------------------------------------------------------------------------------------


def test_the_committed_golden_is_written_again_byte_by_byte(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "golden" / "tiny-hunyuan-video-1.5"
    golden = Golden.open(folder)
    assert encode_manifest(golden.manifest) == (folder / "golden.json").read_bytes()
    for part in golden.manifest.parts:
        write_part(tmp_path / part.file, golden.read_step(part.step))
        assert (tmp_path / part.file).read_bytes() == (folder / part.file).read_bytes()
