"""Norms and activations operation by operation: farther from the truth than fused ones, and the same in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from parity.paths.closer.stepwise import Stepwise  # noqa: E402

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (64,), torch.full_like(x[0], 1.5), torch.full_like(x[0], 0.3)),
    "layer_norm module": lambda x: torch.nn.LayerNorm(64, elementwise_affine=False)(x),
    "rms_norm": lambda x: F.rms_norm(x, (64,), torch.full_like(x[0], 1.5), 1e-6),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rounds_more_often_and_computes_the_same(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    truth = function(x.float())

    def error(y: torch.Tensor) -> float:
        assert y.dtype == torch.bfloat16
        return float((y.float() - truth).norm() / truth.norm())

    with Stepwise():
        stepwise = function(x)
        assert torch.equal(function(x.float()), truth)  # fused, as ever, where nothing is narrow
    assert 1.1 * error(function(x)) < error(stepwise) < 1e-2
