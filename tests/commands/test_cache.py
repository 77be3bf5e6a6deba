"""`parity cache`: what is kept, and forgetting it; nothing but what parity keeps is ever deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.commands.cache import cache
from parity.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path / "cache"))
    for name in ("jax", "models", "users"):
        (tmp_path / "cache" / name / "below").mkdir(parents=True)
        (tmp_path / "cache" / name / "below" / "file").write_bytes(bytes(1000))
    return tmp_path / "cache"


def test_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(folder)
    assert {name: size for name, size in found["bytes"].items() if size} == {"jax": 1000, "models": 1000}


@pytest.mark.parametrize(("part", "left"), [("jax", {"models", "users"}), ("all", {"users"})])
def test_clearing(folder: Path, part: str, left: set[str] | None) -> None:
    cache(clear=part)
    assert {path.name for path in folder.iterdir()} == (left or {"jax", "models", "users"})


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (folder / "compiled").symlink_to(tmp_path / "precious")
    cache(clear="all")
    assert (tmp_path / "precious" / "file").exists()
    assert not (folder / "compiled").is_symlink()


@pytest.mark.parametrize("part", ["users", "..", ""])
def test_what_is_no_part(folder: Path, part: str) -> None:
    with pytest.raises(UsageError, match="--clear takes models, jax"):
        cache(clear=part)
    assert (folder / "users").exists()
