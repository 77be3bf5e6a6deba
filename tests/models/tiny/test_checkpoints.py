"""The tiny checkpoint is a real one, the same everywhere, and neither tame nor chaotic."""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
import sys
from types import ModuleType

import diffusers
import pytest
import safetensors.torch
import torch

from parity.errors import UsageError
from parity.models.registry import resolve_model
from parity.models.spec import GenerationSpec
from parity.models.tiny import make
from parity.models.tiny.weights import Rule, fill

NAME = "tiny-hunyuan-video-1.5"
# Figures measured on these weights are only comparable while this holds: a change needs a higher make._VERSION.
WEIGHTS_SHA256 = "f8b7aee4dcf46367092b9afaa03eff360b6400a025e727e8188ae2b2ebf073fc"


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return resolve_model(NAME)


@pytest.fixture(scope="module")
def tameness() -> ModuleType:
    path = pathlib.Path(__file__).parents[3] / "benchmarks" / "tameness.py"
    spec = importlib.util.spec_from_file_location("tameness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tameness"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def weights_sha256(folder: pathlib.Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in sorted(safetensors.torch.load_file(path).items()):
            digest.update(f"{path.parent.name}.{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_weights_are_pinned(folder: pathlib.Path) -> None:
    assert weights_sha256(folder) == WEIGHTS_SHA256


def test_made_anew_it_has_the_same_bytes_and_leaves_the_random_state(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    made = resolve_model(NAME)
    assert torch.equal(torch.get_rng_state(), state)
    assert made.parent == tmp_path / "models"
    assert [entry.name for entry in made.parent.iterdir()] == [made.name]
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    for path in files:
        assert (folder / path).read_bytes() == (made / path).read_bytes(), path


@pytest.mark.slow
def test_pipeline_loads_it_and_generates_frames(folder: pathlib.Path) -> None:
    spec = GenerationSpec.load(folder)
    pipeline = diffusers.HunyuanVideo15Pipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline.scheduler.config.shift == 7.0
    assert pipeline.guider.config.guidance_scale == 6.0
    pipeline.tokenizer_max_length = spec.tokenizer_max_length
    pipeline.tokenizer_2_max_length = spec.tokenizer_2_max_length
    pipeline.vision_num_semantic_tokens = spec.vision_num_semantic_tokens
    pipeline.prompt_template_encode_start_idx = spec.crop_start
    frames = pipeline(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        height=spec.height,
        width=spec.width,
        num_frames=spec.num_frames,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).frames
    assert frames.shape == (1, 9, 3, 64, 96)
    assert frames.isfinite().all()
    assert frames.std() > 0.05  # a picture, neither grey nor cut off at black and white
    assert ((frames > 0) & (frames < 1)).float().mean() > 0.95


@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_weights_are_neither_tame_nor_chaotic(folder: pathlib.Path, tameness: ModuleType, branch: str) -> None:
    found = tameness.measure(folder, branch)
    assert [block.name for block in found.blocks] == [
        *(f"refiner_blocks.{index}" for index in range(2)),
        *(f"transformer_blocks.{index}" for index in range(4)),
    ]
    for block in found.blocks:
        assert all(0.3 < rms < 10 for rms in block.rms), block
        assert all(0.2 < gain < 2 for gain in block.gain), block
        assert 0.3 < block.entropy < 0.9, block
        # The refiner has 6 tokens to attend to on uncond, so its largest probability cannot be many times the mean.
        assert block.peak > (2 if block.name.startswith("refiner") else 8), block
    assert 0.5 < found.noise_pred_rms < 2
    assert found.without_mask > 0.05
    assert found.without_refiner_mask > 0.01
    assert found.growth < 5
    assert found.growth_1e7 < 3e-6
    assert found.float64 < 3e-6


def test_cache_that_cannot_be_written_names_the_variable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PARITY_CACHE", str(blocked))
    with pytest.raises(UsageError, match=r"cannot write the cache folder .*; set PARITY_CACHE"):
        resolve_model(NAME)


def test_failure_leaves_nothing_behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: pathlib.Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("killed")

    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="killed"):
        make.ensure_tiny(NAME, fail)
    assert list((tmp_path / "models").iterdir()) == []


def test_every_parameter_needs_a_rule() -> None:
    with pytest.raises(LookupError, match=r"no rule says how to draw part\.bias"):
        fill(torch.nn.Linear(3, 2), "part", [Rule("weight", std=1.0)])


def test_fill_draws_the_stated_mean_and_deviation() -> None:
    layer = torch.nn.Linear(400, 300)
    fill(layer, "part", [Rule("weight", std=2.0, mean=1.0, fan_in=True), Rule("bias", std=0.5)])
    assert layer.weight.mean().item() == pytest.approx(1.0, abs=0.01)
    assert layer.weight.std().item() == pytest.approx(2.0 / 20, rel=0.02)
    assert layer.bias.std().item() == pytest.approx(0.5, rel=0.1)
