"""Families and built-in models, and what a name that is none of them most likely was meant to be."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.models import registry
from parity.models.registry import ANY, DEFAULT_MODEL, FAMILIES, family_of, resolve_model, tiny_names


def test_every_family_and_tiny_model_that_is_listed_is_there() -> None:
    for family in FAMILIES:
        assert callable(pkgutil.resolve_name(family.family))
        assert all(callable(pkgutil.resolve_name(make)) for make in family.tiny.values())
    assert [family.transformer for family in FAMILIES].count(ANY) == 1


def test_inputs_are_refused_by_a_family_that_makes_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "CogVideoXTransformer3DModel"}')
    with pytest.raises(UsageError, match="is a CogVideoX, which makes its own"):
        family_of(tmp_path, tmp_path / "inputs.safetensors")


def test_the_default_model_comes_first() -> None:
    assert tiny_names()[0] == DEFAULT_MODEL


def test_an_unknown_name_lists_the_built_in_models() -> None:
    with pytest.raises(UsageError, match=rf"neither a built-in model \({', '.join(tiny_names())}\), nor"):
        resolve_model("tiny-x")


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


def test_a_branch_with_a_slash_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(registry, "_download", lambda *name: asked.append(name) or Path())
    resolve_model("owner/name@feature/one")
    assert asked == [("owner/name", "feature/one")]


def test_a_mistyped_built_in_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'tiny-hunyuan-video-1"):
        resolve_model("tiny-hunyuan")
