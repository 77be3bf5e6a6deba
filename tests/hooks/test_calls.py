"""Module calls handed over with their inputs, run again in another dtype, and seen of objects that have no hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity.hooks.calls import Call, calls_of, mapped, retyped
from parity.hooks.objects import objects_of, watched
from parity.hooks.rerun import rerun


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, rest: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
        out = x * scale
        x.zero_()  # modules may write to what they are given
        return out


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.inner(x.clone(), scale=torch.tensor(2.0))
        return self.inner(first, scale=torch.tensor(3.0), rest=(x, x + 1))


def collected(model: torch.nn.Module, handle: Callable[[Call], object] = lambda call: None) -> list[Call]:
    found: list[Call] = []
    with calls_of(model, ["inner"], ("cond",), lambda call: (found.append(call), handle(call))[0]):
        model(torch.ones(2, 3))
    return found


def test_each_call_has_its_inputs_from_before_the_module_wrote_to_them() -> None:
    first, second = collected(Outer())
    assert [(c.module, c.number, c.branches) for c in (first, second)] == [("inner", i, ("cond",)) for i in (0, 1)]
    found = (first.args[0], second.args[0], second.kwargs["rest"][1], second.output)
    assert [bool((x == value).all()) for x, value in zip(found, (1, 2, 2, 6), strict=True)] == [True] * 4


def test_calls_made_while_handling_one_are_not_handed_over() -> None:
    model = Outer()
    assert len(collected(model, lambda call: model.inner(torch.ones(1), scale=torch.tensor(1.0)))) == 2
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks


def test_inputs_take_the_dtypes_of_their_sites() -> None:
    (call, second) = collected(Outer())
    changed = retyped(Inner(), second, {"inner:in.x": torch.bfloat16, "inner:in.rest.1": torch.float16})
    dtypes = [x.dtype for x in (changed.args[0], changed.kwargs["scale"], *changed.kwargs["rest"])]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float32, torch.float16]
    assert retyped(Inner(), call, {}).args[0].dtype == torch.float32
    nest = {"a": (torch.ones(1), None, [torch.ones(2), 3]), "b": "text"}
    assert mapped(lambda x: x.numel(), nest) == {"a": (1, None, [2, 3]), "b": "text"}


# --- again in another dtype ------------------------------------------------------------------------------------


class Embedding(torch.nn.Module):
    """Works in the dtype that an argument names, as Sana's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, hidden_dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.linear(x.sin().to(hidden_dtype))


class Positions(torch.nn.Module):
    """Takes a norm in float32 whatever it is given, as Cosmos' positions do: torch refuses to narrow float64 there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


class Sinusoids(torch.nn.Module):
    """Makes its operand in float32 whatever its weights are, as Motif's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.linear(x.float().sin())
        scores = torch.nn.functional.scaled_dot_product_attention(made[None], x.float()[None], made[None])[0]
        return torch.matmul(self.conv(x.float()[None].mT)[0], scores)


@pytest.mark.parametrize(
    ("module", "kwargs"), [(Embedding(), {"hidden_dtype": torch.float32}), (Positions(), {}), (Sinusoids(), {})]
)
def test_a_module_is_run_again_in_float64(module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    x = torch.linspace(0.1, 1, 8).reshape(2, 4)
    call = Call("module", 0, ("cond",), (x,), kwargs, None)
    wide, narrow = rerun(module, call, torch.float64), rerun(module, call, None)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(wide.float(), narrow, atol=1e-6)
    assert not torch.equal(wide, narrow.double())  # computed in float64, not only returned so
    if isinstance(module, Positions):
        assert torch.allclose(wide.square().sum(dim=-1), torch.ones(2, dtype=torch.float64), rtol=1e-15)


# --- objects without hooks -------------------------------------------------------------------------------------


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
        return self.layers[1]["inner"](self.layers[0](x))  # type: ignore[index, operator]


def test_calls_of_a_copy_are_seen_and_the_classes_are_restored() -> None:
    seen: list[tuple[str, str, Any]] = []
    before = Leaf.__call__, Top.__call__
    assert set(objects_of(Top())) == {"", "first", "layers.0", "layers.1.inner"}
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
    with pytest.raises(ValueError, match="too large"), watched(Top(), lambda *what: seen.append(what)):
        Top()(101)
    assert (Leaf.__call__, Top.__call__) == before


def test_flax_nnx_modules_are_objects() -> None:
    nnx, jnp = pytest.importorskip("flax.nnx"), pytest.importorskip("jax.numpy")

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


@pytest.mark.parametrize("is_unrolled", [False, True])
def test_flax_linen_modules_are_named_by_linen(is_unrolled: bool) -> None:
    """A layer, two in a scan and one that is checkpointed: within the scan there are tracers, unless it is unrolled."""
    jax, nn = pytest.importorskip("jax"), pytest.importorskip("flax.linen")

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
            self.layers = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)()
            self.last = nn.remat(Layer)()

        def __call__(self, x: Any) -> Any:
            return self.last(self.layers(self.first(x), None)[0])

    def is_concrete(value: Any) -> bool:
        return not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(value))

    net, x = Net(), jax.numpy.ones((1, 3, 4))
    weights = net.init(jax.random.key(0), x)
    seen: list[tuple[str, Any]] = []
    with jax.disable_jit(is_unrolled), watched(net, lambda p, q, v: seen.append((f"{p}:{q}", v)), is_concrete):
        net.apply(weights, x)
    sites, known = [site for site, _ in seen], dict(seen)
    assert (sites[0], sites[-1]) == (":in.x", ":out")
    assert {"first:in.x", "first.inner:in.inputs", "first.inner:out", "first:out"} <= set(sites)
    layers = ["layers.0.layer:out", "layers.1.layer:out"] if is_unrolled else []
    assert [site for site in sites if site.endswith("layer:out")] == layers
    if is_unrolled:
        assert known["layers.1.layer:in.x"] is known["layers.0.layer:out"]
