"""The inputs that a golden carries: the same bits again, and only those that golden.json names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, fingerprint, verify
from parity.golden.disk.read import INPUTS as FILE, read_inputs
from parity.golden.disk.store import open_store
from parity.golden.disk.write import put_inputs
from parity.records import Array, Provenance, StepRecords
from parity.runs.given import read_given

INPUTS = {
    "cond.encoder_hidden_states": Array(np.float32([[1.0, -2.5, 3.140625]]), "bfloat16"),
    "cond.encoder_attention_mask": Array(np.float32([[1, 1, 0]]), "int64"),
    "noise": Array(np.random.default_rng(0).standard_normal((1, 4, 2), dtype=np.float32), "float32"),
}


def golden(where: Path, inputs: dict[str, Array] = INPUTS) -> Golden:
    prints = {name: fingerprint(item.values) for name, item in INPUTS.items()}
    provenance = Provenance("reference", "torch", "m", {}, 0, 1, inputs=prints)
    with GoldenWriter(where, provenance) as writer:
        writer.write_step(StepRecords(0, ()))
    put_inputs(open_store(where), provenance, inputs)
    return Golden.open(where)


def is_whole(found: dict[str, Array] | None) -> bool:
    return found is not None and all(
        np.array_equal(found[n].values, x.values) and found[n].dtype == x.dtype for n, x in INPUTS.items()
    )


def test_inputs_come_back_with_bits_and_dtypes(tmp_path: Path) -> None:
    one = golden(tmp_path / "g")
    assert is_whole(read_inputs(one))


def test_inputs_without_fingerprints_are_not_written(tmp_path: Path) -> None:
    one = golden(tmp_path / "g", {"tokens": Array(np.zeros(3, np.float32), "int64")})
    assert read_inputs(one) is None
    with pytest.raises(UsageError, match="carries no embeddings and noise"):
        read_given(one.name)


def test_damaged_inputs_are_refused(tmp_path: Path) -> None:
    one, file = golden(tmp_path / "g"), tmp_path / "g" / FILE
    whole = file.read_bytes()
    for at in [*range(0, len(whole), 37), len(whole) - 1]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = read_inputs(one)
        except UsageError:
            continue
        assert found is not None
        assert all(np.array_equal(found[name].values, x.values) for name, x in INPUTS.items()), at
    for cut in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match=FILE):
            read_inputs(one)
        assert [problem.file for problem in verify(one.name)] == [FILE]
    file.unlink()
    (tmp_path / "outside").write_bytes(whole)
    file.symlink_to(tmp_path / "outside")  # as a hub's snapshot is made of
    assert is_whole(read_inputs(one))


def test_inputs_of_another_golden_are_refused(tmp_path: Path) -> None:
    one = golden(tmp_path / "g")
    other = {**INPUTS, "noise": Array(INPUTS["noise"].values + 1, "float32")}
    prints = {name: fingerprint(item.values) for name, item in other.items()}
    put_inputs(open_store(tmp_path / "g"), Provenance("reference", "torch", "m", {}, 0, 1, inputs=prints), other)
    with pytest.raises(UsageError, match="'noise' does not match its fingerprint"):
        read_inputs(one)
