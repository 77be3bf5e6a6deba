"""What a run keeps: in a folder of its own, or as the last one, which `parity explain` and `parity report` take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torchax")

from parity.cache import cache_dir
from parity.commands.keep import KeepLast, KeepRun, last_run
from parity.errors import UsageError
from parity.records import StepRecords
from parity.runs.request import Request
from parity.settings import parse
from tests.support.cli import cli
from tests.support.models import NANO, checkpoint
from tests.support.results import RESULT

REQUEST = Request("tiny", parse("torch", []), parse("torchax", []))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without runs; what is compiled is that of all tests."""
    own = tmp_path / "cache"
    own.mkdir()
    for name in ("models", "jax", "known_faults", "nano"):
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(cache_dir() / name)
    monkeypatch.setenv("PARITY_CACHE", str(own))
    return own


def test_a_folder_with_anything_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not an empty folder; name another, or delete it"):
        KeepRun(tmp_path, REQUEST)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_last_run_is_explained_and_reported_without_a_name(cache: Path, tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    for command in ("explain", "report"):
        assert "no run is kept yet" in cli(command, cwd=here, code=2).said
    run = ("run", "--model", checkpoint(NANO), "--candidate")
    cli(*run, "rope=cached", cwd=here, code=0)
    ended = cli(*run, "attention.mask=zero_kv", cwd=here, code=1)
    assert "parity explain   # why" in ended.out
    assert [folder.name for folder in (cache / "runs").iterdir() if folder.is_dir()] == ["last"]
    assert "-c attention.mask=exact   # passes, if this is the cause" in cli("explain", cwd=here, code=1).out
    assert (last_run() / "explain.json").is_file()
    assert cli("report", cwd=here, code=0).out == "parity-report.html\n"
    assert "attention.mask" in (here / "parity-report.html").read_text()


def test_a_run_that_cannot_be_kept_has_its_verdict(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cache / "runs").write_text("in the way")
    kept = KeepLast(REQUEST)
    kept.result(RESULT)
    assert "this run is not kept for `parity explain`" in capsys.readouterr().err
    (cache / "runs").unlink()
    kept = KeepLast(REQUEST)
    shutil.rmtree(cache / "runs")
    (cache / "runs").write_text("in the way")
    kept.result(RESULT)
    assert "this run is not kept for `parity explain`" in capsys.readouterr().err


def test_a_disk_that_fills_leaves_the_last_run_as_it_was(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeepLast(REQUEST).result(RESULT)
    (last_run() / "of the first").touch()

    def full(self: KeepRun, reference: object, candidate: object) -> None:
        raise UsageError("no space left")

    monkeypatch.setattr(KeepRun, "step", full)
    kept = KeepLast(REQUEST)
    kept.step(StepRecords(0, ()), StepRecords(0, ()))
    kept.result(RESULT)
    assert (kept.kept, (last_run() / "of the first").exists()) == (False, True)


def test_a_killed_run_is_swept_and_one_that_goes_on_is_not(cache: Path) -> None:
    going_on = KeepLast(REQUEST)
    (cache / "runs" / "run-killed").mkdir()
    (cache / "runs" / "run-killed.lock").touch()
    KeepLast(REQUEST).result(RESULT)
    assert "run-killed" not in {path.name for path in (cache / "runs").iterdir()}
    assert (last_run() / "result.json").is_file()
    (last_run() / "of the first").touch()
    going_on.result(RESULT)
    assert not (last_run() / "of the first").exists()
