"""The tiny checkpoint is a real one, the same everywhere, and neither tame nor chaotic."""

from __future__ import annotations

import hashlib
import pathlib

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from parity.errors import UsageError
from parity.models.registry import resolve_model
from parity.models.tiny import ensure_tiny

NAME = "tiny-hunyuan-video-1.5"
# Figures measured on these weights are only comparable while this holds: a change needs a higher make._VERSION.
WEIGHTS_SHA256 = {
    NAME: "f8b7aee4dcf46367092b9afaa03eff360b6400a025e727e8188ae2b2ebf073fc",
    "tiny-cogvideox-1.0": "9ea8331e9e355f12dc693d8ece27fd8eb78da86c19dccbc52998e1bcf6b588e3",
    "tiny-cogvideox-1.5": "919462fd272b3f7f0357b113ef3c128c34e75f77c9424863f91adc62a524783c",
}


def weights_sha256(folder: pathlib.Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in sorted(safetensors.torch.load_file(path).items()):
            digest.update(f"{path.parent.name}.{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", WEIGHTS_SHA256)
def test_weights_are_pinned(name: str) -> None:
    assert weights_sha256(resolve_model(name)) == WEIGHTS_SHA256[name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error: (os error 28)")])
def test_a_cache_that_is_full_is_named(
    error: Exception, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(folder: pathlib.Path) -> None:
        raise error

    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"cannot write the cache folder .*; set PARITY_CACHE to another"):
        ensure_tiny("one", make)
    assert [*(tmp_path / "models").iterdir()] == []


def test_made_anew_it_has_the_same_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve_model(NAME)
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
