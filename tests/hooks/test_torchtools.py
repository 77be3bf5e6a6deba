"""Torch helpers: nests are walked whole, and known faults bind arguments however they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from diffusers.utils import BaseOutput

from parity.hooks.faults import wrong_from_here_on
from parity.hooks.torchtools import SDPA, leaves, mapped, named_arguments


class Named(NamedTuple):
    first: torch.Tensor
    rest: Any


@dataclass(frozen=True)
class Frozen:
    first: torch.Tensor
    rest: Any


@dataclass
class Output(BaseOutput):
    first: torch.Tensor
    rest: Any = None


@pytest.mark.parametrize("kind", [Named, Frozen, Output], ids=lambda kind: kind.__name__)
def test_tensors_are_changed_wherever_they_are_held(kind: Any) -> None:
    x = torch.ones(2)
    before = kind(x, [{"deep": (x, "text")}, None])
    after = mapped(lambda t: t + 1, before)
    assert type(after) is kind
    found = {name: item for name, item in leaves(after) if isinstance(item, torch.Tensor)}
    assert [float(item.sum()) for item in found.values()] == [4.0, 4.0]
    assert [name.rpartition(".")[2] for name in found] == ["0" if kind is Named else "first", "0"]
    assert float(before.first.sum()) == 2.0  # what was given stays


def test_an_argument_that_is_a_list_of_one_class_stays_one() -> None:
    assert mapped(lambda t: t, [torch.Size((1, 2))])[0] == (1, 2)
    assert mapped(lambda t: t, {"a": None, "b": 3}, str) == {"a": "None", "b": "3"}


@pytest.mark.parametrize("keywords", [False, True])
def test_a_fault_of_a_decoders_attention_takes_arguments_by_name_too(keywords: bool) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0))

    class Decoder(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(query=q, key=k, value=v) if keywords else attend(q, k, v)

    decoder, marks = Decoder(), list[str]()
    wrong_from_here_on(decoder, ["vae.attention=by_frame"], marks.append)
    out = decoder(torch.zeros(2, 1, 2, 1, 1))
    assert marks == ["vae.attention=by_frame"]
    frames = [SDPA(*(x[:, :, i : i + 4] for x in (q, k, v))) for i in (0, 4)]
    assert torch.allclose(out, torch.cat(frames, dim=2), atol=1e-6)


def test_a_decoder_with_a_fault_keeps_the_names_of_its_arguments() -> None:
    class Decoder(torch.nn.Module):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(hidden_states, (1, 1, 1, 1, 0, 0), mode="replicate")

    decoder, marks = Decoder(), list[str]()
    wrong_from_here_on(decoder, ["vae.padding=zeros"], marks.append)
    z = torch.ones(1, 1, 1, 2, 2)
    assert list(named_arguments(decoder, (z,), {})) == ["hidden_states"]
    assert (float(decoder(z).sum()), marks) == (4.0, ["vae.padding=zeros"])
