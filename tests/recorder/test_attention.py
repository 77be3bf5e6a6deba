"""What a script's recordings show of an attention whose values they hold: its mask, its scale, its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
import diffusers

import parity
from tests.support.scripts import drawn, recorded, referenced, tame

TEXT, PADDED, IMAGE, WIDTH = 24, 9, 32, 32


class Block(torch.nn.Module):
    """Attention of several heads."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__()
        self.norm, self.wrong = torch.nn.LayerNorm(WIDTH), wrong
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        given = {"attn_mask": mask[:, None, None, :], **self.wrong}
        given = {name: x(mask) if callable(x) else x for name, x in given.items()}
        return x + self.out(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, **given).transpose(1, 2).flatten(2)
        )


class Transformer(torch.nn.Module):
    """Image tokens and masked text in one sequence."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(**wrong), Block(**wrong)])

    def forward(self, x: torch.Tensor, text: torch.Tensor, mask: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        joint = torch.cat([x + timestep / 1000, text], 1)
        for block in self.blocks:
            joint = block(joint, mask)
        return joint[:, : x.shape[1]]


def record(where: Path, wrong: dict[str, Any], **options: Any) -> Path:
    model, scheduler = tame(Transformer(**wrong)), diffusers.FlowMatchEulerDiscreteScheduler()
    latents, mask = drawn(1, IMAGE, WIDTH), torch.arange(IMAGE + TEXT)[None] < IMAGE + TEXT - PADDED

    def script() -> torch.Tensor:
        scheduler.set_timesteps(1)
        (t,) = scheduler.timesteps
        predicted = model(latents, drawn(1, TEXT, WIDTH, seed=2), mask, t)
        return scheduler.step(predicted, t, latents, return_dict=False)[0]

    go = recorded if "like" in options else referenced
    with torch.no_grad():
        go(where, script, transformer=model, scheduler=scheduler, values=["blocks.0.attention"], **options)
    return where


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("attention") / "gpu", {})


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({}, None),
        ({"attn_mask": None}, "the mask is not applied"),
        ({"scale": 1.0}, "are not scaled"),
        (
            {"attn_mask": lambda mask: mask[:, None, None] & torch.ones(mask.shape[1], mask.shape[1]).tril().bool()},
            "causal",
        ),
        ({"attn_mask": lambda mask: mask[:, None, None].float()}, "ones and zeros"),
    ],
)
def test_what_was_done_to_it_is_named(
    reference: Path, wrong: dict[str, Any], cause: str | None, tmp_path: Path
) -> None:
    found = parity.diff(reference, record(tmp_path / "tpu", wrong, like=reference))
    if cause is None:
        assert found.verdict == "pass", found.reason
        return
    assert (found.verdict, str(found.origin and found.origin.key.site)) == ("fail", "blocks.0.attention:out")
    assert any(cause in c.cause for c in found.causes), found.causes
