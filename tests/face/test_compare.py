"""`parity.compare` and `parity.assert_parity`: functions and modules of torch, torchax, JAX and Flax in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import parity
from parity.errors import UsageError

jax = pytest.importorskip("jax")
pytest.importorskip("torchax")
jnp = jax.numpy


class Block(torch.nn.Module):
    def __init__(self, width: int, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(torch.tanh(self.up(x)))


class Net(torch.nn.Module):
    """Two outputs, and arguments that are no tensors."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block(8, gain if i else 1.0) for i in range(2))

    def forward(self, x: torch.Tensor, scale: float = 1.0, mask: torch.Tensor | None = None) -> Any:
        for block in self.blocks:
            x = block(x)
        return x * scale, x.mean(1)


NET, WRONG = Net(), Net(gain=1.01)
X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
WEIGHTS = {name: jnp.asarray(w.detach().numpy()) for name, w in NET.state_dict().items()}


def in_jax(x: Any, scale: float = 1.0, mask: Any = None) -> Any:
    for i in range(2):
        name = f"blocks.{i}"
        h = jnp.tanh(x @ WEIGHTS[f"{name}.up.weight"].T + WEIGHTS[f"{name}.up.bias"])
        x = x + h @ WEIGHTS[f"{name}.down.weight"].T + WEIGHTS[f"{name}.down.bias"]
    return x * scale, x.mean(1)


def on_torchax(model: torch.nn.Module, *, compiled: bool = False) -> torch.nn.Module:
    import torchax

    with torchax.default_env():
        moved = copy.deepcopy(model).to("jax")
        return torchax.compile(moved) if compiled else moved


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


CANDIDATES: dict[str, Callable[[], Any]] = {
    "the module itself": lambda: NET,
    "a function that calls it": lambda: lambda x, scale, mask: NET(x, scale, mask),
    "moved to torchax": lambda: on_torchax(NET),
    "compiled by torchax": lambda: on_torchax(NET, compiled=True),
    "a JAX function": lambda: in_jax,
    "a jitted one": lambda: jax.jit(in_jax),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_whoever_computes_the_same_passes(name: str) -> None:
    result = parity.compare(NET, CANDIDATES[name](), {"x": X, "scale": 2.0, "mask": None})
    assert (result.verdict, result.origin) == ("pass", None)
    (step,) = result.steps
    assert 1e-8 < step.noise_pred.floor < 1e-5


def test_the_first_module_that_differs_is_named_and_a_torch_module_may_run_on_torchax() -> None:
    for runs in ("torch", "torchax"):
        result = parity.compare(NET, WRONG, (X,), runs=runs)
        assert result.verdict == "fail"
        assert result.origin is not None
        assert (result.origin.key.site, result.origin.birth) == ("blocks.1:out", "module")
        assert "blocks.1 output" in result.reason


def test_other_weights_are_named_and_placed() -> None:
    other = copy.deepcopy(NET)
    with torch.no_grad():
        other.blocks[1].up.weight[0, 0] += 1e-2
    result = parity.compare(NET, other, X)
    assert result.failed == "preflight"
    assert "'blocks.1.up.weight'" in result.reason
    assert result.origin is not None
    assert result.origin.key.site == "blocks.1.up:out"


class Turned(torch.nn.Module):
    """A linear layer that keeps its weight as JAX does."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(linear.weight.T.contiguous()), linear.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input @ self.weight + self.bias


def test_weights_in_another_layout_are_no_fault_where_all_sites_agree() -> None:
    other: Any = copy.deepcopy(NET)
    for block in other.blocks:
        block.up = Turned(block.up)
    result = parity.compare(NET, other, X)
    assert (result.verdict, result.failed) == ("pass", None)
    (weights,) = [check for check in result.preflight if check.check == "weights"]
    assert weights.verdict == "explained"
    assert "in another layout, as all sites agree" in weights.detail


@pytest.mark.parametrize(
    ("reference", "candidate", "site"),
    [
        (NET, lambda x: (in_jax(x)[0] * 1.0001, in_jax(x)[1]), ":out.0"),
        (NET, lambda x: (in_jax(x)[0], in_jax(x)[1] * 1.001), ":out.1"),
        (in_jax, lambda x: in_jax(x)[0] * 1.0001, "loop:noise_pred"),
        (softmax, lambda x: jax.nn.softmax(x, axis=-2), "loop:noise_pred"),
        (lambda x: NET(x)[0], lambda x: WRONG(x)[0], "blocks.1:out"),
        (NET, lambda x: NET(x)[0][:, :4], "loop:noise_pred"),
    ],
)
def test_what_differs_fails_where_it_does(reference: Any, candidate: Any, site: str) -> None:
    result = parity.compare(reference, candidate, X)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert site in (result.origin.key.site, *(d.key.site for d in result.sites if d.verdict == "fail"))


def test_functions_without_weights_and_arrays_of_numpy_s() -> None:
    x, turn = X.numpy(), torch.polar(torch.ones(5, 4), X[0, :, :4]).numpy()
    assert parity.compare(softmax, lambda x: jax.nn.softmax(x, axis=-1), x).passed

    def rotated(x: torch.Tensor, turn: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn["table"]).flatten(-2)

    def rotated_in_jax(x: Any, turn: Any) -> Any:
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        out = jax.lax.complex(pairs[..., 0], pairs[..., 1]) * turn["table"]
        return jnp.stack([out.real, out.imag], axis=-1).reshape(x.shape)

    inputs = {"x": x, "turn": {"table": turn}}
    assert parity.compare(rotated, rotated_in_jax, inputs).passed
    assert not parity.compare(
        rotated, lambda x, turn: rotated_in_jax(x, {"table": turn["table"].conj()}), inputs
    ).passed


def test_a_flax_module_is_observed_by_its_names() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, i: int) -> None:
            self.up, self.up_bias, self.down, self.down_bias = (
                nnx.Param(WEIGHTS[f"blocks.{i}.{name}"])
                for name in ("up.weight", "up.bias", "down.weight", "down.bias")
            )
            self.gain = 1.0

        def __call__(self, x: Any) -> Any:
            h = jnp.tanh(x @ self.up[...].T + self.up_bias[...])
            return x + self.gain * (h @ self.down[...].T + self.down_bias[...])

    class Flax(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, gain: float) -> None:
            self.layers = nnx.List([Layer(0), Layer(1)])
            self.layers[1].gain = gain

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x, x.mean(1)

    rename = {r"layers\.(\d+)": r"blocks.\1"}
    assert parity.compare(NET, Flax(1.0), X, rename=rename).passed
    result = parity.compare(NET, Flax(1.01), X, rename=rename)
    assert result.origin is not None
    assert result.origin.key.site == "blocks.1:out"


def test_channels_last() -> None:
    conv = torch.nn.Conv2d(3, 4, 1)
    x = torch.randn(2, 3, 5, 6)
    kernel, bias = jnp.asarray(conv.weight.detach()[:, :, 0, 0].numpy()), jnp.asarray(conv.bias.detach().numpy())
    assert parity.compare(conv, lambda x: x @ kernel.T + bias, x, layout="channels_last").passed


def test_bfloat16_is_judged_by_what_bfloat16_costs() -> None:
    half = copy.deepcopy(NET).bfloat16()
    assert parity.compare(NET, half, X).passed
    assert parity.compare(half, half, X.bfloat16(), runs="torchax").passed
    assert parity.compare(lambda x: half(x), lambda x: half(x), X.bfloat16()).passed
    assert parity.compare(half, copy.deepcopy(WRONG).bfloat16(), X.bfloat16()).failed is not None


def test_the_caller_s_modules_and_torchax_s_switch_stay_as_they_were() -> None:
    import torchax

    model = Net()
    before = {name: (id(p), p.dtype, p.detach().clone()) for name, p in model.named_parameters()}
    model.train()
    torchax.enable_globally()
    try:
        parity.compare(model, lambda x: model(x), X)
        assert torchax.default_env().enabled
    finally:
        torchax.disable_globally()
    assert model.training
    assert not model._forward_hooks
    assert not model.blocks[0]._forward_pre_hooks
    for name, p in model.named_parameters():
        same, dtype, values = before[name]
        assert (id(p), p.dtype) == (same, dtype)
        assert torch.equal(p, values)


def test_assert_parity() -> None:
    assert parity.assert_parity(NET, NET, X).passed
    with pytest.raises(AssertionError, match=r"verdict: fail \(structure\): Net\nreason: first divergence: blocks.1"):
        parity.assert_parity(NET, WRONG, X)

    class Unseen(torch.nn.Module):
        """What it calls meets no name of the reference's."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = NET

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    with pytest.raises(AssertionError, match="verdict: unjudged"):
        parity.assert_parity(NET, Unseen(), X)


def boom(x: Any) -> Any:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("reference", "candidate", "inputs", "message"),
    [
        (NET, boom, X, r"candidate boom: `call` raised at test_compare.py:\d+: ValueError: no such thing"),
        (NET, 3, X, "the candidate is of type int: give a function, a module or"),
        (NET, NET, {"y": X}, "unexpected keyword argument 'y'"),
        (NET, NET, {"x": 1}, "the inputs hold no array"),
        (NET, lambda x: None, X, "returned NoneType, which holds no array"),
        (lambda x: np.asarray(x), NET, X, "returned a numpy array; return an array of torch's"),
    ],
)
def test_what_cannot_be_compared_is_said(reference: Any, candidate: Any, inputs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parity.compare(reference, candidate, inputs)
