"""The stage-2 file: read as the ports write it, written as they read it."""

from __future__ import annotations

import json
import pathlib

import pytest
import safetensors
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.models.stage_files import read_stage2, write_stage2

NUMBERS = {"seed": 42, "guidance_scale": 6.0, "num_frames": 49, "num_inference_steps": 50}
SMALL = torch.zeros(1, 2, 1, 2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_latents_come_back_bit_for_bit(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    latents = torch.randn(1, 32, 3, 4, 6).to(dtype)
    latents[0, 0, 0, 0, 0] = torch.nan  # a broken run can be written and read
    path = tmp_path / "s2"
    write_stage2(path, latents.transpose(3, 4), **NUMBERS)
    found = read_stage2(path)
    torch.testing.assert_close(found, latents.transpose(3, 4), rtol=0, atol=0, equal_nan=True)
    assert found.dtype == dtype
    with safetensors.safe_open(path, framework="pt") as file:
        header = file.metadata()
        assert json.loads(header.pop("dtype_info")) == {"latents": str(dtype)}
        assert {name: float(text) for name, text in header.items()} == NUMBERS
    assert [entry.name for entry in tmp_path.iterdir()] == ["s2"]


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"x": torch.zeros(1)}, "'latents' is missing"),
        ({"latents": torch.zeros(32, 3, 4, 6)}, r"found \[32, 3, 4, 6\]"),
        ({"latents": SMALL.int()}, "found I32"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: pathlib.Path, tensors: dict[str, torch.Tensor], word: str
) -> None:
    safetensors.torch.save_file(tensors, tmp_path / "s2")
    with pytest.raises(UsageError, match=f"s2: .*{word}"):
        read_stage2(tmp_path / "s2")


def test_truncated_and_missing_files_are_refused(tmp_path: pathlib.Path) -> None:
    write_stage2(tmp_path / "s2", SMALL, **NUMBERS)
    (tmp_path / "cut").write_bytes((tmp_path / "s2").read_bytes()[:-1])
    with pytest.raises(UsageError, match="cut: not a whole safetensors file"):
        read_stage2(tmp_path / "cut")
    with pytest.raises(UsageError, match="nowhere: no such file"):
        read_stage2(tmp_path / "nowhere")
