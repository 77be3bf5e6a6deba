"""The stage-2 file: read as the ports write it, written as they read it."""

from __future__ import annotations

import json
import pathlib

import pytest
import safetensors
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.models.stage2 import read_stage2, write_stage2

REAL = pathlib.Path(__file__).parents[2] / "../shared/data/hunyuan-video-1.5/stage2_latents.safetensors"
NUMBERS = {"seed": 42, "guidance_scale": 6.0, "num_frames": 49, "num_inference_steps": 50}


def header(path: pathlib.Path) -> tuple[dict[str, str], list[str]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata()), list(file.keys())


@pytest.mark.skipif(not REAL.is_file(), reason="the real stage2_latents.safetensors is not here")
def test_the_real_file_is_read_and_written_again_alike(tmp_path: pathlib.Path) -> None:
    latents, numbers = read_stage2(REAL)
    assert latents.shape == (1, 32, 13, 45, 80)
    assert latents.dtype == torch.bfloat16
    assert latents.isfinite().all()
    assert numbers == NUMBERS
    path = tmp_path / "stage2_latents.safetensors"
    write_stage2(path, latents, seed=42, guidance_scale=6.0, num_frames=49, num_inference_steps=50)
    assert header(path) == header(REAL)
    assert torch.equal(read_stage2(path)[0].view(torch.int16), latents.view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_keeps_every_bit(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    latents = torch.randn(1, 32, 3, 4, 6).to(dtype)
    latents[0, 0, 0, 0, 0] = torch.nan  # a broken run can be written and read
    path = tmp_path / "s2"
    write_stage2(path, latents.transpose(3, 4), **NUMBERS)
    found, numbers = read_stage2(path)
    assert found.dtype == dtype
    torch.testing.assert_close(found, latents.transpose(3, 4), rtol=0, atol=0, equal_nan=True)
    assert numbers == NUMBERS
    assert header(path)[0]["dtype_info"] == json.dumps({"latents": str(dtype)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["s2"]


def test_bfloat16_stored_as_float32_comes_back_as_bfloat16(tmp_path: pathlib.Path) -> None:
    latents = torch.randn(1, 2, 1, 2, 2).bfloat16()
    info = json.dumps({"latents": "torch.bfloat16"})
    safetensors.torch.save_file({"latents": latents.float()}, tmp_path / "s2", {"dtype_info": info})
    found, numbers = read_stage2(tmp_path / "s2")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, latents)
    assert numbers == {}


@pytest.mark.parametrize(
    "latents", [torch.zeros(1, 32, 4, 6), torch.zeros(1, 2, 1, 2, 2).double(), torch.zeros(1, 2, 1, 2, 2).long()]
)
def test_other_latents_are_not_written(tmp_path: pathlib.Path, latents: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"s2: expected latents \[B, C, T, H, W\] in float32, bfloat16 or float16"):
        write_stage2(tmp_path / "s2", latents, **NUMBERS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.zeros(1)}, r"tensor 'latents' is missing; expected it, found: x"),
        ({"latents": torch.zeros(32, 3, 4, 6)}, r"'latents': expected shape \[B, C, T, H, W\], found \[32, 3, 4, 6\]"),
        ({"latents": torch.zeros(1, 0, 3, 4, 6)}, r"expected shape \[B, C, T, H, W\], found \[1, 0, 3, 4, 6\]"),
        ({"latents": torch.zeros(1, 2, 1, 2, 2).int()}, r"expected a dtype of F32, BF16, F16, found I32"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path: pathlib.Path, tensors: dict[str, torch.Tensor], message: str) -> None:
    safetensors.torch.save_file(tensors, tmp_path / "s2")
    with pytest.raises(UsageError, match=message):
        read_stage2(tmp_path / "s2")


@pytest.mark.parametrize(
    ("key", "text"),
    [("seed", "4.5"), ("seed", ""), ("guidance_scale", "six"), ("guidance_scale", "nan"), ("seed", "9" * 400)],
)
def test_a_header_entry_that_is_no_number_is_named(tmp_path: pathlib.Path, key: str, text: str) -> None:
    safetensors.torch.save_file({"latents": torch.zeros(1, 2, 1, 2, 2)}, tmp_path / "s2", {key: text})
    with pytest.raises(UsageError, match=rf"s2: metadata {key}: expected a finite (int|float), found"):
        read_stage2(tmp_path / "s2")


def test_truncated_and_missing_files_are_named(tmp_path: pathlib.Path) -> None:
    write_stage2(tmp_path / "s2", torch.zeros(1, 2, 1, 2, 2), **NUMBERS)
    (tmp_path / "cut").write_bytes((tmp_path / "s2").read_bytes()[:-1])
    with pytest.raises(UsageError, match="cut: not a whole safetensors file"):
        read_stage2(tmp_path / "cut")
    with pytest.raises(UsageError, match="nowhere: no such file"):
        read_stage2(tmp_path / "nowhere")
