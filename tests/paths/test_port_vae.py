"""A port that brings its own VAE: it decodes in the candidate's place, and what it does wrong is in the frames."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.compare.result import Result
from parity.errors import UsageError
from parity.models.stage2 import write_stage2
from parity.paths.live import InProcess
from parity.paths.port.load import load_entry
from parity.runs.load import load_ports
from parity.runs.request import Request
from parity.runs.stages.chain import run_chain
from parity.settings import parse

pytestmark = pytest.mark.slow

COG = "tiny-cogvideox-1.5"

RIGHT = "frames = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]"


def port(folder: Path, body: str, made: str = 'vae=decode, runs="torch"') -> Path:
    """A file whose port decodes with diffusers' class, by these lines."""
    file = folder / "vae_port.py"
    file.write_text(
        "import diffusers, torch\nfrom parity.port import Port\n\n\ndef build(case):\n"
        "    vae = diffusers.AutoencoderKLCogVideoX.from_pretrained(case.folder, subfolder='vae').eval()\n\n"
        "    def decode(latents):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "        ")
        + f"\n        return frames\n\n    return Port({made})\n"
    )
    return file


def compared(file: Path, *candidate: str, forcing: str = "none") -> Result:
    latents = file.parent / "stage2_latents.safetensors"
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 16, 3, 2, 3)).astype(np.float32))
    write_stage2(latents, x, seed=0, guidance_scale=6.0, num_frames=9, num_inference_steps=1)
    option, text = "--port", f"{file}:build"
    openers = InProcess(load_entry(option, text))
    ports = load_ports(None, text, COG, openers)
    chosen = parse("torchax", candidate)
    request = Request(COG, parse("torch"), chosen, stages=("vae",), stage2=latents, ports=ports, forcing=forcing)
    return run_chain(request, lambda *_: None, openers=openers)


def test_a_right_decoder_passes(tmp_path: Path) -> None:
    result = compared(port(tmp_path, RIGHT))
    assert result.verdict == "pass", result.reason
    assert len(result.frames) == 9
    assert all(f.by_itself is not None and f.by_itself.distance.ratio < 3 for f in result.frames)


@pytest.mark.parametrize(
    "body",
    [
        "frames = vae.decode(latents, return_dict=False)[0]",
        RIGHT + "\nframes = frames.clone(); frames[:, :, 4] = frames[:, :, 3]",
        RIGHT + "\nframes = frames * 1.001",
    ],
    ids=["not divided", "a frame held", "a gain"],
)
def test_what_it_does_wrong_is_in_the_frames(body: str, tmp_path: Path) -> None:
    result = compared(port(tmp_path, body))
    assert (result.verdict, result.stages[0].stage) == ("fail", "vae")
    if "4" in body:
        worst = max(result.frames, key=lambda f: f.by_itself.distance.rel_l2 if f.by_itself else 0.0)
        assert worst.frame == 4


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("frames = latents", r"`vae` gave float32 \[1, 16, 3, 2, 3\]; expected frames"),
        ("raise ValueError('no such latents')", r"`vae` raised at vae_port.py:\d+: ValueError: no such latents"),
    ],
)
def test_a_decoder_that_does_not_decode_is_told(body: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        compared(port(tmp_path, body))
