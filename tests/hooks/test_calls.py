"""Modules in a wider dtype than they were made for, and calls of objects that have no hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from parity.hooks.objects import objects_of, watched
from parity.hooks.torchtools import widest


class Sinusoids(torch.nn.Module):
    """Makes its operand in float32 whatever its weights are, as Motif's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.linear(x.float().sin())
        scores = torch.nn.functional.scaled_dot_product_attention(made[None], x.float()[None], made[None])[0]
        return torch.matmul(self.conv(x.float()[None].mT)[0], scores)


def test_a_module_runs_in_float64_whatever_it_makes_in_float32() -> None:
    module, x = Sinusoids(), torch.linspace(0.1, 1, 8).reshape(2, 4)
    weights = {name: w.double() for name, w in module.named_parameters()}
    with widest():
        wide, narrow = torch.func.functional_call(module, weights, (x.double(),)), module(x)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(wide.float(), narrow, atol=1e-6)
    assert not torch.equal(wide, narrow.double())  # computed in float64, not only returned so


# --- objects without hooks -------------------------------------------------------------------------------------


class Leaf:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int, *, module: bool = False) -> int:
        if x > 100:
            raise ValueError("too large")
        return x * self.factor


class Top:
    def __init__(self) -> None:
        self.first = Leaf(2)
        self.layers = [Leaf(3), {"inner": Leaf(5)}]
        self.again = self.first
        self.activation = abs

    def __call__(self, x: int) -> int:
        x = self.first(x, module=True)
        return self.layers[1]["inner"](self.layers[0](x))  # type: ignore[index, operator]


class Told:
    """What is seen, in order; of the arguments of a call their names come first."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, Any]] = []
        self.names: list[tuple[str, list[str]]] = []

    def given(self, path: str, named: Mapping[str, Any]) -> None:
        self.names.append((path, [*named]))

    def see(self, path: str, port: str, value: Any) -> None:
        self.told.append((path, port, value))


def test_calls_of_a_copy_are_seen_and_the_classes_are_restored() -> None:
    seen = Told()
    before = Leaf.__call__, Top.__call__
    assert set(objects_of(Top())) == {"", "first", "layers.0", "layers.1.inner"}
    with watched(Top(), seen, lambda value: True):
        assert Top()(1) == 30
        Leaf(7)(1)  # of no tree
    assert seen.told == [
        ("", "in.x", 1),
        ("first", "in.x", 1),
        ("first", "in.module", True),
        ("first", "out", 2),
        ("layers.0", "in.x", 2),
        ("layers.0", "out", 6),
        ("layers.1.inner", "in.x", 6),
        ("layers.1.inner", "out", 30),
        ("", "out", 30),
    ]
    with (
        pytest.raises(ValueError, match="too large"),
        watched(Top(), seen, lambda value: True),
    ):
        Top()(101)
    assert (Leaf.__call__, Top.__call__) == before


def test_what_a_flax_transformation_rebuilds_has_the_name_of_what_it_was_made_of() -> None:
    nnx = pytest.importorskip("flax.nnx")
    import jax

    from parity.paths.jax.tracing import inlining

    class Block(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:
            self.fc = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.fc(x)

    def stacked(*counts: int, made: Any = Block) -> Any:
        for count in reversed(counts):
            made = nnx.split_rngs(splits=count)(nnx.vmap(made, in_axes=0, out_axes=0))
        return made(nnx.Rngs(0))

    def through(call: Any, **options: Any) -> Any:
        return nnx.scan(call, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **options)

    class Scanned(Block):
        __call__ = nnx.scan(Block.__call__, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)

    class Around(nnx.Module):
        def __init__(self) -> None:
            self.layers = stacked(2)

        def __call__(self, x: Any) -> Any:
            return through(lambda x, block: block(x))(x, self.layers)

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.around, self.scanned = Around(), stacked(2, made=Scanned)
            self.head, self.first, self.second, self.groups = Block(nnx.Rngs(0)), stacked(3), stacked(2), stacked(2, 2)
            self.each = nnx.List([Block(nnx.Rngs(0)), Block(nnx.Rngs(0))])

        def __call__(self, x: Any) -> Any:
            call = through(lambda x, block: block(x))
            x = self.head(call(x, self.second))
            x = through(lambda x, block: block.fc(x), reverse=True)(x, self.first)
            x = through(call)(x, self.groups)
            for block in reversed(self.each):
                x = nnx.remat(lambda block, x: block(x))(block, x)
            x = self.scanned(self.around(x))
            return Block(nnx.Rngs(1))(x)  # of no tree

    seen = Told()
    net = Net()
    graph, state = nnx.split(net)
    with watched(net, seen, lambda _: True), inlining():
        jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x))(state, jax.numpy.ones((1, 3)))
    called = [
        "second.0",
        "second.1",
        "head",
        "first.2.fc",
        "first.1.fc",
        "first.0.fc",
        *(f"groups.{i}" for i in range(4)),
    ]
    called += ["each.1", "each.0", "around.layers.0", "around.layers.1"]
    ended = [path for path, port, _ in seen.told if port == "out"]
    behind = ["around", "scanned.0.fc", "scanned.1.fc", "scanned", ""]
    assert ended == [
        *(at for name in called for at in ([] if name.endswith("fc") else [f"{name}.fc"]) + [name]),
        *behind,
    ]
