"""Families and built-in models are found by their folders."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import pytest

import parity.models
from parity.errors import UsageError
from parity.models import registry
from parity.models.registry import (
    families,
    family_of,
    resolve_model,
    tiny_names,
)

FOLDERS = sorted(path.parent.name for path in Path(*parity.models.__path__).glob("*/family.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_with_a_family_registers_it(folder: str) -> None:
    (family,) = (f for f in families() if f.family.startswith(f"parity.models.{folder}.family:"))
    assert callable(pkgutil.resolve_name(family.family))
    assert all(callable(pkgutil.resolve_name(make)) for make in family.tiny.values())


def test_a_folder_is_all_that_a_family_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    face = """
from parity.models.registry import Registered, register
register(Registered(title="LTX", transformer="LTXVideoTransformer3DModel", family="parity.models.ltx.family:LTX.of"))
"""
    family = """
from parity.models.family import Family
class LTX(Family):
    title = "LTX"
    @classmethod
    def of(cls, folder, inputs):
        return cls()
"""
    for name, text in (("__init__.py", face), ("family.py", family)):
        path = tmp_path / "ltx" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "config.json").write_text('{"_class_name": "LTXVideoTransformer3DModel"}')
    monkeypatch.setattr(parity.models, "__path__", [*parity.models.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    families.cache_clear()
    try:
        assert family_of(tmp_path).title == "LTX"
        with pytest.raises(UsageError, match="is a LTX, which makes its own"):
            family_of(tmp_path, tmp_path / "inputs.safetensors")
    finally:
        families.cache_clear()
        for name in [name for name in sys.modules if name.startswith("parity.models.ltx")]:
            del sys.modules[name]


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
