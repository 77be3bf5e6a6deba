"""`parity run --out DIR --overwrite`: what is replaced, and what never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parity.commands.parts.keep import PARTS, KeepRun, _clear
from parity.errors import UsageError
from parity.runs.request import Request
from parity.settings import parse

REQUEST = Request("tiny", parse("torch", []), parse("torchax", []))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with every part of a kept run."""
    run = tmp_path / "run"
    run.mkdir()
    for name in (*PARTS, "reference_latents.safetensors", "candidate_embeddings.safetensors", "report.html"):
        if "." in name:
            (run / name).write_text("{}")
        else:
            (run / name).mkdir()
            (run / name / "0000.safetensors").touch()
    return run


def test_a_kept_run_is_replaced_and_only_when_the_new_one_begins(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(kept.iterdir())
    with pytest.raises(UsageError, match="is not an empty folder; name another, or replace a run with --overwrite"):
        KeepRun(kept, REQUEST)
    KeepRun(kept, REQUEST, overwrite=True)
    assert sorted(kept.iterdir()) == before
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda folder: 1 / 0)  # stands for a kill
        with pytest.raises(ZeroDivisionError):
            _clear(kept)
    assert not (kept / "result.json").exists()
    (kept / ".result.json.x1y2").write_text("{")  # of a write that was killed
    KeepRun(kept, REQUEST, overwrite=True)
    _clear(kept)
    assert list(kept.iterdir()) == []


def _linked(run: Path) -> None:
    (run / "frames" / "0000.safetensors").unlink()
    (run / "frames").rmdir()
    (run / "frames").symlink_to(run.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: (run / "request.json").unlink(), "is no kept run"),
        (lambda run: (run / "chapter.tex").touch(), r"chapter.tex' is no part of a kept run"),
        (_linked, r"frames' is no part of a kept run"),
    ],
)
def test_what_is_no_kept_run_is_never_removed(kept: Path, change: Callable[[Path], None], said: str) -> None:
    change(kept)
    with pytest.raises(UsageError, match=said):
        KeepRun(kept, REQUEST, overwrite=True)


def test_nor_is_a_link_or_what_the_new_run_is_made_from(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(UsageError, match="is no kept run"):
        KeepRun(tmp_path / "link", REQUEST, overwrite=True)
    with pytest.raises(UsageError, match="is of the run that it would replace"):
        KeepRun(kept, replace(REQUEST, stage1=kept / "candidate_embeddings.safetensors"), overwrite=True)
