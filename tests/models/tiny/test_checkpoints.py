"""The tiny checkpoint is a real one, the same everywhere, and neither tame nor chaotic."""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest
import safetensors.torch
import torch

from parity.models.registry import resolve_model

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
