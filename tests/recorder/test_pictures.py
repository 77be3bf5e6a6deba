"""Frames of a pipeline's processor: pictures of 8 bits, floats, tensors; another `output_type` is no divergence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from PIL import Image

import parity
from parity.compare.diff import diff
from parity.recorder.loop import _array
from tests.recorder.pipelines import Made, ltx

FRAMES = np.random.default_rng(0).random((1, 2, 8, 12, 3), dtype=np.float32)


@pytest.fixture(scope="module")
def made() -> Made:
    return ltx()


def recorded(made: Made, where: Path, output: str, **options: Any) -> Path:
    """The same generation, its frames handed out in another way."""
    pipe, call = made
    own = pipe.video_processor.postprocess_video
    pipe.video_processor.postprocess_video = lambda video, output_type: own(video, output_type=output)
    try:
        with parity.record(where, pipe, **options):
            call()
    finally:
        del pipe.video_processor.postprocess_video
    return where


@pytest.fixture(scope="module")
def floats(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(made, tmp_path_factory.mktemp("floats") / "gpu", "np", floors=("rounding",))


@pytest.mark.parametrize("output", ["np", "pt", "pil"])
def test_another_output_type_is_no_divergence(made: Made, floats: Path, tmp_path: Path, output: str) -> None:
    found = diff(floats, recorded(made, tmp_path / "tpu", output, floors=()))
    assert found.verdict == "pass", found.reason
    notes = [note.text for note in found.notes if "decode:frames" in note.text]
    said = ["decode:frames: pictures of 8 bits against floats: what was decoded decides"] if output == "pil" else []
    assert notes == said


def test_tensors_and_lists_of_them_have_their_channels_last() -> None:
    first = torch.from_numpy(np.moveaxis(FRAMES, -1, -3))
    for frames in (first, list(first), FRAMES):
        found = _array(frames)
        assert found is not None
        assert np.array_equal(found, FRAMES)


def test_lists_of_pictures_are_levels() -> None:
    levels = (FRAMES * 255).round().astype(np.uint8)
    found = _array([[Image.fromarray(frame) for frame in video] for video in levels])
    assert found is not None
    assert found.dtype == np.uint8
    assert np.array_equal(found, levels)
