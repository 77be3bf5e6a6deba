"""Planted faults: each changes what it says where the model has it, says how often, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity.hooks.plant import KINDS, planted

BY_NAME = {kind.name: kind for kind in KINDS}
MASK = torch.tensor([[1, 1, 1, 0]])


class Inner(torch.nn.Module):
    """Turns and attends, and hands its table on to itself once."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.inner = Inner(depth - 1) if depth else None
        self.norm = torch.nn.LayerNorm(4, eps=1e-6)

    def forward(self, x: torch.Tensor, rotary_emb: Any, mask: torch.Tensor | None) -> torch.Tensor:
        if self.inner is not None:
            return self.inner(x, rotary_emb, mask)
        cos, sin = rotary_emb
        turned = x * cos + x.flip(-1) * sin
        bias = None if mask is None else mask.bool()[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(turned, turned, x, bias)
        return self.norm(torch.nn.functional.gelu(out, approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Inner()

    def forward(
        self,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        table = torch.full((4, 4), 0.6), torch.full((4, 4), 0.8)
        x = self.block(encoder_hidden_states, rotary_emb=table, mask=encoder_attention_mask)
        return x * timestep if guidance is None else x * timestep + guidance


def given() -> dict[str, torch.Tensor]:
    text = torch.arange(16.0).reshape(1, 4, 4).sin()
    return {
        "encoder_hidden_states": text,
        "timestep": torch.tensor([3.0]),
        "encoder_attention_mask": MASK,
        "guidance": torch.tensor([2.0]),
    }


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.name != "pooled text"])
def test_each_kind_changes_the_output_and_leaves_nothing_behind(name: str) -> None:
    model, inputs = Model(), given()
    before = model(**inputs)
    with planted(model, BY_NAME[name]) as done:
        wrong = model(**inputs)
    assert done.count > 0
    assert not torch.equal(wrong, before)
    assert torch.equal(model(**inputs), before)


def test_what_a_model_does_not_have_is_not_changed() -> None:
    model = Model()
    inputs = {k: x for k, x in given().items() if k in ("encoder_hidden_states", "timestep")}
    for name in ("text mask", "attention mask", "guidance", "pooled text"):
        with planted(model, BY_NAME[name]) as done:
            model(**inputs)
        assert done.count == 0, name
    with planted(model, BY_NAME["text mask"]) as done:
        model(**inputs, encoder_attention_mask=torch.ones(1, 4))
    assert done.count == 0, "nothing is padded"


def test_the_order_is_that_of_the_valid_tokens() -> None:
    seen: list[torch.Tensor] = []
    model = Model()
    model.block.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with planted(model, BY_NAME["text order"]):
        model(**given())
    (x,), text = seen, given()["encoder_hidden_states"]
    assert torch.equal(x, text[:, [2, 1, 0, 3]])


def test_a_table_that_is_handed_on_is_turned_once() -> None:
    model = Model()
    with planted(model, BY_NAME["rotary reversed"]) as done:
        model(**given())
    assert done.count == 1


@pytest.mark.parametrize("pack", [lambda t: t, lambda t: (t, t), lambda t: [t]])
def test_complex_tables_are_turned_too(pack: Any) -> None:
    table = torch.polar(torch.ones(4, 2), torch.full((4, 2), 0.3))
    seen: list[Any] = []

    class Block(torch.nn.Module):
        def forward(self, freqs_cis: Any) -> None:
            seen.append(freqs_cis)

    model = torch.nn.Sequential()
    model.add_module("block", Block())
    for name, expected in (("rotary dropped", torch.ones(4, 2)), ("rotary reversed", table.conj())):
        with planted(model, BY_NAME[name]):
            model.get_submodule("block")(pack(table))
        found = seen.pop()
        for x in (found,) if isinstance(found, torch.Tensor) else found:
            assert torch.equal(x.resolve_conj(), expected.to(x.dtype).resolve_conj())
