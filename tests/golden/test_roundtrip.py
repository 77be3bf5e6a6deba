"""What is written is what is read, bit for bit, for every kind of record there is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parity.errors import UsageError
from parity.golden import Floor, Golden, GoldenWriter, Key, Moments, Provenance, Record, StepRecords
from parity.golden.disk import container
from parity.golden.disk.codec import decode_step, encode_step
from parity.golden.disk.format import encode_manifest
from parity.golden.sketch import BINS, geometry
from parity.golden.strict import MalformedError

DTYPES = ("bool", "i1", "u1", "<i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f4", ">i8")
SHAPES = st.one_of(
    st.just(()), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5), st.sampled_from([(70, 40), (3000,)])
)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(min_size=1, max_size=12) | st.sampled_from(["块.0:out", "a\x00b", "\ud800", "__metadata__", "0.sketch"])
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63) + 1, 2**63 - 1), NUMBERS, st.text(max_size=8), st.sampled_from(["nan", ""])
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[np.ndarray, str]:
    """Values of any dtype, shape, strides and byte order, with the dtype's name as a record says it."""
    dtype = draw(st.sampled_from((*DTYPES, "bfloat16")))
    shape = draw(SHAPES)
    seed = draw(st.integers(0, 2**32 - 1))
    if dtype == "bfloat16":
        bits = np.random.default_rng(seed).integers(0, 2**16, shape, dtype=np.uint32) << np.uint32(16)
        return np.asarray(bits, np.uint32).view(np.float32), dtype  # NaNs with payloads among them
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)
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
    moments = Moments(x.size, 0, 0, *(draw(NUMBERS) for _ in range(4)))
    sketched = draw(st.none() | st.sampled_from([0.0, 1.5, math.nan, math.inf, -math.inf]))
    return Record(
        key,
        "tensor",
        x.shape,
        dtype,
        "",
        (view.rows, view.channels),
        draw(st.none() | st.just(moments)),
        None if sketched is None else np.full(view.size, sketched, np.float32),
        draw(st.sampled_from([None, x])),
    )


@st.composite
def steps(draw: st.DrawFn) -> StepRecords:
    step = draw(st.integers(-1, 10_000))
    keys = draw(
        st.lists(
            st.builds(Key, st.text(max_size=5), st.just(step), st.text(max_size=5), NAMES, st.integers(0, 3)),
            max_size=5,
            unique=True,
        )
    )
    floor = st.builds(
        Floor,
        st.floats(0, allow_infinity=True) | st.just(math.nan),
        st.none() | st.integers(0, BINS).map(lambda n: np.full(n, math.nan, np.float32)),
        st.just(math.nan) | st.floats(0),
        st.just(math.nan) | st.floats(0),
    )
    floors = {key: draw(floor) for key in keys if draw(st.booleans())}
    return StepRecords(step, tuple(draw(records(key)) for key in keys), floors)


def in_memory(step: StepRecords) -> StepRecords:
    head, tensors = encode_step(step)
    body = b"".join(block.tobytes() for block in container.data(tensors))
    return decode_step(memoryview(head + body), step.step)


@given(steps())
@settings(max_examples=150, deadline=None)
def test_every_record_comes_back_bit_for_bit(
    assert_same: Callable[[StepRecords, StepRecords], None], step: StepRecords
) -> None:
    assert_same(step, in_memory(step))


def test_through_files(
    tmp_path: Path, provenance: Provenance, make_step: Callable[..., StepRecords], assert_same: Callable[..., None]
) -> None:
    with GoldenWriter(tmp_path / "g", provenance) as writer:
        for step in (-1, 0, 12):
            writer.write_step(make_step(step))
    golden = Golden.open(tmp_path / "g")
    assert golden.steps == (-1, 0, 12)
    assert golden.complete
    assert golden.provenance == provenance
    assert golden.bytes == sum(file.stat().st_size for file in (tmp_path / "g").glob("*.safetensors"))
    assert sorted(file.name for file in (tmp_path / "g").iterdir()) == [
        "before.safetensors",
        "golden.json",
        "step-0000.safetensors",
        "step-0012.safetensors",
    ]
    for step in golden.steps:
        assert_same(make_step(step), golden.read_step(step))
    with pytest.raises(UsageError, match=r"no step 3 in this golden; it holds: -1, 0, 12"):
        golden.read_step(3)


def test_values_are_mapped_not_read(tmp_path: Path, provenance: Provenance, make_record: Callable[..., Record]) -> None:
    x = np.random.default_rng(0).standard_normal((1000, 500)).astype(np.float32)
    with GoldenWriter(tmp_path, provenance) as writer:
        writer.write_step(StepRecords(0, (make_record(Key("t", 0, "", "a:out"), x, value=True),)))
    import tracemalloc

    golden = Golden.open(tmp_path)
    tracemalloc.start()
    value = golden.read_step(0).records[0].value
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(value, np.ndarray)
    assert peak < x.nbytes / 4
    assert not value.flags.owndata
    assert not value.flags.writeable
    np.testing.assert_array_equal(value, x)


def test_large_bfloat16_values_are_widened_outside_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, (300, 2000)).astype(np.uint16)
    expected = container.widen(bits)
    monkeypatch.setattr(container, "WIDE", 1000)
    wide = container.widen(bits)
    assert wide.dtype == np.float32
    assert wide.shape == bits.shape
    assert not wide.flags.writeable
    np.testing.assert_array_equal(wide.view(np.uint32) >> 16, bits)
    np.testing.assert_array_equal(wide.view(np.uint32), expected.view(np.uint32))


def test_a_float32_value_that_is_no_bfloat16_keeps_its_bits(make_record: Callable[..., Record]) -> None:
    x = np.float32([[1.0, 1.0 + 2**-20]])
    step = StepRecords(0, (make_record(Key("t", 0, "", "a:out"), x, value=True, dtype="bfloat16"),))
    assert encode_step(step)[1]["0.value"].dtype == "F32"
    np.testing.assert_array_equal(in_memory(step).records[0].value, x)


def test_bfloat16_of_ml_dtypes(make_record: Callable[..., Record]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    step = StepRecords(0, (dataclasses.replace(make_record(Key("t", 0, "", "a:out"), x, dtype="bfloat16"),
                                               value=x.astype(ml_dtypes.bfloat16)),))  # fmt: skip
    assert encode_step(step)[1]["0.value"].dtype == "BF16"
    np.testing.assert_array_equal(in_memory(step).records[0].value, x)


def test_numpy_scalars_are_scalars() -> None:
    step = StepRecords(0, (Record(Key("t", 0, "", "a:in.x"), "scalar", dtype="bool", value=np.bool_(True)),))  # type: ignore[arg-type]
    assert in_memory(step).records[0].value is True


def test_counts_beyond_four_bytes() -> None:
    """HunyuanVideo-1.5 at 720p: 54 blocks' worth of one output has 1.2e10 elements; only the index is that large."""
    shape = (54, 111_600, 2048)
    elements = math.prod(shape)
    assert elements > 2**33
    record = Record(
        Key("transformer", 0, "cond", "blocks:out"),
        "tensor",
        shape,
        "bfloat16",
        "",
        (54 * 111_600, 2048),
        Moments(elements, 2**32 + 1, 2**32 + 2, -1.0, 1.0, 0.0, 3.0),
        np.zeros(2048, np.float32),
    )
    read = in_memory(StepRecords(0, (record,))).records[0]
    assert (read.shape, read.frame, read.moments) == (record.shape, record.frame, record.moments)


@pytest.mark.parametrize("shape", [[2**32, 2**32], [2**63 - 1, 4], [2**62, 2**62, 0, -1], [3, 2**64], [1, 1.0], [True]])
def test_shapes_that_wrap_around_are_refused(shape: list[int]) -> None:
    import json

    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(MalformedError):
        container.parse_container(memoryview(len(text).to_bytes(8, "little") + text))


def test_sizes_beside_a_zero_are_refused_where_numpy_cannot_hold_them() -> None:
    import json

    text = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}).encode()
    with pytest.raises(MalformedError, match="tensor 'a'"):
        container.parse_container(memoryview(len(text).to_bytes(8, "little") + text))


def test_parts_open_with_the_safetensors_library(
    tmp_path: Path, provenance: Provenance, make_step: Callable[..., StepRecords]
) -> None:
    from safetensors import safe_open

    step = make_step(0)
    step = dataclasses.replace(step, records=tuple(r for r in step.records if r.dtype != "bfloat16"))
    with GoldenWriter(tmp_path, provenance) as writer:
        writer.write_step(step)
    with safe_open(tmp_path / "step-0000.safetensors", "np") as part:
        assert list(part.metadata()) == ["parity"]
        np.testing.assert_array_equal(part.get_tensor("0.value"), step.records[0].value)
        np.testing.assert_array_equal(part.get_tensor("1.sketch"), step.records[1].sketch)
        np.testing.assert_array_equal(part.get_tensor("0.floor"), next(iter(step.floors.values())).bins)


@given(st.lists(arrays(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_library_reads_every_dtype_and_shape(values: list[tuple[np.ndarray, str]]) -> None:
    from safetensors import deserialize

    tensors = {str(i): container.tensor(x, dtype) for i, (x, dtype) in enumerate(values)}
    content = container.header(tensors, {"parity": "{}"})
    content += b"".join(block.tobytes() for block in container.data(tensors))
    _, ours = container.parse_container(memoryview(content))
    theirs = dict(deserialize(content))
    assert ours.keys() == theirs.keys() == tensors.keys()
    for name, (x, _) in zip(tensors, values, strict=True):
        assert theirs[name]["dtype"] == ours[name].dtype
        assert tuple(theirs[name]["shape"]) == ours[name].array.shape == x.shape
        assert bytes(theirs[name]["data"]) == ours[name].array.tobytes()


KEY = Key("t", 0, "", "a:out")
GOOD = Record(KEY, "tensor", (2, 3), "float32", "", (2, 3), None, np.zeros(6, np.float32))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (dataclasses.replace(GOOD, key=Key("t", 1, "", "a:out")), "does not belong to step 0"),
        (dataclasses.replace(GOOD, key=Key("t", 0, "", "")), "site is empty"),
        (dataclasses.replace(GOOD, key=Key("t", 0, "", "a" * 5000)), "5000 characters"),
        (dataclasses.replace(GOOD, key=Key("t", 0, "", "a:out", -1)), "call"),
        (dataclasses.replace(GOOD, kind="pickle"), "kind is 'pickle'"),
        (dataclasses.replace(GOOD, dtype=""), "without a dtype"),
        (dataclasses.replace(GOOD, shape=(2, -3)), "shape"),
        (dataclasses.replace(GOOD, frame=(3, 3)), r"the sketch of frame \(3, 3\) should be float32 \[9\]"),
        (dataclasses.replace(GOOD, sketch=np.zeros(5, np.float32)), r"float32 \[6\]"),
        (dataclasses.replace(GOOD, sketch=np.zeros(6)), "float64"),
        (dataclasses.replace(GOOD, value=np.zeros((3, 2))), r"value's shape \(3, 2\) fits neither"),
        (dataclasses.replace(GOOD, value=1.0), "not an array"),
        (dataclasses.replace(GOOD, value=np.zeros((2, 3), complex)), "dtype complex128 cannot be stored"),
        (dataclasses.replace(GOOD, moments=Moments(6, 4, 3, 0, 0, 0, 0)), "more NaN and Inf"),
        (Record(KEY, "none", value=1), "a none with the value 1"),
        (Record(KEY, "scalar"), "a scalar with the value None"),
        (Record(KEY, "scalar", shape=(1,), value=1), "with a shape"),
        (Record(KEY, "scalar", value=2**64), "outside"),
    ],
)
def test_what_the_format_does_not_allow_is_refused_before_it_is_written(
    tmp_path: Path, provenance: Provenance, record: Record, said: str
) -> None:
    writer = GoldenWriter(tmp_path, provenance)
    with pytest.raises(UsageError, match=said):
        writer.write_step(StepRecords(0, (record,)))
    assert Golden.open(tmp_path).steps == ()


@pytest.mark.parametrize("rows", ["", "text"])
def test_a_value_may_hold_the_rows_of_the_frame_alone(rows: str) -> None:
    record = dataclasses.replace(GOOD, shape=(1, 9, 3), rows=rows, value=np.ones((1, 2, 3), np.float32))
    value = in_memory(StepRecords(0, (record,))).records[0].value
    assert isinstance(value, np.ndarray)
    assert value.shape == (1, 2, 3)


def test_two_records_of_one_key_are_refused() -> None:
    with pytest.raises(MalformedError, match="recorded twice"):
        encode_step(StepRecords(0, (GOOD, GOOD)))


def test_a_negative_floor_is_refused() -> None:
    with pytest.raises(MalformedError, match="negative"):
        encode_step(StepRecords(0, (GOOD,), {KEY: Floor(-1.0)}))
    with pytest.raises(MalformedError, match="is negative"):
        encode_step(StepRecords(0, (GOOD,), {KEY: Floor(1.0, linf=-1.0)}))


def test_no_field_is_forgotten() -> None:
    """A field added to a record must be taught to the codec; this test is where that is noticed."""
    fields = {
        kind: tuple(f.name for f in dataclasses.fields(kind)) for kind in (Key, Moments, Record, Floor, StepRecords)
    }
    assert fields == {
        Key: ("stage", "step", "branch", "site", "call"),
        Moments: ("count", "nan", "inf", "min", "max", "mean", "l2"),
        Record: ("key", "kind", "shape", "dtype", "rows", "frame", "moments", "sketch", "value"),
        Floor: ("l2", "bins", "local_l2", "linf"),
        StepRecords: ("step", "records", "floors"),
    }


@given(
    st.builds(
        Provenance,
        *(st.text(max_size=5) for _ in range(3)),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 1000),
        weights=st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
        devices=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        modules=st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
        shard=st.sampled_from([(0, 1), (3, 8)]),
    )
)
@settings(max_examples=60, deadline=None)
def test_provenance_comes_back(provenance: Provenance) -> None:
    from parity.golden.disk.format import Manifest, Part, decode_manifest, encode_manifest

    manifest = Manifest(provenance, tuple(Part(s, 10, "0" * 64, 1) for s in (-1, 0, 5)), True)
    read = decode_manifest(encode_manifest(manifest), "golden.json")
    assert read == manifest
    assert list(read.provenance.modules) == list(provenance.modules)  # in the tree's own order


def test_equal_manifests_are_equal_bytes_whatever_the_order_of_their_settings(provenance: Provenance) -> None:
    from parity.golden.disk.format import Manifest, encode_manifest

    contents = {
        encode_manifest(Manifest(dataclasses.replace(provenance, settings=dict(order))))
        for order in itertools.permutations(provenance.settings.items())
    }
    assert len(contents) == 1


def test_the_committed_golden_is_written_again_byte_by_byte() -> None:
    folder = Path(__file__).parents[2] / "golden" / "tiny-hunyuan-video-1.5"
    golden = Golden.open(folder)
    assert encode_manifest(golden.manifest) == (folder / "golden.json").read_bytes()
    for part in golden.manifest.parts:
        head, tensors = encode_step(golden.read_step(part.step))
        body = b"".join(block.tobytes() for block in container.data(tensors))
        assert head + body == (folder / part.file).read_bytes()
