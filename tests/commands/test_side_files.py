"""A file beside a result that cannot be written loses neither the verdict nor its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.compare.result import Result
from tests.support.cli import cli
from tests.support.made import because, pair

RESULTS = {
    "fail": (Result("fail", "structure", because("they part"), "tiny"), 1),
    "unjudged": (Result("unjudged", None, because("no floors"), "tiny"), 125),
    "pass": (Result("pass", None, because("all agree"), "tiny"), 2),
}
"""Verdict -> a result, and the exit code where a file beside it could not be written."""


@pytest.mark.parametrize(("fault", "verdict", "code"), [(1e4, "fail", 1), (0.0, "pass", 2)])
@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_diff(tmp_path: Path, fault: float, verdict: str, code: int, option: str) -> None:
    sides = pair(tmp_path / "goldens", fault=fault)
    (tmp_path / "file").write_text("")
    other = {"--junit": "--markdown", "--markdown": "--junit"}[option]
    ran = cli("diff", *sides, "--json", option, tmp_path / "file/x", other, tmp_path / "written", code=code)
    assert ran.json["verdict"] == verdict
    assert ran.said.startswith(f"parity: {option}: cannot write '{tmp_path}/file/x'")
    assert (tmp_path / "written").stat().st_size


@pytest.mark.parametrize("verdict", RESULTS)
def test_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    pytest.importorskip("torchax")
    result, code = RESULTS[verdict]
    monkeypatch.setattr("parity.causes.explain.of_run", lambda *given: None)
    monkeypatch.setattr("parity.causes.explain.explain", lambda *given: result)
    (tmp_path / "explain.json").mkdir()
    (tmp_path / "explain.json" / "file").write_text("")
    ran = cli("explain", tmp_path, "--json", code=code)
    assert ran.json["verdict"] == verdict
    assert "parity: RUN: cannot write" in ran.err
