"""`parity run --stages` and `--inputs`: one document, frames as files, messages that help."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from parity.commands.keep import write_frames
from parity.compare.frames import pictures
from parity.hooks.sites import split_sites
from tests.support.cli import cli
from tests.support.models import NANO, checkpoint
from tests.support.ports import stage2


@pytest.mark.slow
def test_latents_of_a_port_are_decoded_on_both_sides(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (
        "--format",
        "json",
        "--model",
        checkpoint(NANO),
        "--inputs",
        stage2(tmp_path, 1, 32, 3, 1, 2),
        "--out",
        out,
    )
    found = cli("run", *words, code=0).json
    assert (found["verdict"], found["steps"]) == ("pass", [])
    assert {site["stage"] for site in found["sites"]} == {"vae"}
    assert [frame["frame"] for frame in found["frames"]] == list(range(9))
    frame = found["frames"][0]
    assert list(frame) == ["frame", "rel_l2", "floor", "ratio", "psnr", "ssim", "region", "in_chain"]
    assert 0 < frame["rel_l2"] < 1e-4
    assert (frame["in_chain"], frame["ssim"]) == (None, pytest.approx(1.0, abs=1e-6))
    (stage,) = found["stages"]
    assert (stage["stage"], stage["verdict"], stage["in_chain"]["rel_l2"]) == ("vae", "pass", None)
    for side in ("reference", "candidate"):
        files = sorted((out / "frames" / side).glob("*.png"))
        assert [file.name for file in files] == [f"{i:04d}.png" for i in range(9)]
        assert Image.open(files[0]).size == (32, 16)
    assert json.loads((out / "result.json").read_text())["frames"] == found["frames"]


@pytest.mark.slow
def test_frames_are_kept_of_the_check_that_fails(tmp_path: Path) -> None:
    words = ("--inputs", stage2(tmp_path, 1, 32, 1, 1, 2), "--out", tmp_path / "out", "-c", "dtype=bfloat16")
    found = cli("run", "--model", checkpoint(NANO), *words, "-c", "vae.padding=zeros", "--format", "json", code=1).json
    assert found["failed"] == "logic"
    assert len(found["frames"]) == 1
    for side in ("reference", "candidate"):
        assert [file.name for file in (tmp_path / "out" / "frames" / side).iterdir()] == ["0000.png"]


def test_latents_of_another_layout_are_refused(tmp_path: Path) -> None:
    found = cli("run", "--model", checkpoint(NANO), "--inputs", stage2(tmp_path, 1, 3, 32, 1, 2), code=2)
    assert "found [1, 3, 32, 1, 2]; they are laid out [B, T, C, H, W], permute them" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stages", "text", "--candidate", "attention.mask=none"), "of the transformer stage, which is not run"),
        (("--candidate", "vae.tiling=true"), "'vae.tiling=true' is a setting of the vae stage, which is not run"),
        (("--stages", "transformer,vae", "--inputs", "stage2_latents.safetensors"), "the VAE decodes and no other"),
    ],
)
def test_stage_that_cannot_be_run_is_refused(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    stage2(tmp_path, 1, 32, 3, 1, 2)
    assert message in cli("run", *words, code=2, cwd=tmp_path).said


def test_glob_goes_to_the_stages_that_have_such_a_module() -> None:
    stages = {"transformer": ["", "blocks.0"], "vae": ["", "decoder", "decoder.up.0"]}
    for glob, values, expected in (
        ("decoder*", (), {"transformer": ("none", ()), "vae": ("decoder*", ())}),
        ("blocks", ("decoder:out",), {"transformer": ("blocks", ()), "vae": ("blocks", ("decoder:out",))}),
        ("nowhere", (), {"transformer": ("nowhere", ()), "vae": ("nowhere", ())}),
    ):
        assert split_sites(stages, glob, values) == expected


def test_frames_are_pngs(tmp_path: Path) -> None:
    video = np.random.default_rng(0).standard_normal((1, 3, 2, 8, 12)).astype(np.float32)
    write_frames(tmp_path / "a", video)
    shown = [np.asarray(Image.open(tmp_path / "a" / f"{i:04d}.png")) for i in range(2)]
    assert np.abs(shown[1] / 255 - pictures(video[0, :, 1]).transpose(1, 2, 0)).max() <= 0.5 / 255 + 1e-9
