"""`parity report`: a page from a kept run; what is no kept run is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity.commands.report import report
from parity.errors import UsageError
from parity.report.formats.json import dumps
from parity.report.result_json import to_json
from tests.report.test_result_json import RESULT

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A kept run with two frames."""
    run = tmp_path / "run"
    error = {"psnr": "inf", "ssim": 1.0, "region": {}, "rel_l2": 0.0, "floor": 0.1, "ratio": 0.0, "in_chain": None}
    document: dict[str, Any] = {**to_json(RESULT), "frames": [{"frame": i, **error, "psnr": 30.0 + i} for i in (0, 1)]}
    for side in ("reference", "candidate"):
        (run / "frames" / side).mkdir(parents=True)
        for i in (0, 1):
            (run / "frames" / side / f"{i:04d}.png").write_bytes(PNG)
    (run / "result.json").write_text(json.dumps(document))
    return run


def test_the_page_lies_in_the_run_or_where_asked(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(run=kept)
    report(run=kept, html=tmp_path / "page.html")
    assert capsys.readouterr().out.splitlines() == [str(kept / "report.html"), str(tmp_path / "page.html")]
    page = (kept / "report.html").read_text()
    assert page == (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "Not computed" in page


def test_the_causes_are_those_of_explain(kept: Path) -> None:
    (kept / "explain.json").write_text(dumps(to_json(RESULT)))
    report(run=kept)
    assert "98.0 %" in (kept / "report.html").read_text()


def test_a_picture_from_outside_the_run_is_not_shown(kept: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(PNG + b"secret")
    link = kept / "frames" / "candidate" / "0000.png"
    link.unlink()
    link.symlink_to(secret)
    (kept / "frames" / "reference" / "0001.png").write_bytes(b"no picture")
    report(run=kept)
    assert "data:image" not in (kept / "report.html").read_text()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdict": 1}', "{" * 100_000, "\x00"])
def test_what_is_no_document_is_a_sentence(kept: Path, content: str) -> None:
    (kept / "result.json").write_text(content)
    with pytest.raises(UsageError, match=r"no JSON document|cannot be shown"):
        report(run=kept)
    assert not (kept / "report.html").exists()


def test_a_folder_that_is_no_kept_run(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="is no kept run"):
            report(run=where)


def test_a_place_that_cannot_be_written(kept: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        report(run=kept, html=kept / "result.json" / "page.html")
