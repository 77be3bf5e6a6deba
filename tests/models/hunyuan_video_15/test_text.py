"""The text stage equals diffusers' own, and a stage-1 file is either right or refused in words."""

from __future__ import annotations

import json
import pathlib
import shutil

import diffusers
import pytest
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.models.hunyuan_video_15.family import HunyuanVideo15
from parity.models.hunyuan_video_15.text import BYT5, QWEN
from parity.models.registry import resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.stage1 import Conditions, read_stage1, write_stage1
from parity.settings import parse

STREAMS = (QWEN, BYT5)
CONFIG = {"text_embed_dim": 6, "text_embed_2_dim": 5}
KEYS = (
    "encoder_hidden_states",
    "encoder_attention_mask",
    "encoder_hidden_states_2",
    "encoder_attention_mask_2",
)


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return resolve_model("tiny-hunyuan-video-1.5")


@pytest.fixture(scope="module")
def spec(folder: pathlib.Path) -> GenerationSpec:
    return GenerationSpec.load(folder)


def encode(
    folder: pathlib.Path, spec: GenerationSpec, dtype: torch.dtype, byt5_dtype: torch.dtype | None = None
) -> Conditions:
    given = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
    byt5 = [f"text.byt5_dtype={given[byt5_dtype]}"] if byt5_dtype else []
    settings = parse("torch", [f"dtype={given[dtype]}", *byt5])
    return HunyuanVideo15().conditions(Case("tiny", folder, {}, spec, ()), settings, None, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_the_pipelines_encode_prompt_bit_for_bit(
    folder: pathlib.Path, spec: GenerationSpec, dtype: torch.dtype
) -> None:
    pipeline = diffusers.HunyuanVideo15Pipeline.from_pretrained(folder, dtype=dtype)
    pipeline.tokenizer_max_length = spec.tokenizer_max_length
    pipeline.tokenizer_2_max_length = spec.tokenizer_2_max_length
    pipeline.prompt_template_encode_start_idx = spec.crop_start
    found = encode(folder, spec, dtype)
    for branch, prompt in (("cond", spec.prompt), ("uncond", spec.negative_prompt)):
        with torch.no_grad():
            expected = pipeline.encode_prompt(prompt, device=torch.device("cpu"), dtype=dtype)
        assert tuple(found[branch]) == KEYS
        for key, tensor in zip(KEYS, expected, strict=True):
            assert found[branch][key].dtype == tensor.dtype == dtype
            assert torch.equal(found[branch][key], tensor), (branch, key)
            assert not found[branch][key].requires_grad


def test_byt5_dtype_changes_byt5_alone(folder: pathlib.Path, spec: GenerationSpec) -> None:
    plain = encode(folder, spec, torch.float32)
    rounded = encode(folder, spec, torch.float32, torch.bfloat16)
    changed = [
        (branch, key) for branch in plain for key in KEYS if not torch.equal(plain[branch][key], rounded[branch][key])
    ]
    assert changed == [("cond", "encoder_hidden_states_2")]
    exact, coarse = (found["cond"]["encoder_hidden_states_2"] for found in (plain, rounded))
    assert coarse.dtype == torch.float32
    assert 1e-4 < (coarse - exact).norm() / exact.norm() < 0.1


def test_a_prompt_without_quotes_leaves_byt5_empty(folder: pathlib.Path, spec: GenerationSpec) -> None:
    found = encode(folder, spec, torch.float32)
    assert not found["uncond"]["encoder_hidden_states_2"].any()
    assert not found["uncond"]["encoder_attention_mask_2"].any()
    assert found["cond"]["encoder_attention_mask_2"].any()


def test_a_folder_without_an_encoder_is_named(
    folder: pathlib.Path, spec: GenerationSpec, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(UsageError, match=r"expected a subfolder 'tokenizer' with a Qwen2Tokenizer, found none"):
        encode(tmp_path, spec, torch.float32)
    for part in ("tokenizer", "tokenizer_2"):
        shutil.copytree(folder / part, tmp_path / part)
    for part in ("text_encoder", "text_encoder_2"):
        (tmp_path / part).mkdir()
        shutil.copy(folder / part / "config.json", tmp_path / part)
    with pytest.raises(UsageError, match=r"text_encoder: cannot be loaded as Qwen2_5_VLTextModel"):
        encode(tmp_path, spec, torch.float32)


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


def test_stage1_round_trip_keeps_every_bit(folder: pathlib.Path, spec: GenerationSpec, tmp_path: pathlib.Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        conditions = encode(folder, spec, dtype)
        path = tmp_path / "stage1_embeddings.safetensors"
        write_stage1(path, STREAMS, conditions)
        found = read_stage1(path, STREAMS, {"text_embed_dim": 64, "text_embed_2_dim": 48})
        assert found.keys() == conditions.keys()
        for branch, values in conditions.items():
            assert found[branch].keys() == values.keys()
            for key, tensor in values.items():
                assert found[branch][key].dtype == dtype
                assert torch.equal(found[branch][key], tensor)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]


def test_stage1_names_are_the_ports(tmp_path: pathlib.Path) -> None:
    tensors = stage1()
    found = read_stage1(write(tmp_path / "s1", tensors), STREAMS, CONFIG)
    assert torch.equal(found["cond"]["encoder_hidden_states"], tensors["prompt_embeds"])
    assert torch.equal(found["cond"]["encoder_attention_mask_2"], tensors["prompt_embeds_mask_2"])
    assert torch.equal(found["uncond"]["encoder_attention_mask"], tensors["negative_prompt_embeds_mask"])
    assert torch.equal(found["uncond"]["encoder_hidden_states_2"], tensors["negative_prompt_embeds_2"])
    write_stage1(tmp_path / "again", STREAMS, found)
    assert safetensors.torch.load_file(tmp_path / "again").keys() == tensors.keys()


def test_bfloat16_stored_as_float32_comes_back_as_bfloat16(tmp_path: pathlib.Path) -> None:
    meant = stage1(torch.bfloat16)
    stored = {name: tensor.float() for name, tensor in meant.items()}
    info = json.dumps({"prompt_embeds": "torch.bfloat16", "prompt_embeds_mask": "torch.bfloat16"})
    found = read_stage1(write(tmp_path / "s1", stored, dtype_info=info), STREAMS, CONFIG)
    assert found["cond"]["encoder_hidden_states"].dtype == torch.bfloat16
    assert torch.equal(found["cond"]["encoder_hidden_states"], meant["prompt_embeds"])
    assert found["cond"]["encoder_attention_mask"].dtype == torch.bfloat16
    assert found["uncond"]["encoder_hidden_states"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_masks_may_be_integers(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) if "mask" in name else tensor for name, tensor in stage1().items()}
    found = read_stage1(write(tmp_path / "s1", tensors), STREAMS, CONFIG)
    assert found["cond"]["encoder_attention_mask"].dtype == dtype
    assert found["cond"]["encoder_attention_mask"].sum() == 5


@pytest.mark.parametrize("name", sorted(stage1()))
def test_each_missing_tensor_is_named(tmp_path: pathlib.Path, name: str) -> None:
    tensors = stage1()
    del tensors[name]
    with pytest.raises(UsageError, match=rf"s1: tensor '{name}' is missing; expected it, found: negative_prompt_"):
        read_stage1(write(tmp_path / "s1", tensors), STREAMS, CONFIG)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("prompt_embeds", torch.zeros(1, 7, 9), r"expected shape \[1, L, 6\], found \[1, 7, 9\]"),
        ("prompt_embeds", torch.zeros(2, 7, 6), r"expected shape \[1, L, 6\], found \[2, 7, 6\]"),
        ("prompt_embeds", torch.zeros(7, 6), r"expected shape \[1, L, 6\], found \[7, 6\]"),
        ("prompt_embeds", torch.zeros(1, 0, 6), r"expected shape \[1, L, 6\], found \[1, 0, 6\]"),
        ("prompt_embeds_mask", torch.ones(1, 8), r"expected shape \[1, 7\], found \[1, 8\]"),
        ("prompt_embeds_2", torch.zeros(1, 4, 6), r"expected shape \[1, L, 5\], found \[1, 4, 6\]"),
        ("negative_prompt_embeds", torch.zeros(1, 3, 6), r"expected shape \[1, 7, 6\], found \[1, 3, 6\]"),
        ("negative_prompt_embeds_mask_2", torch.ones(4), r"expected shape \[1, 4\], found \[4\]"),
        ("prompt_embeds", torch.zeros(1, 7, 6).double(), r"expected a dtype of F32, BF16, F16, found F64"),
        ("prompt_embeds", torch.zeros(1, 7, 6).int(), r"expected a dtype of F32, BF16, F16, found I32"),
        ("prompt_embeds_mask", torch.ones(1, 7).double(), r"expected a dtype of BOOL, .*, found F64"),
        ("prompt_embeds", torch.full((1, 7, 6), torch.nan), r"expected finite values, found 42 NaN or Inf of 42"),
        ("negative_prompt_embeds_2", torch.full((1, 4, 5), torch.inf), r"expected finite values, found 20 NaN"),
        ("prompt_embeds_mask_2", torch.full((1, 4), torch.nan), r"expected finite values, found 4 NaN or Inf of 4"),
        ("prompt_embeds_mask", torch.full((1, 7), 0.5), r"expected a mask of 0 and 1, found 0\.5"),
        ("prompt_embeds_mask", torch.zeros(1, 7), r"expected at least one token, found a mask of zeros"),
    ],
)
def test_each_wrong_tensor_is_named_with_what_was_expected(
    tmp_path: pathlib.Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    path = write(tmp_path / "s1", {**stage1(), name: tensor})
    with pytest.raises(UsageError, match=rf"s1: tensor '{name}': {message}"):
        read_stage1(path, STREAMS, CONFIG)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("{", r"metadata dtype_info: expected a JSON object from tensor to dtype, found '\{'"),
        ('["torch.bfloat16"]', r"metadata dtype_info: expected a JSON object"),
        ('{"prompt_embeds": 16}', r"metadata dtype_info: expected a JSON object"),
        ('{"prompt_embeds": "torch.int8"}', r"'prompt_embeds': dtype_info says 'torch.int8', but it is stored as F32"),
    ],
)
def test_a_bad_dtype_info_is_named(tmp_path: pathlib.Path, info: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_stage1(write(tmp_path / "s1", stage1(), dtype_info=info), STREAMS, CONFIG)


def test_truncated_and_foreign_files_are_named(tmp_path: pathlib.Path) -> None:
    whole = write(tmp_path / "whole", stage1()).read_bytes()
    header = len(whole) - sum(tensor.nbytes for tensor in stage1().values())
    contents = {
        "empty": b"",
        "short": whole[:5],
        "in_header": whole[: header // 2],
        "in_data": whole[:-3],
        "longer": whole + b"\0",
        "huge_header": (1 << 62).to_bytes(8, "little") + whole[8:],
        "text": b"this is no safetensors file, it is a line of text",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name}: not a whole safetensors file"):
            read_stage1(path, STREAMS, CONFIG)
    with pytest.raises(UsageError, match="nowhere: no such file"):
        read_stage1(tmp_path / "nowhere", STREAMS, CONFIG)
    with pytest.raises(UsageError, match="no such file"):
        read_stage1(tmp_path, STREAMS, CONFIG)


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: pathlib.Path) -> None:
    header = json.dumps({"prompt_embeds": {"dtype": "F32", "shape": [1, 1 << 40, 6], "data_offsets": [0, 24 << 40]}})
    path = tmp_path / "bomb"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * 24)
    with pytest.raises(UsageError, match="bomb: not a whole safetensors file"):
        read_stage1(path, STREAMS, CONFIG)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    conditions = read_stage1(write(tmp_path / "s1", stage1()), STREAMS, CONFIG)
    with pytest.raises(UsageError, match=r"missing.s1: cannot be written: No such file"):
        write_stage1(tmp_path / "missing" / "s1", STREAMS, conditions)
