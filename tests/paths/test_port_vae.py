"""A port that brings its own VAE: it decodes in the candidate's place, and what it does wrong is in the frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.compare.metrics import UNSEEN
from parity.compare.result import Result
from parity.errors import UsageError
from parity.runs.compare import run
from tests.support.lab import quiet
from tests.support.ports import decoder

pytestmark = pytest.mark.slow

COG = "tiny-cogvideox-1.5"

RIGHT = "frames = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]"


def compared(folder: Path, decodes: str) -> Result:
    request, openers = decoder(folder, COG, "AutoencoderKLCogVideoX", (1, 16, 3, 2, 3), decodes)
    return run(request, quiet, openers=openers)


@pytest.mark.parametrize(
    "more", ["", "frames = (frames,)", "frames = {'sample': frames}", "frames = frames.clamp(-1, 1)"]
)
def test_a_right_decoder_passes(more: str, tmp_path: Path) -> None:
    result = compared(tmp_path, f"{RIGHT}\n{more}")
    assert result.verdict == "pass", result.reason
    assert [str(note) for note in result.notes if UNSEEN in str(note)] == [f"what is decoded {UNSEEN}"] * (
        "clamp" in more
    )
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
    result = compared(tmp_path, body)
    assert (result.verdict, result.stages[0].stage) == ("fail", "vae")
    if "4" in body:
        worst = max(result.frames, key=lambda f: f.by_itself.distance.rel_l2 if f.by_itself else 0.0)
        assert worst.frame == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("frames = frames[:, :, :8]", "(shape [1, 3, 9, 16, 24] against [1, 3, 8, 16, 24])"),
        ("frames = frames.clone(); frames[0, 0, 3, 0, 0] = float('nan')", "NaN or infinite on one side"),
    ],
)
def test_frames_that_are_lost_or_broken_fail(body: str, said: str, tmp_path: Path) -> None:
    result = compared(tmp_path, f"{RIGHT}\n{body}")
    assert (result.verdict, result.stages[0].stage) == ("fail", "vae")
    assert said in result.reason


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("frames = latents", r"`vae` gave float32 \[1, 16, 3, 2, 3\]; expected frames"),
        ("frames = None", "`vae` gave an object of type NoneType; expected frames"),
        ("raise ValueError('no such latents')", r"`vae` raised at port.py:\d+: ValueError: no such latents"),
    ],
)
def test_a_decoder_that_does_not_decode_is_told(body: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        compared(tmp_path, body)
