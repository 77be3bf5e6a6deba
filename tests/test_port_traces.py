"""Ports whose modules run inside a trace of their own, or remember what an earlier trace made."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchax")

from parity.compare.result import Result
from tests.test_run_ports import compare

MODEL = "tiny-cogvideox-1.0"

PORT = """
import functools
import jax
import torch
from diffusers import CogVideoXTransformer3DModel
from torchax import interop
from parity.port import Case, Port

FACTOR = {factor}


class Remembering(CogVideoXTransformer3DModel):
    @functools.lru_cache(maxsize=None)
    def scale(self, tokens, device):
        return torch.ones(tokens, device=device) * FACTOR

    def forward(self, hidden_states, *args, **kwargs):
        scale = self.scale(hidden_states.shape[-1], hidden_states.device)
        return super().forward(hidden_states * scale, *args, **kwargs)


def checkpointed(block):
    own = block.forward

    def forward(hidden_states, encoder_hidden_states, temb, image_rotary_emb=None, **kwargs):
        def run(*given):
            image, text = own(*given, image_rotary_emb=image_rotary_emb, **kwargs)
            return image * FACTOR, text

        run = interop.jax_view(run)
        return interop.call_jax(jax.checkpoint(run), hidden_states, encoder_hidden_states, temb)

    block.forward = forward


def remembering(case: Case) -> Port:
    return Port(module=Remembering.from_pretrained(case.folder / "transformer"), runs="torchax")


def rematerialised(case: Case) -> Port:
    model = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")
    for block in model.transformer_blocks:
        checkpointed(block)
    return Port(module=model, runs="torchax")
"""


def run(folder: Path, build: str, factor: float) -> Result:
    (folder / "port.py").write_text(PORT.replace("{factor}", str(factor)))
    return compare(None, f"{folder}/port.py:{build}", model=MODEL)


@pytest.mark.parametrize("build", ["remembering", "rematerialised"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.01, "fail")])
def test_a_port_that_traces_for_itself_is_judged(build: str, factor: float, verdict: str, tmp_path: Path) -> None:
    """A closer look makes a second program of one module: what the first one's trace left behind is no value there."""
    result = run(tmp_path, build, factor)
    assert result.verdict == verdict, result.reason
    if verdict == "fail":
        assert result.origin is not None
        assert "transformer_blocks.0" in result.origin.key.module or "patch_embed" in result.origin.key.module
