"""The text stage equals diffusers' own, and a stage-1 file is either right or refused in words."""

from __future__ import annotations

import json
import pathlib

import diffusers
import pytest
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.models.folder import Case, GenerationSpec
from parity.models.hunyuan_video_15 import BYT5, QWEN, HunyuanVideo15
from parity.models.registry import resolve_model
from parity.models.stage_files import Conditions, read_stage1, write_stage1
from parity.settings import parse

STREAMS = (QWEN, BYT5)
CONFIG = {"text_embed_dim": 6, "text_embed_2_dim": 5}
KEYS = ("encoder_hidden_states", "encoder_attention_mask", "encoder_hidden_states_2", "encoder_attention_mask_2")


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return resolve_model("tiny-hunyuan-video-1.5")


def encode(folder: pathlib.Path, spec: GenerationSpec, *settings: str) -> Conditions:
    case = Case("tiny", folder, {}, spec, ())
    return HunyuanVideo15().conditions(case, parse("torch", settings), None, torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_text_is_the_pipelines_bit_for_bit(folder: pathlib.Path, dtype: str) -> None:
    spec, kind = GenerationSpec.load(folder, {}), getattr(torch, dtype)
    pipeline = diffusers.HunyuanVideo15Pipeline.from_pretrained(folder, dtype=kind)
    pipeline.tokenizer_max_length = spec.tokenizer_max_length
    pipeline.tokenizer_2_max_length = spec.tokenizer_2_max_length
    pipeline.prompt_template_encode_start_idx = spec.crop_start
    found = encode(folder, spec, f"dtype={dtype}")
    for branch, prompt in (("cond", spec.prompt), ("uncond", spec.negative_prompt)):
        with torch.no_grad():
            expected = pipeline.encode_prompt(prompt, device=torch.device("cpu"), dtype=kind)
        assert tuple(found[branch]) == KEYS
        for key, tensor in zip(KEYS, expected, strict=True):
            assert found[branch][key].dtype == tensor.dtype == kind
            assert torch.equal(found[branch][key], tensor), (branch, key)


def test_byt5_dtype_changes_byt5_alone_and_no_quotes_leave_it_empty(folder: pathlib.Path) -> None:
    spec = GenerationSpec.load(folder, {})
    plain, rounded = encode(folder, spec), encode(folder, spec, "text.byt5_dtype=bfloat16")
    changed = [(b, key) for b in plain for key in KEYS if not torch.equal(plain[b][key], rounded[b][key])]
    assert changed == [("cond", "encoder_hidden_states_2")]
    exact, coarse = (found["cond"]["encoder_hidden_states_2"] for found in (plain, rounded))
    assert coarse.dtype == torch.float32
    assert 1e-4 < (coarse - exact).norm() / exact.norm() < 0.1
    assert plain["cond"]["encoder_attention_mask_2"].any()
    assert not plain["uncond"]["encoder_hidden_states_2"].any()
    assert not plain["uncond"]["encoder_attention_mask_2"].any()


# --- stage-1 files ---------------------------------------------------------------------------------------------


def stage1(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A whole stage-1 file: 7 and 4 tokens, widths 6 and 5; ByT5 empty on the negative branch."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for prefix, tokens, tokens_2 in (("", 5, 3), ("negative_", 2, 0)):
        tensors[f"{prefix}prompt_embeds"] = torch.randn(1, 7, 6, generator=generator).to(dtype)
        tensors[f"{prefix}prompt_embeds_mask"] = (torch.arange(7) < tokens)[None].to(dtype)
        tensors[f"{prefix}prompt_embeds_2"] = torch.randn(1, 4, 5, generator=generator).to(dtype)
        tensors[f"{prefix}prompt_embeds_mask_2"] = (torch.arange(4) < tokens_2)[None].to(dtype)
    return tensors


def write(path: pathlib.Path, tensors: dict[str, torch.Tensor], **metadata: str) -> pathlib.Path:
    safetensors.torch.save_file(tensors, path, metadata or None)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stage1_has_the_ports_names_and_comes_back_bit_for_bit(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    tensors = stage1(dtype)
    found = read_stage1(write(tmp_path / "s1", tensors), STREAMS, CONFIG)
    assert torch.equal(found["cond"]["encoder_hidden_states"], tensors["prompt_embeds"])
    assert torch.equal(found["uncond"]["encoder_attention_mask_2"], tensors["negative_prompt_embeds_mask_2"])
    write_stage1(tmp_path / "again", STREAMS, found)
    again = safetensors.torch.load_file(tmp_path / "again")
    assert again.keys() == tensors.keys()
    assert all(again[name].dtype == dtype and torch.equal(again[name], x) for name, x in tensors.items())
    with pytest.raises(UsageError, match=r"missing.s1: cannot be written: No such file"):
        write_stage1(tmp_path / "missing" / "s1", STREAMS, found)


def test_bfloat16_stored_as_float32_comes_back_as_bfloat16(tmp_path: pathlib.Path) -> None:
    meant = stage1(torch.bfloat16)
    stored = {name: tensor.float() for name, tensor in meant.items()}
    info = json.dumps({"prompt_embeds": "torch.bfloat16", "prompt_embeds_mask": "torch.bfloat16"})
    found = read_stage1(write(tmp_path / "s1", stored, dtype_info=info), STREAMS, CONFIG)
    assert torch.equal(found["cond"]["encoder_hidden_states"], meant["prompt_embeds"])
    assert found["cond"]["encoder_attention_mask"].dtype == torch.bfloat16
    assert found["uncond"]["encoder_hidden_states"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "tensor", "word"),
    [
        ("negative_prompt_embeds_mask_2", None, "is missing"),
        ("prompt_embeds", torch.zeros(1, 7, 9), r"expected shape \[1, L, 6\], found \[1, 7, 9\]"),
        ("prompt_embeds_mask", torch.ones(1, 8), r"expected shape \[1, 7\], found \[1, 8\]"),
        ("prompt_embeds", torch.zeros(1, 7, 6).double(), "found F64"),
        ("prompt_embeds", torch.full((1, 7, 6), torch.nan), "found 42 NaN or Inf of 42"),
        ("prompt_embeds_mask", torch.full((1, 7), 0.5), "expected a mask of 0 and 1"),
    ],
)
def test_misfit_tensor_is_refused(tmp_path: pathlib.Path, name: str, tensor: torch.Tensor | None, word: str) -> None:
    tensors = {n: x for n, x in {**stage1(), name: tensor}.items() if x is not None}
    with pytest.raises(UsageError, match=rf"s1: tensor '{name}'.*{word}"):
        read_stage1(write(tmp_path / "s1", tensors), STREAMS, CONFIG)


def test_truncated_and_foreign_files_are_refused(tmp_path: pathlib.Path) -> None:
    whole = write(tmp_path / "whole", stage1()).read_bytes()
    header = len(whole) - sum(tensor.nbytes for tensor in stage1().values())
    bomb = json.dumps({"prompt_embeds": {"dtype": "F32", "shape": [1, 1 << 40, 6], "data_offsets": [0, 24 << 40]}})
    contents = [b"", whole[:5], whole[: header // 2], whole[:-3], whole + b"\0", b"this is no safetensors file"]
    contents += [(1 << 62).to_bytes(8, "little") + whole, len(bomb).to_bytes(8, "little") + bomb.encode() + b"\0" * 24]
    for content in contents:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(UsageError, match="file: not a whole safetensors file"):
            read_stage1(tmp_path / "file", STREAMS, CONFIG)
    for missing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match="no such file"):
            read_stage1(missing, STREAMS, CONFIG)
