"""A module run again in another dtype, which its arguments may name too."""

from __future__ import annotations

import torch

from parity.hooks.calls import Call
from parity.hooks.rerun import rerun


class Embedding(torch.nn.Module):
    """Works in the dtype it is told, as Sana's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, hidden_dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.linear(x.sin().to(hidden_dtype))


def test_a_dtype_among_the_arguments_is_the_wider_one_too() -> None:
    module, x = Embedding(), torch.linspace(0, 1, 8).reshape(2, 4)
    call = Call("embedding", 0, ("cond",), (x,), {"hidden_dtype": torch.float32}, None)
    wide = rerun(module, call, torch.float64)
    assert wide.dtype == torch.float64
    narrow = rerun(module, call, None)
    assert narrow.dtype == torch.float32
    assert torch.allclose(wide.float(), narrow, atol=1e-6)
    kept = rerun(module, Call("", 0, (), (x,), {"hidden_dtype": torch.float64}, None), torch.float64, inputs=False)
    assert kept.dtype == torch.float64


class Positions(torch.nn.Module):
    """Takes a norm in float32 whatever it is given, as Cosmos' positions do: torch refuses to narrow float64 there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def test_a_norm_in_float32_does_not_keep_a_module_from_float64() -> None:
    x = torch.linspace(0.1, 1, 8).reshape(2, 4)
    call = Call("positions", 0, ("cond",), (x,), {}, None)
    wide = rerun(Positions(), call, torch.float64)
    assert wide.dtype == torch.float64
    assert torch.allclose(wide.square().sum(dim=-1), torch.ones(2, dtype=torch.float64), rtol=1e-15)
    assert rerun(Positions(), call, None).dtype == torch.float32


class Sinusoids(torch.nn.Module):
    """Makes its operand in float32 whatever its weights are, as Motif's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.conv = torch.nn.Conv1d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.linear(x.float().sin())
        scores = torch.nn.functional.scaled_dot_product_attention(made[None], x.float()[None], made[None])[0]
        return torch.matmul(self.conv(x.float()[None].mT)[0], scores)


def test_a_product_of_what_is_made_in_float32_is_widened() -> None:
    module, x = Sinusoids(), torch.linspace(0, 1, 8).reshape(2, 4)
    wide = rerun(module, Call("", 0, ("cond",), (x,), {}, None), torch.float64)
    assert wide.dtype == torch.float64
    assert torch.allclose(wide.float(), module(x), atol=1e-6)
