"""The inputs that a golden carries: the same bits again, and nothing but those that golden.json names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Provenance, fingerprint
from parity.golden.disk.inputs import FILE, Input, put_inputs, read_inputs
from parity.golden.disk.merge import merge
from parity.golden.disk.store import open_store
from parity.golden.records import StepRecords

HALF = np.float32([[1.0, -2.5, 3.140625]])  # bfloat16 values
INPUTS = {
    "cond.encoder_hidden_states": Input(HALF, "bfloat16"),
    "cond.encoder_attention_mask": Input(np.float32([[1, 1, 0]]), "int64"),
    "noise": Input(np.random.default_rng(0).standard_normal((1, 4, 2), dtype=np.float32), "float32"),
}


def golden(where: Path, inputs: dict[str, Input] = INPUTS) -> Golden:
    prints = {name: fingerprint(item.values) for name, item in INPUTS.items()}
    provenance = Provenance("reference", "torch", "m", {}, 0, 1, inputs=prints)
    with GoldenWriter(where, provenance) as writer:
        writer.write_step(StepRecords(0, ()))
    put_inputs(open_store(where), provenance, inputs)
    return Golden.open(where)


def test_they_come_back_with_their_bits_and_dtypes_and_are_merged(tmp_path: Path) -> None:
    held = golden(tmp_path / "g")
    merge(tmp_path / "merged", [tmp_path / "g"])
    for found in (read_inputs(held), read_inputs(Golden.open(tmp_path / "merged"))):
        assert {name: item.dtype for name, item in found.items()} == {name: x.dtype for name, x in INPUTS.items()}
        assert all(np.array_equal(found[name].values, x.values) for name, x in INPUTS.items())
    assert (tmp_path / "g" / FILE).read_bytes() == (tmp_path / "merged" / FILE).read_bytes()


def test_what_is_not_of_the_provenance_is_not_written(tmp_path: Path) -> None:
    held = golden(tmp_path / "g", {"tokens": Input(np.zeros(3, np.float32), "int64")})
    with pytest.raises(UsageError, match=r"carries no embeddings and noise.*--stage1-out and --stage1"):
        read_inputs(held)


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    held = golden(tmp_path / "g")
    file = tmp_path / "g" / FILE
    whole = file.read_bytes()
    for at in [*range(0, len(whole), 37), len(whole) - 1]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = read_inputs(held)
        except UsageError:
            continue
        assert all(np.array_equal(found[name].values, x.values) for name, x in INPUTS.items()), at
    for cut in (0, 7, 100, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(UsageError, match=FILE):
            read_inputs(held)
    file.unlink()
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(whole)
    file.symlink_to(outside)
    with pytest.raises(UsageError, match="leads out of its golden"):
        read_inputs(held)


def test_another_golden_s_inputs_are_refused(tmp_path: Path) -> None:
    held = golden(tmp_path / "g")
    other = {**INPUTS, "noise": Input(INPUTS["noise"].values + 1, "float32")}
    prints = {name: fingerprint(item.values) for name, item in other.items()}
    put_inputs(open_store(tmp_path / "g"), Provenance("reference", "torch", "m", {}, 0, 1, inputs=prints), other)
    with pytest.raises(UsageError, match=r"'noise' does not match its fingerprint in golden\.json"):
        read_inputs(held)
