"""How far a chip's elementary functions may move what torch functions give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from parity.hooks.elementary import reach
from parity.hooks.perturb import perturbed
from parity.settings.elementary import CHIPS, EPS

X = torch.linspace(-4, 4, 4096).reshape(64, 64)
V6E = CHIPS["v6e"]

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "exp": (torch.exp, 33 * EPS),
    "sigmoid": (torch.sigmoid, 4e-5),
    "silu": (functional.silu, 4e-5),
    "gelu": (lambda x: functional.gelu(x, approximate="tanh"), 2e-6),
    "erf gelu": (functional.gelu, 1e-5),
    "softmax": (lambda x: x.softmax(-1), 35 * EPS),
    "attention": (lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0], 35 * EPS),
    "norm": (lambda x: functional.layer_norm(x, (64,)), 2 * EPS),
    "root": (lambda x: torch.rsqrt(x.abs() + 1), 2 * EPS),
    "named argument": (lambda x: functional.gelu(input=x, approximate="tanh"), 2e-6),
    "quotient": (lambda x: 1 / (x.abs() + 1), 2 * EPS),
    "power": (lambda x: 10.0**x, 8 * EPS),
}


class Of(torch.nn.Module):
    """A module with weights, so that no rule but the chip's moves what it computes inside."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, torch.nn.Parameter(torch.zeros(1))
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.function(X)
        return x + self.scale


def inside(function: Callable[[torch.Tensor], torch.Tensor], chip: str) -> torch.Tensor:
    module = Of(function)
    with torch.no_grad(), perturbed(module, 5, chip=chip):
        module(X)
    assert module.seen is not None
    return module.seen


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_move_by_what_their_chip_may_be_off_anywhere_in_a_model(name: str) -> None:
    function, about = FUNCTIONS[name]
    exact = function(X)
    assert torch.equal(inside(function, "none"), exact)
    off = (inside(function, "v6e") - exact).norm() / exact.norm()
    assert about / 8 < off < about


@pytest.mark.parametrize(
    "function", [lambda x: x / 3, lambda x: x**2, lambda x: x * x, lambda x: x.bfloat16().exp().float(), torch.relu]
)
def test_what_every_chip_computes_alike_stays(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert torch.equal(inside(function, "v4"), function(X))


def test_the_first_of_several_results_moves() -> None:
    """flex_attention gives its log-sum-exp beside its output."""
    from torch.nn.attention import flex_attention

    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True

    def attention(x: torch.Tensor) -> torch.Tensor:
        return flex_attention.flex_attention(*[x[None, None]] * 3)[0, 0]

    off = (inside(attention, "v6e") - attention(X)).abs().max()
    assert 0 < off < 1e-4


def test_a_chip_without_bounds_moves_nothing_and_others_are_of_the_results_shape() -> None:
    out = torch.tanh(X)
    found = reach("tanh", out, (X,), {}, CHIPS["v5e"])
    assert found is not None
    assert found.shape == out.shape
    assert torch.allclose(found, torch.full_like(out, 5e-4))
    assert reach("tanh", out.half(), (X,), {}, V6E) is None
    assert reach("relu", out, (X,), {}, V6E) is None


def test_infinities_stay() -> None:
    found = inside(lambda x: torch.exp(torch.tensor([[200.0, -torch.inf]])), "v5e")
    assert found.tolist() == [[torch.inf, 0.0]]


def test_what_watches_functions_within_sees_what_the_chip_gives() -> None:
    """A tap watches attention so, and a descent operations: their floors are those of moved results."""
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "softmax":
                seen.append(out)
            return out

    seen: list[torch.Tensor] = []
    module = Of(lambda x: x.softmax(-1))
    with torch.no_grad(), perturbed(module, 5, chip="v6e"), Watching():
        module(X)
    assert module.seen is not None
    assert torch.equal(seen[0], module.seen)
    assert not torch.equal(seen[0], X.softmax(-1))
    with torch.no_grad(), perturbed(module, 5, chip="v6e"):
        assert torch.equal(torch.exp(X), X.exp())  # outside of the model's calls
    assert torch.equal(torch.exp(X), X.exp())
