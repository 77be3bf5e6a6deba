"""`parity report`: a page from a kept run or a document; what is neither is a sentence."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from parity.report.document import LARGEST, Listing
from parity.report.formats import render
from parity.report.formats.json import to_json
from tests.support.cli import cli
from tests.support.results import RESULT

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


def url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(PNG + content).decode()


def write(run: Path, side: str, *contents: bytes) -> None:
    (run / "frames" / side).mkdir(parents=True)
    for i, content in enumerate(contents):
        (run / "frames" / side / f"{i:04d}.png").write_bytes(PNG + content)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A kept run with two frames, of each decoder and of the whole chain."""
    run = tmp_path / "run"
    error: dict[str, Any] = {"psnr": 30.0, "ssim": 1.0, "region": {}, "rel_l2": 0.0, "floor": 0.1, "ratio": 0.0}
    frames = [{"frame": i, **error, "in_chain": {**error, "psnr": 18.6, "ssim": 0.5}} for i in (0, 1)]
    for side in ("reference", "candidate"):
        write(run, side, side.encode(), side.encode())
    (run / "result.json").write_text(json.dumps({**to_json(RESULT), "causes": [], "frames": frames}))
    return run


def test_the_page_has_the_run_its_pictures_and_what_it_was_made_with(kept: Path, tmp_path: Path) -> None:
    for role in ("reference", "candidate"):
        shutil.copytree(Path(__file__).parents[2] / "golden" / "tiny-hunyuan-video-1.5", kept / role)
    write(kept, "candidate_in_chain", b"chain", b"reference")
    assert cli("report", kept, code=0).out == f"{kept / 'report.html'}\n"
    cli("report", kept, "--html", tmp_path / "page.html", code=0)
    page = (kept / "report.html").read_text()
    assert page == (tmp_path / "page.html").read_text()
    assert page.count(url(b"reference")) == page.count(url(b"chain")) == 1, "the second pair is equal: not shown"
    assert url(b"candidate") not in page, "what a viewer of the candidate sees is the chain's"
    for said in ("Causes: not looked for", "PSNR 18.6 dB, SSIM 0.5000", "parity record", "vision_states", "torch 2."):
        assert said in page
    for name in ("explain.json", "result.json"):  # the run may have named causes itself
        (kept / name).write_text(render(Listing(to_json(RESULT), ()), "json"))
        cli("report", kept, code=0)
        assert "98.0 %" in (kept / "report.html").read_text()
        (kept / name).unlink()


def test_a_picture_from_outside_the_run_is_not_shown(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG + b"secret")
    link = kept / "frames" / "candidate" / "0000.png"
    link.unlink()
    link.symlink_to(tmp_path / "secret.png")
    (kept / "frames" / "reference" / "0001.png").write_bytes(b"no picture")
    cli("report", kept, code=0)
    assert "data:image" not in (kept / "report.html").read_text()


def test_numbers_that_are_none_are_not_in_a_caption(kept: Path) -> None:
    """Of a frame with NaN, and of one that is equal."""
    document = json.loads((kept / "result.json").read_text())
    numbers = {"psnr": None, "ssim": None, "ratio": None}, {"psnr": LARGEST, "ssim": 1.0, "ratio": 0.0}
    frames = [frame | own | {"in_chain": None} for frame, own in zip(document["frames"], numbers, strict=True)]
    (kept / "result.json").write_text(json.dumps({**document, "frames": frames}))
    cli("report", kept, code=0)
    page = (kept / "report.html").read_text()
    assert "frame 0</figcaption>" in page
    assert "frame 1: SSIM 1.0000, 0x its floor" in page


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdict": 1}', "{" * 100_000, "\x00"])
def test_what_is_no_document_is_a_sentence(kept: Path, content: str) -> None:
    (kept / "result.json").write_text(content)
    said = cli("report", kept, code=2).said
    assert "JSON" in said or "cannot be shown" in said
    assert not (kept / "report.html").exists()
