"""The tiny checkpoint is a real one, the same everywhere, and neither tame nor chaotic."""

from __future__ import annotations

import hashlib
import pathlib

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
