"""`parity run --stages` and `--stage2` from the command line: one document, frames as files, messages that help."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from parity.commands.parts import frame_files
from parity.commands.run import parse_stages
from parity.commands.run import run as run_command
from parity.compare.detect.frames import pictures
from parity.errors import UsageError
from parity.hooks.sites import split_sites
from parity.models.stage2 import write_stage2

pytestmark = pytest.mark.slow

TINY = "tiny-hunyuan-video-1.5"


def stage2_file(folder: Path, shape: tuple[int, ...] = (1, 32, 3, 1, 2)) -> Path:
    path = folder / "stage2_latents.safetensors"
    latents = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    write_stage2(path, latents, seed=0, guidance_scale=6.0, num_frames=9, num_inference_steps=1)
    return path


def run(stage2: Path | None, out: Path | None = None, **changed: object) -> int:
    given: dict[str, object] = {
        "model": TINY, "steps": 1, "reference": [], "candidate": [], "rounds": "both", "forcing": "none",
        "sites": "blocks", "values": [], "stages": None, "stage1": None, "stage2": stage2, "prompt": None, "seed": 0,
        "out": out, "as_json": True,
    }  # fmt: skip
    return run_command(**{**given, **changed})  # type: ignore[arg-type]


def test_a_ports_latents_are_decoded_on_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(stage2_file(tmp_path), out) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["steps"]) == ("pass", [])
    assert {site["stage"] for site in found["sites"]} == {"vae"}
    assert [frame["frame"] for frame in found["frames"]] == list(range(9))
    frame = found["frames"][0]
    assert list(frame) == ["frame", "rel_l2", "floor", "ratio", "psnr", "ssim", "region", "in_chain"]
    assert 0 < frame["rel_l2"] < 1e-4
    assert (frame["in_chain"], frame["ssim"]) == (None, pytest.approx(1.0, abs=1e-6))
    (stage,) = found["stages"]
    assert (stage["stage"], stage["verdict"], stage["in_chain"]["rel_l2"]) == ("vae", "pass", "nan")
    for side in ("reference", "candidate"):
        files = sorted((out / "frames" / side).glob("*.png"))
        assert [file.name for file in files] == [f"{i:04d}.png" for i in range(9)]
        assert Image.open(files[0]).size == (32, 16)
    assert json.loads((out / "result.json").read_text())["frames"] == found["frames"]


def test_latents_of_another_layout_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"found \[1, 3, 32, 1, 2\]; they are laid out \[B, T, C, H, W\], permute them"
    ):
        run(stage2_file(tmp_path, (1, 3, 32, 1, 2)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stages": "vea"}, r"--stages takes text, transformer, vae, comma-separated; found 'vea'"),
        ({"stages": "text", "candidate": ["attention.mask=none"]}, r"of the transformer stage, which is not run"),
        ({"candidate": ["vae.tiling=true"]}, r"'vae.tiling=true' is a setting of the vae stage, which is not run"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(None, **changed)


def test_stages_in_their_order() -> None:
    assert parse_stages(None, None) == ("transformer",)
    assert parse_stages("vae, transformer, text", None) == ("text", "transformer", "vae")
    assert parse_stages(None, Path("latents")) == ("vae",)
    with pytest.raises(UsageError, match="runs no other stage"):
        parse_stages("transformer,vae", Path("latents"))


def test_a_glob_goes_to_the_stages_that_have_such_a_module() -> None:
    stages = {"transformer": ["", "blocks.0"], "vae": ["", "decoder", "decoder.up.0"]}
    assert split_sites(stages, "decoder*") == {"transformer": ("none", ()), "vae": ("decoder*", ())}
    assert split_sites(stages, "blocks", ("decoder:out",)) == {
        "transformer": ("blocks", ()),
        "vae": ("blocks", ("decoder:out",)),
    }
    assert split_sites(stages, "nowhere") == {"transformer": ("nowhere", ()), "vae": ("nowhere", ())}


def test_pngs_hold_the_pictures_and_a_missing_encoder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = np.random.default_rng(0).standard_normal((1, 3, 2, 8, 12)).astype(np.float32)
    monkeypatch.setattr(frame_files, "find_encoder", lambda: None)
    assert "no mp4 was written" in frame_files.write_frames(tmp_path / "a", video)
    shown = np.asarray(Image.open(tmp_path / "a" / "0001.png"))
    assert np.abs(shown / 255 - pictures(video[0, :, 1]).transpose(1, 2, 0)).max() <= 0.5 / 255 + 1e-9


def test_an_encoder_is_given_every_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tmp_path / "ffmpeg"
    encoder.write_text('#!/bin/sh\nfor target in "$@"; do :; done\nexec cat > "$target"\n')
    encoder.chmod(0o755)
    monkeypatch.setattr(frame_files, "find_encoder", lambda: str(encoder))
    assert frame_files.write_frames(tmp_path / "a", np.zeros((1, 3, 2, 8, 12), np.float32)) == ""
    assert (tmp_path / "a.mp4").read_bytes() == bytes([128]) * (2 * 8 * 12 * 3)
    broken = shutil.which("false")
    monkeypatch.setattr(frame_files, "find_encoder", lambda: broken)
    assert "failed" in frame_files.write_frames(tmp_path / "b", np.zeros((1, 3, 2, 8, 12), np.float32))
