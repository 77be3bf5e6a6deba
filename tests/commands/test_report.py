"""`parity report`: a page from a kept run; what is no kept run is a sentence."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from parity.commands.report import report
from parity.errors import UsageError
from parity.report.formats.json import dumps
from parity.report.result_json import to_json
from tests.support.made import RESULT

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


def write_pictures(run: Path, side: str, contents: list[bytes]) -> None:
    (run / "frames" / side).mkdir(parents=True)
    for i, content in enumerate(contents):
        (run / "frames" / side / f"{i:04d}.png").write_bytes(PNG + content)


def url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(PNG + content).decode()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A kept run with two frames."""
    run = tmp_path / "run"
    error = {"psnr": "inf", "ssim": 1.0, "region": {}, "rel_l2": 0.0, "floor": 0.1, "ratio": 0.0, "in_chain": None}
    document: dict[str, Any] = {**to_json(RESULT), "frames": [{"frame": i, **error, "psnr": 30.0 + i} for i in (0, 1)]}
    for side in ("reference", "candidate"):
        write_pictures(run, side, [side.encode(), side.encode()])
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
    assert "Causes: not computed" in page
    assert "by each decoder" in page


def chained(run: Path, contents: list[bytes]) -> None:
    """The frames of each side's own latents, in a document that has their numbers."""
    document = json.loads((run / "result.json").read_text())
    for frame in document["frames"]:
        frame["in_chain"] = {**frame, "psnr": 18.6, "ssim": 0.5}
    (run / "result.json").write_text(json.dumps(document))
    write_pictures(run, "candidate_in_chain", contents)


def test_the_pictures_are_those_that_a_viewer_of_the_candidate_sees(kept: Path) -> None:
    chained(kept, [b"chain", b"reference"])
    report(run=kept)
    page = (kept / "report.html").read_text()
    assert page.count(url(b"reference")) == page.count(url(b"chain")) == 1  # the second pair is equal: not shown
    assert url(b"candidate") not in page
    assert "PSNR 18.6 dB, SSIM 0.5000" in page
    assert "Each side&#39;s own latents" in page


def test_pairs_that_are_equal_are_said_and_not_shown(kept: Path) -> None:
    chained(kept, [b"reference", b"reference"])
    report(run=kept)
    page = (kept / "report.html").read_text()
    assert "data:image/png" not in page
    assert "2 frames were compared; its pictures are equal on both sides" in page


def test_a_document_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "diff.json").write_text(dumps(to_json(RESULT)))
    report(run=tmp_path / "diff.json")
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "diff.html")]


def test_what_the_sides_were_made_with_is_on_the_page(kept: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "tiny-hunyuan-video-1.5"
    for role in ("reference", "candidate"):
        shutil.copytree(golden, kept / role)
    report(run=kept)
    page = (kept / "report.html").read_text()
    assert all(word in page for word in ("parity record", "vision_states", "torch 2.", "All settings"))


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
