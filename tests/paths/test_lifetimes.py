"""Observed tensors end with their block: the next block waits for their reductions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchax")

import jax
import jax.numpy as jnp
import torch
import torchax
from torch.nn.utils import stateless
from torchax import interop

from parity.hooks.reduce import batch_jax
from parity.hooks.reduce.batch_jax import BatchingReducer, array_of
from parity.paths.jax import lifetimes
from parity.paths.jax.lifetimes import bounded


class Model(torch.nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def operations(shape: tuple[int, ...], observed: bool) -> list[str]:
    """What the trace of a call is made of, in order; the first block's output is reduced where it is observed."""
    model, reducer = Model(), BatchingReducer()
    weights = {n: jnp.asarray(x.detach().numpy()) for n, x in model.named_parameters()}
    if observed:
        model.blocks[0].register_forward_hook(lambda module, args, out: reducer.reduce(out) and None)

    def run(weights: Any, x: jax.Array) -> Any:
        views = interop.torch_view(weights)
        with (
            torchax.default_env(),
            torch.no_grad(),
            stateless._reparametrize_module(model, views),
            bounded(model, reducer),
        ):
            out = model(interop.torch_view(x))
            return array_of(out), reducer.finish()

    names: list[str] = []

    def walk(jaxpr: Any) -> None:
        for e in jaxpr.eqns:
            names.append(e.primitive.name)
            for inner in e.params.values():
                if hasattr(inner, "jaxpr"):
                    walk(inner.jaxpr)

    walk(jax.make_jaxpr(run)(weights, jnp.ones(shape)).jaxpr)
    return names


def test_the_next_block_waits_for_what_was_seen_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_jax, "SMALL", 16)
    monkeypatch.setattr(lifetimes, "SMALL", 16)
    large = operations((1, 16, 8), observed=True)
    first, second = _first_two(large)
    between = large[first:second]
    assert between.index("reduce_max") < len(between) - 1 - between[::-1].index("optimization_barrier")
    assert "optimization_barrier" not in large[second:]
    assert "optimization_barrier" not in operations((1, 16, 8), observed=False)


def _first_two(names: list[str]) -> tuple[int, int]:
    first, second, *_ = (i for i, n in enumerate(names) if n == "dot_general")
    return first, second


def test_small_tensors_are_not_waited_for() -> None:
    names = operations((1, 16, 8), observed=True)
    first, second = _first_two(names)
    assert "reduce_max" not in names[first:second]
    assert "optimization_barrier" not in names[first:second]
