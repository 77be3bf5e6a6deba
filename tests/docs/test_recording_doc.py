"""docs/recording.md: its script, run on a tiny pipeline, and its command."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, blocks, shell

from parity.golden.faults import kept_faults

pytestmark = pytest.mark.slow

pytest.importorskip("diffusers")

TEXT = (DOCS / "recording.md").read_text()


def names() -> dict[str, Any]:
    """What the document's script has already."""
    import torch
    from diffusers import CogVideoXPipeline

    from parity.models.registry import resolve_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = CogVideoXPipeline.from_pretrained(resolve_model("tiny-cogvideox-1.5"))
    pipe.set_progress_bar_config(disable=True)
    size = {"height": 32, "width": 32, "num_frames": 9}

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def my_loop(transformer: Any, scheduler: Any) -> Any:
        assert (transformer, scheduler) == (pipe.transformer, pipe.scheduler)
        latents = pipe("a cat", num_inference_steps=2, output_type="latent", generator=generator(), **size).frames
        return latents[:, 1:]  # CogVideoX 1.5 makes a frame more than it shows

    def my_decoder(vae: Any, latents: Any) -> Any:
        with torch.no_grad():
            return pipe.video_processor.postprocess_video(video=pipe.decode_latents(latents), output_type="np")

    return {
        "pipe": pipe, "transformer": pipe.transformer, "vae": pipe.vae, "scheduler": pipe.scheduler,
        "size": {**size, "generator": generator()}, "my_loop": my_loop, "my_decoder": my_decoder,
    }  # fmt: skip


def test_the_script_and_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = names()
    for block in blocks(TEXT, "python"):
        exec(compile(block, "recording.md", "exec"), known)
    commands = [line for block in blocks(TEXT, "sh") for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == ["diff", "explain"]
    for command in commands:
        done = shell(command, tmp_path)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "verdict: pass: CogVideoX" in done.stdout
    kept = kept_faults(tmp_path / "gpu-causes", 0, "transformer")
    assert frozenset({"attention.scale=1"}) in kept
    assert frozenset({"vae.norm=by_frame"}) in kept_faults(tmp_path / "gpu-causes", -1, "vae")
