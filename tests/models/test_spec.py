"""A folder's generation defaults: the pipeline's numbers, a parity.json over them, and clear words for a bad one."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from parity.errors import UsageError
from parity.models.folder import GenerationSpec


def write(folder: pathlib.Path, content: Any) -> pathlib.Path:
    (folder / "parity.json").write_text(json.dumps(content))
    return folder


def write_config(folder: pathlib.Path, component: str, content: dict[str, Any]) -> None:
    (folder / component).mkdir()
    (folder / component / "config.json").write_text(json.dumps(content))


def test_without_a_file_the_full_size_pipelines_numbers_hold(tmp_path: pathlib.Path) -> None:
    spec = GenerationSpec.load(tmp_path, {})
    assert (spec.height, spec.width, spec.num_frames, spec.guidance_scale) == (720, 1280, 121, None)
    assert (spec.tokenizer_max_length, spec.tokenizer_2_max_length, spec.crop_start) == (1000, 256, 108)


@pytest.mark.parametrize("target_size", [640, 960])
def test_size_defaults_to_the_pipelines_own(tmp_path: pathlib.Path, target_size: int) -> None:
    from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor

    from parity.models.hunyuan_video_15 import HunyuanVideo15

    write_config(tmp_path, "transformer", {"target_size": target_size})
    write_config(tmp_path, "vae", {})
    spec = GenerationSpec.load(tmp_path, HunyuanVideo15().defaults(tmp_path))
    expected = HunyuanVideo15ImageProcessor().calculate_default_height_width(9, 16, target_size)
    assert (spec.height, spec.width) == tuple(expected)
    assert spec.height * spec.width == pytest.approx(target_size**2, rel=0.1)


def test_a_given_size_is_kept(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path, {"height": 64, "width": 96, "guidance_scale": 4})
    spec = GenerationSpec.load(folder, {"height": 352, "width": 640})
    assert (spec.height, spec.width, spec.guidance_scale, spec.num_frames) == (64, 96, 4, 121)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"heigth": 64}, ".*unknown field `heigth`"),
        ({"height": 0}, r"Expected `int` >= 1 - at `\$\.height`"),
        ({"width": True}, r"Expected `int`, got `bool` - at `\$\.width`"),
        ({"guidance_scale": float("inf")}, r"Expected `float` .*guidance_scale"),
        ([1], "expected a JSON object"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: pathlib.Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError, match=rf"parity\.json: {message}"):
        GenerationSpec.load(write(tmp_path, content), {})


def test_cogvideox_takes_its_lengths_and_sizes_from_its_configs(tmp_path: pathlib.Path) -> None:
    from parity.models.cogvideox import CogVideoX

    write_config(tmp_path, "transformer", {"max_text_seq_length": 32, "sample_width": 90, "sample_frames": 17})
    write_config(tmp_path, "vae", {"block_out_channels": [16, 16, 32, 32]})
    spec = GenerationSpec.load(tmp_path, CogVideoX().defaults(tmp_path))
    assert (spec.tokenizer_max_length, spec.height, spec.width, spec.num_frames) == (32, 480, 720, 17)
