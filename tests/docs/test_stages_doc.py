"""Every command of docs/stages.md, run in order in one folder, ends as the document says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.golden import Golden
from tests.docs.test_readme import ROOT, commands

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

COMMANDS = commands((ROOT / "docs" / "stages.md").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


def parity(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Runs a command, which must end with 0; what it prints with `--json`, where it takes that."""
    monkeypatch.chdir(folder)
    asked = [] if "record" in command.split() else ["--json"]
    monkeypatch.setattr("sys.argv", [*shlex.split(command), *asked])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    assert ended.value.code in (None, 0), out.err
    document: dict[str, Any] = json.loads(out.out) if asked else {}
    return document


def test_the_document_shows_two_stories() -> None:
    assert [c.split()[1] for c in COMMANDS] == ["run", "run", "run", "record", "record", "diff"]


def test_the_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole, file, latents = (parity(c, folder, monkeypatch, capsys) for c in COMMANDS[:3])
    assert [s["stage"] for s in whole["stages"]] == ["text", "vae"]
    assert {s["stage"] for s in whole["sites"]} == {"text", "transformer", "vae"}
    assert "embeddings of the loops: each its own encoders'" in whole["notes"]
    own = next(c for c in whole["preflight"] if c["check"] == "prompt embeddings")
    assert "judged in the text stage" in own["detail"]
    text, vae = whole["stages"]
    assert 0 < text["by_itself"]["rel_l2"] < 1e-5
    assert 0 < vae["in_chain"]["rel_l2"] < 1e-4
    # The file holds what the candidate's encoders made, so that it comes to the same.
    assert file["stages"][0]["by_itself"] == text["by_itself"]
    assert [s["stage"] for s in latents["stages"]] == ["vae"]
    assert len(latents["frames"]) == 9


def test_the_goldens(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    *_, found = (parity(c, folder, monkeypatch, capsys) for c in COMMANDS[3:])
    assert (found["verdict"], [s["stage"] for s in found["stages"]]) == ("pass", ["text", "vae"])
    assert Golden.open(folder / "reference").steps == (-1, 0)
