"""Families and built-in models, and what a name that is none of them most likely was meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.models import registry
from parity.models.registry import family_of, resolve_model


def test_inputs_are_refused_by_a_family_that_makes_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "CogVideoXTransformer3DModel"}')
    with pytest.raises(UsageError, match="is a CogVideoX, which makes its own"):
        family_of(tmp_path, tmp_path / "inputs.safetensors")


@pytest.mark.parametrize("name", ["./checkpoints/tiny-hunyan", "checkpoints/a/b", "{tmp}/checkpoints/tiny-hunyan"])
def test_a_mistyped_path_is_told_as_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never as a name on the hub, which is not asked."""
    (tmp_path / "checkpoints" / "tiny-hunyuan").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_download", lambda *asked: pytest.fail(f"the hub was asked for {asked}"))
    with pytest.raises(UsageError, match="there is no such folder") as told:
        resolve_model(name.format(tmp=tmp_path))
    assert ("did you mean" in str(told.value)) == ("hunyan" in name)
    assert "checkpoints" in str(told.value).rpartition(";")[2]


def test_a_model_of_the_hub_is_that_of_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def client(repository: str, revision: str | None) -> str:
        found = tmp_path / repository.replace("/", "-") / str(revision)
        (found / "transformer").mkdir(parents=True)
        (found / "transformer" / "config.json").write_text("{}")
        return str(found)

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "snapshot_download", client)
    for name, revision in (("owner/name", "None"), ("owner/name@feature/one", "feature/one")):
        assert resolve_model(name) == tmp_path / "owner-name" / revision


def test_a_mistyped_built_in_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'tiny-hunyuan-video-1"):
        resolve_model("tiny-hunyuan")
