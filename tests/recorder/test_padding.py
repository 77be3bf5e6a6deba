"""Rows of text that a mask leaves out: what a recording holds of them decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers")
from parity.compare.diff import diff
from parity.compare.independent import differences
from parity.golden import Golden
from tests.support.scripts import drawn, ltx, recorded, referenced

MASK = torch.tensor([[True] * 10 + [False] * 6])
ALL = torch.ones_like(MASK)
TEXT = drawn(1, 16, 32)


def record(where: Path, text: torch.Tensor, mask: torch.Tensor, *, once: bool = False, wrong: bool = False) -> Path:
    """One call of a transformer, as a loop would make it, perhaps with another activation where it reads its text."""
    transformer = ltx()[0].transformer
    if wrong:
        transformer.caption_projection.act_1 = torch.nn.SiLU()
    given = drawn(1, 12, 8, seed=3), text, torch.tensor([500.0]), mask
    call = lambda: transformer(*given, num_frames=3, height=2, width=2)  # noqa: E731
    go = recorded if once else referenced
    go(where, call, transformer=transformer, scheduler=None, sites="all")
    return where


def changed(rows: slice) -> torch.Tensor:
    text = TEXT.clone()
    text[:, rows] = 5.0
    return text


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("padding") / "gpu", TEXT, MASK)


@pytest.mark.parametrize(
    ("text", "mask", "origin"),
    [
        (changed(slice(10, 16)), MASK, ""),
        (changed(slice(9, 16)), MASK, ":in.encoder_hidden_states"),
        (TEXT, ALL, ":in.encoder_attention_mask"),
    ],
)
def test_read_rows_decide(text: torch.Tensor, mask: torch.Tensor, origin: str, reference: Path, tmp_path: Path) -> None:
    found = diff(reference, record(tmp_path / "tpu", text, mask, once=True))
    assert found.verdict == ("fail" if origin else "pass"), found.reason
    assert ("" if found.origin is None else found.origin.key.site) == origin
    given = next(d for d in found.sites if d.key.site == ":in.encoder_hidden_states")
    assert (given.note == "differs in padded rows alone, which no query reads") == (not origin)


SHIFTED = torch.tensor([[True] * 9 + [False] * 7])
MASK_ALONE = ["the argument encoder_attention_mask"]


@pytest.mark.parametrize(
    ("text", "mask", "listed"),
    [
        (changed(slice(10, 16)), ALL, MASK_ALONE),
        (changed(slice(10, 16)), SHIFTED, MASK_ALONE),
        (TEXT[:, :10], SHIFTED[:, :10], MASK_ALONE),
        (changed(slice(9, 16)), ALL, ["the argument encoder_hidden_states", *MASK_ALONE]),
    ],
)
def test_another_mask_is_the_only_difference_beside_other_padding(
    text: torch.Tensor, mask: torch.Tensor, listed: list[str], reference: Path, tmp_path: Path
) -> None:
    found = diff(reference, record(tmp_path / "tpu", text, mask, once=True))
    assert [d.place for d in differences(found)] == listed, found.reason


@pytest.mark.parametrize("length", [24, 12, 10])
@pytest.mark.parametrize(
    ("row", "wrong", "origin"),
    [
        (None, False, ""),
        (9, False, ":in.encoder_hidden_states"),
        (None, True, "caption_projection.act_1:out"),
    ],
)
def test_text_padded_to_another_length_is_compared_where_it_is_read(
    length: int, row: int | None, wrong: bool, origin: str, reference: Path, tmp_path: Path
) -> None:
    text, mask = (torch.nn.functional.pad(x, (*[0] * (2 * x.ndim - 3), 8)) for x in (TEXT, MASK))
    text[:, 16:] = 3.0
    if row is not None:
        text[:, row] = 5.0
    found = diff(reference, record(tmp_path / "tpu", text[:, :length], mask[:, :length], once=True, wrong=wrong))
    assert found.verdict == ("fail" if origin else "pass"), found.reason
    assert ("" if found.origin is None else found.origin.key.site) == origin
    assert len(differences(found)) == bool(origin)


ORDERS = {
    "moved": torch.arange(16).roll(2),
    "padded on the left": torch.arange(16).roll(6),
    "backwards": torch.arange(16).flip(0),
    "shuffled": torch.tensor([10, 3, 0, 12, 9, 11, 1, 13, 2, 8, 7, 15, 14, 4, 6, 5]),
    "cut": torch.arange(14).roll(2),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wrong", [False, True])
def test_order_of_rows_that_are_read_is_no_difference(order: str, wrong: bool, reference: Path, tmp_path: Path) -> None:
    text, mask = TEXT[:, ORDERS[order]], MASK[:, ORDERS[order]]
    found = diff(reference, record(tmp_path / "tpu", text, mask, once=True, wrong=wrong))
    assert found.verdict == ("fail" if wrong else "pass"), found.reason
    assert ("" if found.origin is None else found.origin.key.site) == "caption_projection.act_1:out" * wrong
    assert len(differences(found)) == wrong
    given = next(d for d in found.sites if d.key.site == ":in.encoder_hidden_states")
    assert given.note == "its rows that are read are the same in another order, or stand elsewhere"


@pytest.mark.parametrize(
    ("text", "mask", "origin"),
    [
        # As many rows that are read, others.
        (TEXT, MASK.roll(2, 1), ":in.encoder_attention_mask"),
        (TEXT.roll(2, 1) + 0.01, MASK.roll(2, 1), ":in.encoder_hidden_states"),
        # The same, but the mask does not say so: an attention sums over them.
        (TEXT[:, [1, 0, *range(2, 16)]], MASK, ""),
        # Two of which one alone is read.
        (TEXT[:, [15, *range(1, 15), 0]], MASK, ":in.encoder_hidden_states"),
        # All of them.
        (
            torch.nn.functional.pad(TEXT * MASK[..., None], (0, 0, 0, 8)),
            torch.ones(1, 24, dtype=torch.bool),
            ":in.encoder_attention_mask",
        ),
    ],
)
def test_other_rows_that_are_read_are_a_difference(
    text: torch.Tensor, mask: torch.Tensor, origin: str, reference: Path, tmp_path: Path
) -> None:
    found = diff(reference, record(tmp_path / "tpu", text, mask, once=True))
    assert ("" if found.origin is None else found.origin.key.site) == origin
    assert found.verdict == ("fail" if origin else "pass"), found.reason


@pytest.mark.parametrize(("first", "floors"), [(10, True), (9, False)])
def test_padding_that_is_another_in_each_run_takes_no_floors(first: int, floors: bool, tmp_path: Path) -> None:
    transformer, text = ltx()[0].transformer, TEXT.clone()

    def call() -> None:
        text[:, first:] += 1.0
        transformer(drawn(1, 12, 8, seed=3), text, torch.tensor([500.0]), MASK, num_frames=3, height=2, width=2)

    referenced(tmp_path / "gpu", call, transformer=transformer, scheduler=None)
    assert bool(Golden.open(tmp_path / "gpu").read_step(0).floors) == floors


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
def test_mask_of_an_attention_call_counts(scale: float, verdict: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Joint()
    for name in ("gpu", "tpu"):
        call = lambda: model(drawn(1, 12, 8), torch.tensor([500.0]))  # noqa: E731
        go = referenced if name == "gpu" else recorded
        go(tmp_path / name, call, transformer=model, scheduler=None, sites="all")
        model.block.unread, model.block.scale = 0.0, scale
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == verdict, found.reason
    sites = {d.key.site: d for d in found.sites}
    assert ("padded" in sites["block.out:in.input"].note) == (verdict == "pass")
