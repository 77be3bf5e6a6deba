"""The story of docs/explain.md is run as it stands, and ends as it says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from tests.docs.test_readme import ROOT, commands

pytestmark = pytest.mark.slow

STORY = commands((ROOT / "docs" / "explain.md").read_text())


def parity(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[Any, Any]:
    monkeypatch.setattr("sys.argv", [*shlex.split(command), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return ended.value.code, json.loads(out.out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("story")


def test_the_document_tells_three_runs() -> None:
    assert [c.split()[1] for c in STORY] == ["run", "explain"] * 3


@pytest.mark.parametrize("chapter", range(3))
def test_the_story(
    chapter: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    ran, _ = parity(STORY[2 * chapter], monkeypatch, capsys)
    explained, document = parity(STORY[2 * chapter + 1], monkeypatch, capsys)
    assert ran == explained == (0 if chapter == 2 else 1)
    causes = document["causes"]
    if chapter == 2:
        assert causes == []
        assert any("nothing to explain" in note for note in document["notes"])
        return
    first, *rest = causes
    assert (first["setting"], first["reference"]) == ("attention.mask", "exact")
    assert first["share"] == pytest.approx(1.0, abs=0.02)
    assert {w["kind"] for w in first["witnesses"]} == {"counterfactual", "signature"}
    others = [c for c in rest if c["setting"]]
    assert {c["setting"] for c in others} == (
        {"text.byt5_dtype", "vision_states", "text.reorder"} if chapter == 0 else {"text.byt5_dtype"}
    )
    assert all(c["share"] == 0 and "harmless" in c["cause"] for c in others)
    counted = [c["cause"] for c in rest if "phantom keys" in c["cause"]]
    if chapter == 1:
        assert [said.split(" phantom")[0] for said in counted] == ["60.00", "106.00"]
        assert all("padded text tokens" in said for said in counted)
    else:
        assert counted == []
