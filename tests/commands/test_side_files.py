"""An unwritable side file loses neither the verdict nor its exit code; a full stdout loses no side file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parity.compare.result import Result
from tests.support.cli import cli
from tests.support.made import because, pair
from tests.support.models import NANO, checkpoint


@pytest.mark.parametrize(("fault", "verdict", "code"), [(1e4, "fail", 1), (0.0, "pass", 2)])
@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_diff(tmp_path: Path, fault: float, verdict: str, code: int, option: str) -> None:
    sides = pair(tmp_path / "goldens", fault=fault)
    (tmp_path / "file").write_text("")
    other = {"--junit": "--markdown", "--markdown": "--junit"}[option]
    ran = cli("diff", *sides, "--format", "json", option, tmp_path / "file/x", other, tmp_path / "written", code=code)
    assert ran.json["verdict"] == verdict
    assert ran.said.startswith(f"parity: {option}: cannot write '{tmp_path}/file/x'")
    assert (tmp_path / "written").stat().st_size


@pytest.mark.parametrize(
    "words",
    [
        "diff a b --junit b/golden.json",
        "diff a b --markdown ./a",
        "diff a b --map auto --map-out a/golden.json",
        "diff a port.py:build --junit port.py",
        "diff a b --junit x --markdown ./x",
        "diff a b --junit https://example.com/x",
        "report r.html",
        "report r.json --html ./r.json",
    ],
)
def test_what_is_read_is_not_written_over(words: str, tmp_path: Path) -> None:
    for golden, name in zip(pair(tmp_path / "goldens", fault=1e4), "ab", strict=True):
        Path(golden).rename(tmp_path / name)
    result = cli("diff", "a", "b", "--format", "json", cwd=tmp_path, code=1).out
    for name in ("r.html", "r.json", "port.py"):
        (tmp_path / name).write_text(result)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert " name a" in cli(*words.split(), cwd=tmp_path, code=2).err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchax")
    result = Result("inconclusive", None, because("no floors"), "tiny")
    monkeypatch.setattr("parity.causes.explain.of_run", lambda *given: None)
    monkeypatch.setattr("parity.causes.explain.explain", lambda *given: result)
    (tmp_path / "explain.json").mkdir()
    (tmp_path / "explain.json" / "file").write_text("")
    ran = cli("explain", tmp_path, "--format", "json", code=125)
    assert ran.json["verdict"] == "inconclusive"
    assert "parity: RUN: cannot write" in ran.err


def on_full_stdout(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "parity", *map(str, words)]
        return subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=300)


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@FULL
def test_diff_on_a_full_stdout_writes_its_files(tmp_path: Path) -> None:
    done = on_full_stdout(tmp_path, "diff", *pair(tmp_path, fault=1e4), "--junit", "junit.xml")
    assert (done.returncode, "No space left on device" in done.stderr) == (2, True), done.stderr
    assert "<failure" in (tmp_path / "junit.xml").read_text()


@FULL
@pytest.mark.slow
def test_run_and_explain_on_a_full_stdout_keep_their_results(tmp_path: Path) -> None:
    pytest.importorskip("torchax")
    run = ("run", "--model", checkpoint(NANO), "--steps", 1, "--candidate", "attention.mask=zero_kv", "--out", "kept")
    for words, file in ((run, "result.json"), (("explain", "kept"), "explain.json")):
        done = on_full_stdout(tmp_path, *words)
        assert (done.returncode, "No space left on device" in done.stderr) == (2, True), done.stderr
        assert '"fail"' in (tmp_path / "kept" / file).read_text()
