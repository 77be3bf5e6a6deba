"""Observing callable objects that have no hooks, Flax NNX among them."""

from __future__ import annotations

from typing import Any

import pytest

from parity.hooks.objects import objects_of, watched


class Leaf:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int, *, twice: bool = False) -> int:
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
        x = self.first(x, twice=True)
        return self.layers[1]["inner"](self.layers[0](x))


def test_objects_are_named_by_where_they_stand_the_first_time() -> None:
    assert set(objects_of(Top())) == {"", "first", "layers.0", "layers.1.inner"}


def test_calls_of_a_copy_are_seen_and_the_classes_put_back() -> None:
    seen: list[tuple[str, str, Any]] = []
    before = Leaf.__call__, Top.__call__
    with watched(Top(), lambda *what: seen.append(what)):
        assert Top()(1) == 30
        Leaf(7)(1)  # of no tree
    assert seen == [
        ("", "in.x", 1),
        ("first", "in.x", 1),
        ("first", "in.twice", True),
        ("first", "out", 2),
        ("layers.0", "in.x", 2),
        ("layers.0", "out", 6),
        ("layers.1.inner", "in.x", 6),
        ("layers.1.inner", "out", 30),
        ("", "out", 30),
    ]
    assert (Leaf.__call__, Top.__call__) == before


def test_a_call_that_raises_leaves_nothing_behind() -> None:
    seen: list[tuple[str, str, Any]] = []
    before = Leaf.__call__
    with pytest.raises(ValueError, match="too large"), watched(Top(), lambda *what: seen.append(what)):
        Top()(101)
    assert Leaf.__call__ is before


def test_flax_nnx_modules_are_objects() -> None:
    nnx = pytest.importorskip("flax.nnx")
    jnp = pytest.importorskip("jax.numpy")

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.inner = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    seen: list[str] = []
    graph, state = nnx.split(Net())
    with watched(Net(), lambda path, port, value: seen.append(f"{path}:{port}")):
        nnx.merge(graph, state)(jnp.ones((1, 3)))
    assert {"inner:out", ":out"} <= set(seen)


def _linen() -> tuple[Any, Any, Any]:
    """A linen model of a layer, two in a scan and one that is checkpointed; its weights and input."""
    jax = pytest.importorskip("jax")
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any = None) -> Any:
            return x + nn.Dense(4, name="inner")(x)

    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry: Any, _: Any) -> Any:
            return Layer(name="layer")(carry), None

    class Net(nn.Module):
        def setup(self) -> None:
            self.first = Layer()
            scanned = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            self.layers = scanned()
            self.last = nn.remat(Layer)()

        def __call__(self, x: Any) -> Any:
            return self.last(self.layers(self.first(x), None)[0])

    net, x = Net(), jax.numpy.ones((1, 3, 4))
    return net, net.init(jax.random.key(0), x), x


def test_flax_linen_modules_are_named_by_linen() -> None:
    net, weights, x = _linen()
    seen: list[str] = []
    with watched(net, lambda path, port, value: seen.append(f"{path}:{port}"), _no_tracer):
        net.apply(weights, x)
    assert seen[:5] == [":in.x", "first:in.x", "first.inner:in.inputs", "first.inner:out", "first:out"]
    assert seen[-1] == ":out"
    assert not any("layers" in site for site in seen), "within the scan there are tracers"


def test_layers_of_an_unrolled_scan_are_told_apart() -> None:
    jax = pytest.importorskip("jax")
    net, weights, x = _linen()
    seen: list[tuple[str, Any]] = []
    with jax.disable_jit(), watched(net, lambda path, port, value: seen.append((f"{path}:{port}", value)), _no_tracer):
        net.apply(weights, x)
    known = dict(seen)
    assert [site for site, _ in seen if site.endswith("layer:out")] == ["layers.0.layer:out", "layers.1.layer:out"]
    assert known["layers.1.layer:in.x"] is known["layers.0.layer:out"]
    assert known["layers.0.layer.inner:out"].shape == (1, 3, 4)


def _no_tracer(value: Any) -> bool:
    jax = pytest.importorskip("jax")
    return not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(value))
