"""The examples: each port agrees with its original, and the faults that it offers are found."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import parity

pytest.importorskip("flax")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_flax_decoder_with_channels_last() -> None:
    names = example("flax_vae.py")
    decoder, port, scaling = names["Decoder"](), names["FlaxDecoder"], names["SCALING"]
    latents = drawn(1, names["LATENT"], 3, 4, 6) / scaling
    layout = {"layout": "channels_last"}
    parity.assert_parity(decoder, port(decoder.state_dict()), latents, **layout)
    result = parity.compare(decoder, port(decoder.state_dict(), frame_wise=True), latents, **layout)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.module == "attention"
    assert result.origin.birth == "module"


def test_a_loop_in_jax() -> None:
    names = example("jax_loop.py")
    model = names["Transformer"]()
    inputs = {"latents": drawn(1, 12, names["WIDTH"]), "cond": drawn(1, names["WIDTH"]), "uncond": drawn(1, 16) / 2}
    loop, port = names["torch_loop"](model), names["jax_loop"]
    parity.assert_parity(loop, port(model.state_dict()), inputs)
    for fault in ({"schedule": "bfloat16"}, {"swapped": True}):
        assert parity.compare(loop, port(model.state_dict(), **fault), inputs).verdict == "fail", fault
