"""Rows of text that a mask leaves out: what a recording holds of them decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
import parity
from parity.compare.diff import diff
from parity.golden import Golden
from tests.recorder.pipelines import drawn, ltx

MASK = torch.tensor([[True] * 10 + [False] * 6])
TEXT = drawn(1, 16, 32)


@pytest.fixture(scope="module")
def transformer() -> Any:
    return ltx()[0].transformer


def generate(transformer: Any, text: torch.Tensor, mask: torch.Tensor) -> None:
    """One call of the transformer, as a loop would make it."""
    latents, times = drawn(1, 12, 8, seed=3), torch.tensor([500.0])
    transformer(latents, text, times, mask, num_frames=3, height=2, width=2)


@pytest.fixture(scope="module")
def reference(transformer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("padding") / "gpu"
    with parity.record(where, transformer=transformer, scheduler=None, sites="all"):
        generate(transformer, TEXT, MASK)
    return where


def recorded(transformer: Any, where: Path, text: torch.Tensor, mask: torch.Tensor) -> Any:
    with parity.record(where, transformer=transformer, scheduler=None, sites="all", floors=()):
        generate(transformer, text, mask)
    return where


def changed(rows: slice) -> torch.Tensor:
    text = TEXT.clone()
    text[:, rows] = 5.0
    return text


def test_what_an_encoder_gives_for_padding_decides_nothing(transformer: Any, reference: Path, tmp_path: Path) -> None:
    found = diff(reference, recorded(transformer, tmp_path / "tpu", changed(slice(10, 16)), MASK))
    assert found.verdict == "pass", found.reason
    given = next(d for d in found.sites if d.key.site == ":in.encoder_hidden_states")
    assert given.note == "differs in padded rows alone, which no query reads"


def test_rows_that_are_read_decide(transformer: Any, reference: Path, tmp_path: Path) -> None:
    found = diff(reference, recorded(transformer, tmp_path / "tpu", changed(slice(9, 16)), MASK))
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.site == ":in.encoder_hidden_states"


def test_a_mask_that_is_lost_is_found(transformer: Any, reference: Path, tmp_path: Path) -> None:
    found = diff(reference, recorded(transformer, tmp_path / "tpu", TEXT, torch.ones_like(MASK)))
    assert found.verdict == "fail"
    assert found.origin is not None
    assert "mask" in found.origin.key.site


def test_where_nothing_is_padded_nothing_stands_beside_the_whole(transformer: Any, tmp_path: Path) -> None:
    where = recorded(transformer, tmp_path / "gpu", TEXT, torch.ones_like(MASK))
    assert not [r.key.site for r in Golden.open(where).read_step(0).records if r.key.is_read]


class Block(torch.nn.Module):
    """Attends over image and text at once, by a mask that no module is given."""

    def __init__(self) -> None:
        super().__init__()
        self.unread, self.scale, self.out = 1.0, 1.0, torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask, x = torch.arange(12) < 9, x[:, None]
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x, mask.expand(1, 1, 12, 12))[:, 0]
        # As kernels with segment ids fill in what they like.
        return self.out(torch.where(mask[None, :, None], x * self.scale, self.unread))[:, :9]


class Joint(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return self.block(hidden_states)


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "pass"), (1.1, "fail")])
def test_the_mask_of_an_attention_call_counts(scale: float, verdict: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Joint()
    for name in ("gpu", "tpu"):
        with parity.record(tmp_path / name, transformer=model, scheduler=None, sites="all"):
            model(drawn(1, 12, 8), torch.tensor([500.0]))
        model.block.unread, model.block.scale = 0.0, scale
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == verdict, found.reason
    sites = {d.key.site: d for d in found.sites}
    assert ("padded" in sites["block.out:in.input"].note) == (verdict == "pass")
