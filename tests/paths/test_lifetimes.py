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
from parity.hooks.tap import EVERY, Item
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


class Modulated(torch.nn.Module):
    """A block that is modulated, looks at four large tensors, and hands a part of one to a module in it."""

    def __init__(self, seen: Any) -> None:
        super().__init__()
        self.seen, self.after = seen, torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        x = x * temb
        for i in range(4):
            self.seen(x + i)
        return self.after(x[:, 2:])


class Two(torch.nn.Module):
    def __init__(self, seen: Any) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Modulated(seen) for _ in range(2))

    def forward(self, x: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, temb)
            self.blocks[0].seen(x)
        return x


def test_a_block_waits_on_what_modulates_it_and_a_module_after_an_attention_on_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_jax, "SMALL", 16)
    monkeypatch.setattr(lifetimes, "SMALL", 16)
    reducer = BatchingReducer()
    model = Two(reducer.reduce)
    weights = {n: jnp.asarray(x.detach().numpy()) for n, x in model.named_parameters()}

    def run(weights: Any, x: jax.Array, temb: jax.Array) -> Any:
        with (
            torchax.default_env(),
            torch.no_grad(),
            stateless._reparametrize_module(model, interop.torch_view(weights)),
            bounded(model, reducer),
        ):
            out = model(interop.torch_view(x), interop.torch_view(temb))
            return array_of(out), reducer.finish()

    program = jax.make_jaxpr(run)(weights, jnp.ones((1, 16, 8)), jnp.ones((1, 1, 8)))
    waiting = [e.invars[0].aval.shape for e in program.eqns if e.primitive.name == "optimization_barrier"]
    # Inside the first block, where the second begins, inside the second.
    assert waiting == [(1, 14, 8), (1, 1, 8), (1, 12, 8)]


def test_what_xla_reduces_on_a_tpu_stands_apart_from_what_computes_it() -> None:
    """Else its reductions become a part of the product that makes the tensor, which then is another product."""

    def run(x: jax.Array, apart: bool) -> Any:
        reducer = BatchingReducer(lambda x, start, stop, items: None) if apart else BatchingReducer()
        reducer.reduce(interop.torch_view(x * 2))
        return reducer.finish()

    for shape in ((4, 8), (1 << 10, 1 << 9)):
        for apart in (False, True):
            with torchax.default_env():
                program = jax.make_jaxpr(lambda x, apart=apart: run(x, apart))(jnp.ones(shape))
            first = [e.primitive.name for e in program.eqns[:2]]
            assert (first == ["mul", "optimization_barrier"]) == apart, (shape, apart, first)


def test_a_batch_is_reduced_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both branches' items by one call over the whole tensor, each given its own; another's rows by another call."""
    monkeypatch.setattr(batch_jax, "SMALL", 16)
    asked: list[tuple[tuple[int, ...], int, int, int]] = []

    def large(x: jax.Array, start: int, stop: int, items: int) -> list[dict[str, jax.Array]]:
        asked.append((x.shape, start, stop, items))
        return [{"sketch": x[i, start:stop].sum()} for i in range(items)]

    def run(x: jax.Array) -> Any:
        reducer, whole = BatchingReducer(large), interop.torch_view(x * 2)
        for rows in (EVERY, slice(2, 6)):
            for i in range(2):
                reducer.reduce(whole[i : i + 1], rows, Item(whole, i, 2))
        return reducer.finish()

    x = jnp.arange(2 * 8 * 8, dtype=jnp.float32).reshape(2, 8, 8)
    with torchax.default_env():
        found = jax.jit(run)(x)
    assert asked == [((2, 8, 8), 0, 8, 2), ((2, 8, 8), 2, 6, 2)]
    assert [float(f["sketch"]) for f in found] == [
        float(2 * x[i, r].sum()) for r in (EVERY, slice(2, 6)) for i in (0, 1)
    ]
