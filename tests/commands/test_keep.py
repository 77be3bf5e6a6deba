"""`parity run --out DIR --overwrite`: what is replaced, and what never is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity.commands.parts.keep import PARTS, KeepRun, _clear
from parity.errors import UsageError
from parity.runs.request import Request
from parity.settings import parse

REQUEST = Request("tiny", parse("torch", []), parse("torchax", []))


def kept(folder: Path) -> Path:
    """A folder with every part of a kept run."""
    folder.mkdir()
    for name in PARTS:
        if "." in name:
            (folder / name).write_text("{}")
        else:
            (folder / name).mkdir()
            (folder / name / "0000.safetensors").write_text("")
    for name in ("reference_latents.safetensors", "candidate_embeddings.safetensors", "report.html"):
        (folder / name).write_text("")
    return folder


def test_a_kept_run_is_replaced_and_only_when_the_new_one_begins(tmp_path: Path) -> None:
    run = kept(tmp_path / "run")
    before = sorted(run.iterdir())
    KeepRun(run, REQUEST, overwrite=True)
    assert sorted(run.iterdir()) == before
    _clear(run)
    assert list(run.iterdir()) == []


def test_a_run_that_is_half_removed_is_no_run_and_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = kept(tmp_path / "run")
    monkeypatch.setattr("shutil.rmtree", lambda folder: 1 / 0)  # stands for a kill
    with pytest.raises(ZeroDivisionError):
        _clear(run)
    assert not (run / "result.json").exists()
    (run / ".result.json.x1y2").write_text("{")  # of a write that was killed
    KeepRun(run, REQUEST, overwrite=True)


def test_without_it_a_folder_that_holds_anything_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an empty folder; name another, or replace a run with --overwrite"):
        KeepRun(kept(tmp_path / "run"), REQUEST)


def test_what_is_no_kept_run_is_never_removed(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("")
    with pytest.raises(UsageError, match="is no kept run"):
        KeepRun(folder, REQUEST, overwrite=True)
    run = kept(tmp_path / "run")
    (run / "chapter.tex").write_text("")
    with pytest.raises(UsageError, match=r"chapter.tex' is no part of a kept run"):
        KeepRun(run, REQUEST, overwrite=True)
    (run / "chapter.tex").unlink()
    (run / "frames" / "0000.safetensors").unlink()
    (run / "frames").rmdir()
    (run / "frames").symlink_to(folder)
    with pytest.raises(UsageError, match=r"frames' is no part of a kept run"):
        KeepRun(run, REQUEST, overwrite=True)
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(UsageError, match="is no kept run"):
        KeepRun(tmp_path / "link", REQUEST, overwrite=True)


def test_what_the_new_run_is_made_from_is_not_removed(tmp_path: Path) -> None:
    run = kept(tmp_path / "run")
    given = replace(REQUEST, stage1=run / "candidate_embeddings.safetensors")
    with pytest.raises(UsageError, match="is of the run that it would replace"):
        KeepRun(run, given, overwrite=True)
