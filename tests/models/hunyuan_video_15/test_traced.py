"""diffusers' class as a port compiles it predicts what diffusers' own forward does, padded rows without a NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity.models.folder import load_part
from parity.models.hunyuan_video_15.traced import traceable
from tests.models.hunyuan_video_15.test_transformer import arguments
from tests.paths.sides import tiny


def loaded() -> Any:
    return load_part(tiny().case.folder, "transformer").eval().requires_grad_(False)


@pytest.mark.parametrize("branch", ["cond", "uncond"])
def test_the_traceable_model_predicts_what_diffusers_does(branch: str) -> None:
    given = arguments(branch)
    own, changed = loaded(), traceable(loaded())
    masks: list[torch.Tensor] = []
    refiner = changed.context_embedder.token_refiner.refiner_blocks[0].attn
    inner = refiner.processor.own
    refiner.processor.own = lambda attn, x, text, mask: (masks.append(mask), inner(attn, x, text, mask))[1]
    with torch.no_grad():
        expected, found = (model(**given, return_dict=False)[0] for model in (own, changed))
    assert expected.std() > 0.1
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    assert masks[0].any(dim=-1).all(), "a row without a key is NaN under torchax"
    assert not masks[0].all()
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in changed.named_parameters()]
