"""`parity.compare` and `parity.assert_parity`: functions and modules of torch, torchax, JAX and Flax in one process."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import html
import itertools
import json
import math
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import BaseTorchFunctionMode

import parity
from parity.compare.independent import differences
from parity.compare.reason import Reason
from parity.compare.result import Result
from parity.errors import UsageError
from parity.face.verbs import Result as Shown
from parity.paths.port.load import MODES
from parity.port import Port
from parity.report.comparison import Comparison
from parity.report.formats import render
from tests.report.test_text import FAILING

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
HALF = copy.deepcopy(NET).bfloat16()
X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
ONE = jnp.ones(())
WEIGHTS = {name: jnp.asarray(w.detach().numpy()) for name, w in NET.state_dict().items()}


def in_jax(x: Any, scale: float = 1.0, mask: Any = None) -> Any:
    for i in range(2):
        name = f"blocks.{i}"
        h = jnp.tanh(x @ WEIGHTS[f"{name}.up.weight"].T + WEIGHTS[f"{name}.up.bias"])
        x = x + h @ WEIGHTS[f"{name}.down.weight"].T + WEIGHTS[f"{name}.down.bias"]
    return x * scale, x.mean(1)


def on_torchax(model: torch.nn.Module) -> torch.nn.Module:
    import torchax

    with torchax.default_env():
        return torchax.compile(copy.deepcopy(model).to("jax"))


def other_weights() -> torch.nn.Module:
    other = copy.deepcopy(NET)
    with torch.no_grad():
        other.blocks[1].up.weight[0, 0] += 1e-2
    return other


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def biased(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + y, dim=-1)


class Masked(torch.nn.Module):
    """Attention with a mask of its own, and a complex table."""

    def __init__(self) -> None:
        super().__init__()
        self.causal = Causal()
        self.register_buffer("table", torch.polar(torch.ones(5, 4), torch.arange(20.0).reshape(5, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(3, 5, 4, 2)) * self.table).reshape(x.shape)
        return torch.nn.functional.scaled_dot_product_attention(turned, turned, x, attn_mask=self.causal(x))


class Quantized(torch.nn.Module):
    """Hands on what nothing can be computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.quantizer = Quantizer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quantizer(x).float()


class Quantizer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e4m3fn)


class Conjugated(torch.nn.Module):
    """Hands a table on that is conjugated when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.reshape(3, 5, 4, 2)) * self.table(x)).flatten(2)


class Table(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.polar(torch.ones(5, 4), torch.arange(20.0).reshape(5, 4)).conj()


class Causal(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((5, 5), -math.inf).triu(1)


def lost(x: torch.Tensor) -> Any:
    return {"first": NET(x)[0]}


def returns(sign: float = 1.0, number: int = 3) -> Callable[[Any], Any]:
    """A function of any library's that returns a nest, its keys in another order than they have when sorted."""
    return lambda x: {"b": [2 * x, (x, {"c": sign * x})], "a": 1 + x, "n": (number,)}


class Fields(NamedTuple):
    sample: Any
    aux: Any


def in_fields(x: Any) -> Fields:
    return Fields(2 * x, x)


def given_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives the first argument."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return function(ONE, *args)

    return called


def boom(x: Any) -> Any:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("reference", "candidate", "options"),
    [
        (NET, lambda: lambda x: NET(x), {}),
        (NET, lambda: on_torchax(NET), {}),
        (NET, lambda: jax.jit(in_jax), {}),
        (NET, lambda: HALF, {}),
        (HALF, lambda: HALF, {"inputs": X.bfloat16(), "runs": "torchax"}),
        *(
            (torch.nn.functional.silu, lambda: jax.nn.silu, {"inputs": X.to(half)})
            for half in (torch.bfloat16, torch.float16)
        ),
        (softmax, lambda: lambda x: jax.nn.softmax(x, axis=-1), {"inputs": X.numpy()}),
        (NET, lambda: NET, {"inputs": {"x": X, "scale": 2.0, "mask": None}}),
        (Masked(), Masked, {}),
        (Conjugated(), Conjugated, {}),
        (Quantized(), Quantized, {}),
        (biased, lambda: lambda x, y: jax.nn.softmax(x + y), {"inputs": (X, torch.full((5, 8), -math.inf).triu(1))}),
        (torch.nn.SiLU(inplace=True), lambda: torch.nn.SiLU(inplace=True), {}),
        (torch.nn.functional.silu, lambda: lambda x, one=ONE: x / (one + jnp.exp(-x)), {}),
        (torch.nn.functional.silu, lambda: pytest.importorskip("flax.nnx").jit(jax.nn.silu), {}),
        (torch.sin, lambda: lambda x: next(jnp.sin(part) for part in (x,)), {}),
        (torch.sin, lambda: lambda x: parity.tap("a", jnp.sin(x)), {}),
        (torch.nn.functional.silu, lambda: given_one(lambda one, x: x / (one + jnp.exp(-x))), {}),
    ],
)
def test_what_computes_the_same_passes(reference: Any, candidate: Callable[[], Any], options: dict[str, Any]) -> None:
    result = parity.assert_parity(reference, candidate(), options.pop("inputs", X), **options)
    assert (result.verdict, result.origin) == ("pass", None)
    output = next(site for site in result.sites if site.key.site.startswith(":out"))
    assert output.distance.floor > 1e-8


@pytest.mark.parametrize(
    ("reference", "candidate", "site", "options"),
    [
        (NET, lambda: WRONG, "blocks.1:out", {}),
        (NET, lambda: WRONG, "blocks.1:out", {"runs": "torchax"}),
        (NET, other_weights, "blocks.1.up:out", {}),
        (NET, lambda: lambda x: (in_jax(x)[0] * 1.0001, in_jax(x)[1]), ":out.0", {}),
        (NET, lambda: lambda x: (in_jax(x)[0], in_jax(x)[1] * 1.001), ":out.1", {}),
        (softmax, lambda: lambda x: jax.nn.softmax(x, axis=-2), ":out", {}),
        (lambda x: NET(x)[0], lambda: lambda x: WRONG(x)[0], "blocks.1:out", {}),
        (NET, lambda: lambda x: NET(x)[0][:, :4], ":out", {}),
        (lambda x: torch.cat([X.argsort()]), lambda: lambda x: torch.cat([X.argsort()]).roll(1, 0), ":out", {}),
    ],
)
def test_faults_are_placed(reference: Any, candidate: Callable[[], Any], site: str, options: dict[str, Any]) -> None:
    result = parity.compare(reference, candidate(), X, **options)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert site in (result.origin.key.site, *(d.key.site for d in result.sites if d.verdict == "fail"))
    text = render(Comparison(result, details=True), "text")
    assert ("the output agrees in" in text) == (site != ":out.1" and "differs (shape" not in text)
    assert not re.search(r"noise_pred|latents|step 0|cond\b", text), text


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict", "reason"),
    [
        (NET, lost, "fail", "the reference returns 2 values, the candidate 1"),
        (lost, NET, "pass", "agree"),
        (
            NET,
            lambda x: (NET(x)[0], NET(x)[1][:, :1]),
            "fail",
            "the reference returns [3, 8] and the candidate [3, 1]",
        ),
        (in_fields, lambda x: {"aux": x, "sample": 2 * x}, "pass", "agree"),
        (in_fields, jax.jit(lambda x: {"sample": 2 * x, "aux": x}), "pass", "agree"),
        (lambda x: {"sample": 2 * x, "aux": x}, in_fields, "pass", "agree"),
        (in_fields, jax.jit(lambda x: {"sample": x, "aux": 2 * x}), "fail", "model output 0: inputs match"),
        (in_fields, lambda x: (2 * x, x), "pass", "agree"),
        (lambda x: x[:0], lambda x: x[:0], "inconclusive", "what the reference returns is empty: nothing was compared"),
        (returns(), returns(), "pass", "agree"),
        (returns(), jax.jit(returns()), "pass", "agree"),
        (jax.jit(returns()), returns(), "pass", "agree"),
        (returns(), jax.jit(returns(-1.0)), "fail", "model output 1.1.1.c: inputs match, output differs by 2.00"),
        (returns(), returns(number=4), "fail", "model output 2.0: inputs match, output differs (3 against 4)"),
        (returns(), jax.jit(returns(number=4)), "fail", "model output 2.0: inputs match, output differs (3 against"),
        (returns(), lambda x: (1 + x, [2 * x, (x, (x,))], 3), "inconclusive", "what they return is nested otherwise"),
        (lambda x: (x, "a"), lambda x: (x, "b"), "fail", "model output 1: inputs match, output differs ('a' against"),
        (lambda x: (x, None), lambda x: (x, None), "pass", "agree"),
        (NET, Port(call=lambda given: NET(**given), module=NET), "pass", "agree"),
        (NET, Port(call=lambda given: WRONG(**given), module=WRONG), "fail", "blocks.1 output: inputs match"),
        (Port(call=lambda given: NET(**given), module=NET), WRONG, "fail", "blocks.1 output: inputs match"),
    ],
)
def test_all_that_the_reference_returns_is_compared(reference: Any, candidate: Any, verdict: str, reason: str) -> None:
    result = parity.compare(reference, candidate, {"x": X})
    assert (result.verdict, reason in result.reason) == (verdict, True), result.reason
    assert not re.search(r"noise_pred|latents", str(result))


class Pooled(NamedTuple):
    hidden: Any
    pooled: Any


@dataclasses.dataclass
class Made:
    hidden: Any
    pooled: Any


@pytest.mark.parametrize("kind", [Pooled, Made, lambda hidden, pooled: {"hidden": hidden, "pooled": pooled}])
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (None, "agree"),
        (lambda hidden, pooled: (hidden, pooled), "agree"),
        (lambda hidden, pooled: Made(hidden, pooled), "agree"),
        (lambda hidden, pooled: hidden, "agree"),  # the module's own are compared
        (lambda hidden, pooled: (hidden, 1.5 * pooled), "model output 1: inputs match"),
        (lambda hidden, pooled: (1.5 * hidden, pooled), "model output 0: inputs match"),
        (lambda hidden, pooled: (hidden, hidden), "the reference returns [3, 8] and the candidate [3, 5, 8]"),
    ],
)
def test_a_flax_port_returns_what_its_call_does(kind: Any, call: Any, reason: str) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Flax(nnx.Module):
        def __init__(self) -> None:
            self.lin = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return kind(self.lin(x), x.mean(1))

    class Ref(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.lin(x), x.mean(1)

    net, model = Flax(), Ref()
    net.lin.kernel[...] = jnp.asarray(model.lin.weight.detach().numpy().T)
    net.lin.bias[...] = jnp.asarray(model.lin.bias.detach().numpy())
    graph, state = nnx.split(net)

    def called(weights: Any, given: Any) -> Any:
        out = nnx.merge(graph, weights)(**given)
        return call(
            *(out.values() if isinstance(out, dict) else (out if isinstance(out, tuple) else vars(out).values()))
        )

    port = net if call is None else Port(call=called, module=net, weights=state)
    result = parity.compare(model, port, {"x": X})
    assert (result.verdict, reason in result.reason) == ("pass" if reason == "agree" else "fail", True), result.reason


def test_a_function_that_writes_to_what_it_is_given_leaves_the_caller_s_tensors() -> None:
    given = X.clone()
    parity.assert_parity(torch.nn.SiLU(inplace=True), lambda x: x.mul_(torch.sigmoid(x)), given)
    assert torch.equal(given, X)


@pytest.mark.parametrize(
    ("reference", "candidate", "cause"),
    [
        (softmax, lambda x: -jax.nn.softmax(x, axis=-1), "negated"),
        (softmax, lambda x: 2.0 * jax.nn.softmax(x, axis=-1), "times 2"),
        (softmax, lambda x: jnp.minimum(jax.nn.softmax(x, axis=-1), 0.1), "clipped to at most 0.1"),
        (softmax, lambda x: jax.nn.softmax(x, axis=-1)[:, ::-1], "from last to first along axis 1"),
    ],
)
def test_what_was_done_to_the_values_is_said(reference: Any, candidate: Callable[..., Any], cause: str) -> None:
    result = parity.compare(reference, candidate, X)
    (found,) = result.causes
    assert cause in found.cause
    assert str(result).count(found.cause) == 1


class Cached(torch.nn.Module):
    """Blocks that write to the lists that they are given, as the Wan decoder's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Caching() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache, at = [x] * 3, [0]
        for block in self.blocks:
            x = block(x, cache, at)
        return x + cache[2]


class Caching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor], at: list[int]) -> torch.Tensor:
        cache[at[0]] = x
        at[0] += 1
        return x + torch.tanh(self.up(x))


def test_a_reference_may_write_to_the_lists_that_its_modules_are_given() -> None:
    net, weights = Cached(), {name: jnp.asarray(x.detach().numpy()) for name, x in Cached().named_parameters()}

    def port(x: Any) -> Any:
        for i, factor in enumerate((0.9, 1.0, 1.1)):
            name = f"blocks.{i}"
            given = x = parity.tap(f"{name}:in.x", x)
            x = parity.tap(name, x + factor * jnp.tanh(x @ weights[f"{name}.up.weight"].T + weights[f"{name}.up.bias"]))
        return x + given

    found = parity.compare(net, port, {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(0))})
    assert [d.place for d in differences(found)] == ["blocks.*"]
    assert not [note for note in found.notes if "could not be run" in note.text]


def test_a_port_over_a_mesh_of_explicit_axes_is_observed() -> None:
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    spec, split = jax.sharding.PartitionSpec("data", "tensor"), jax.sharding.PartitionSpec("data", None)

    def port(input: Any) -> Any:
        y = parity.tap("first", jnp.dot(input, weight.T, out_sharding=spec))
        return parity.tap("second", jnp.dot(y, weight.T, out_sharding=split))

    one = torch.nn.Linear(8, 8, bias=False)
    net = torch.nn.Sequential(OrderedDict(first=one, second=one))
    with jax.set_mesh(jax.make_mesh((1, 1), ("data", "tensor"), axis_types=explicit)):
        weight = jnp.asarray(one.weight.detach().numpy())
        assert parity.compare(net, port, {"input": X[0, :2, :8]}).passed


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
    assert [check.verdict for check in result.preflight if check.check == "weights"] == ["explained"]


def permuted(*, forgotten: bool) -> torch.nn.Module:
    """Its hidden units in another order, with the layer that reads them, which in the second block may be forgotten."""
    other: Any = copy.deepcopy(NET)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    for i, block in enumerate(other.blocks):
        block.up.weight.data, block.up.bias.data = block.up.weight.data[order], block.up.bias.data[order]
        if not (forgotten and i == 1):
            block.down.weight.data = block.down.weight.data[:, order]
    return other


def test_hidden_units_in_another_order_are_no_fault_and_hide_none() -> None:
    assert parity.assert_parity(NET, permuted(forgotten=False), X, sites="all").passed
    result = parity.compare(NET, permuted(forgotten=True), X)
    assert [str(found) for found in differences(result)] == ["blocks.1.down"]
    assert not [cause for cause in result.causes if "order" in cause.cause]


class OnePlus(torch.nn.Module):
    """Its scale holds what is added to one; a gate of zero leaves it out."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.scale, self.fc, self.gate = torch.nn.Parameter(0.3 * torch.randn(8)), torch.nn.Linear(8, 8), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.gate * self.fc(x * (1 + self.scale))
        return made


class OnePlusNet(torch.nn.Module):
    def __init__(self, gates: Sequence[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.unused = torch.nn.ModuleList(map(OnePlus, gates)), torch.nn.Linear(8, 8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            input = block(input)
        return input


@pytest.mark.parametrize(
    ("wrong", "gates", "named", "failing"),
    [
        ("", (1.0, 1.0), True, ""),
        ("", (1.0, 1.0), False, "blocks.0.scale"),  # whatever the model's own output is made of
        ("blocks.0.fc.weight", (1.0, 1.0), True, "blocks.0.fc.weight"),
        ("blocks.0.fc.weight", (0.0, 1.0), True, "blocks.0.fc.weight"),
        ("unused.weight", (1.0, 1.0), True, "unused.weight"),
    ],
)
def test_a_weight_in_another_form_is_no_fault_where_its_module_agrees(
    wrong: str, gates: Sequence[float], named: bool, failing: str
) -> None:
    model = OnePlusNet(gates)
    weights = {name: p.detach().numpy() + name.endswith("scale") for name, p in model.named_parameters()}
    if wrong:
        weights[wrong] = weights[wrong][::-1] + 0.1

    def call(w: Any, given: Any) -> Any:
        x = given["input"]
        for i, gate in enumerate(gates):
            name = f"blocks.{i}"
            x = x + gate * (x * w[f"{name}.scale"] @ w[f"{name}.fc.weight"].T + w[f"{name}.fc.bias"])
            x = parity.tap(name, x) if named else x
        return x

    found = parity.compare(model, Port(call=call, weights=jax.tree.map(jnp.asarray, weights)), {"input": X})
    (check,) = (check for check in found.preflight if check.check == "weights")
    assert found.verdict == ("fail" if failing else "pass"), found.reason
    assert failing in check.detail.split("held in a form")[0], check.detail


def test_a_flax_module_is_observed_by_its_names() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, i: int, gain: float) -> None:
            self.gain = gain
            for part in ("up", "down"):
                setattr(self, part, nnx.Param(WEIGHTS[f"blocks.{i}.{part}.weight"]))
                setattr(self, f"{part}_bias", nnx.Param(WEIGHTS[f"blocks.{i}.{part}.bias"]))

        def __call__(self, x: Any) -> Any:
            h = jnp.tanh(x @ self.up[...].T + self.up_bias[...])
            return x + self.gain * (h @ self.down[...].T + self.down_bias[...])

    class Flax(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, gain: float) -> None:
            self.layers = nnx.List([Layer(0, 1.0), Layer(1, gain)])

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x, x.mean(1)

    rename = {r"layers\.(\d+)": r"blocks.\1"}
    assert parity.compare(NET, Flax(1.0), X, rename=rename).passed
    result = parity.compare(NET, Flax(1.01), X, rename=rename)
    assert result.origin is not None
    assert result.origin.key.site == "blocks.1:out"


class Large(torch.nn.Module):
    """Overflows in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 8)
        torch.nn.init.constant_(self.up.weight, 300.0)
        torch.nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).square()


def test_what_overflows_on_both_sides_is_inconclusive() -> None:
    half: dict[str, Any] = {"dtype": "float16"}
    result = parity.compare(Large(), Large(), X.abs(), reference_settings=half, candidate_settings=half)
    assert (result.verdict, "the reference itself is not finite" in result.reason) == ("inconclusive", True)
    assert parity.compare(Large(), Large(), X.abs(), candidate_settings=half).verdict == "fail"


@pytest.mark.parametrize("missing", ["", "lin.bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_flax_module_may_have_counters_without_values(dtype: torch.dtype, missing: str) -> None:
    """Loaded as shapes first, with only its weights put in: the state of its dropout stays shapes."""
    nnx = pytest.importorskip("flax.nnx")

    class Flax(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.lin, self.drop = nnx.Linear(8, 8, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, input: Any) -> Any:
            return self.drop(self.lin(input))

    model = torch.nn.Sequential(OrderedDict(lin=torch.nn.Linear(8, 8))).to(dtype)
    graph, state = nnx.split(nnx.eval_shape(lambda: Flax(nnx.Rngs(0))))
    held = nnx.to_pure_dict(state)
    wide, kind = {n: w.detach().float().numpy() for n, w in model.lin.named_parameters()}, str(dtype)[6:]
    held["lin"] = {"kernel": jnp.asarray(wide["weight"].T, kind), "bias": jnp.asarray(wide["bias"], kind)}
    if missing:
        held["lin"]["bias"] = jax.ShapeDtypeStruct((8,), kind)
    port = nnx.merge(graph, held)
    port.eval()
    if missing:
        with pytest.raises(UsageError, match=r"candidate Flax: the weight 'lin.bias' has no values"):
            parity.compare(model, port, X.to(dtype))
    else:
        assert parity.compare(model, port, X.to(dtype)).passed


class Texted(torch.nn.Module):
    """Reads the text rows that its mask lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.to_k = torch.nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, encoder_hidden_states: torch.Tensor, encoder_attention_mask: torch.Tensor
    ) -> torch.Tensor:
        keys = self.to_k(encoder_hidden_states)
        x = x if x.ndim == 3 else x.flatten(2).mT  # each pixel of a video is a token
        scores = (x @ keys.mT).masked_fill(encoder_attention_mask[:, None] == 0, -math.inf)
        return torch.softmax(scores, dim=-1) @ keys


@pytest.mark.parametrize("x", [X[:1], torch.randn(1, 8, 3, 4, 6)], ids=["rows", "a video"])
@pytest.mark.parametrize(("first", "verdict"), [(6, "pass"), (5, "fail")])
def test_text_rows_that_the_mask_leaves_out_decide_nothing(x: torch.Tensor, first: int, verdict: str) -> None:
    model, text = Texted(), torch.randn(1, 8, 8)
    mask = (torch.arange(8) < 6).long()[None]

    def other(x: torch.Tensor, encoder_hidden_states: torch.Tensor, encoder_attention_mask: torch.Tensor) -> Any:
        read = torch.arange(8)[None, :, None] < first
        return model(x, encoder_hidden_states * read, encoder_attention_mask)

    given = {"x": x, "encoder_hidden_states": text, "encoder_attention_mask": mask}
    assert parity.compare(model, other, given).verdict == verdict


class Joint(torch.nn.Module):
    """Attends over a picture and the rows of text that a mask lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.to_k = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, text: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.cat([x, text], 1)
        keys, read = self.to_k(rows), torch.nn.functional.pad(mask, (x.shape[1], 0), value=True)
        rows = rows + torch.softmax((rows @ keys.mT).masked_fill(~read[:, None], -math.inf), dim=-1) @ keys
        return rows[:, : x.shape[1]], rows[:, x.shape[1] :]


class TwoTexts(torch.nn.Module):
    """Joins a picture and two texts, whose padding it puts last."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Joint()

    def forward(self, x: torch.Tensor, **texts: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([texts["encoder_hidden_states_2"], texts["encoder_hidden_states"]], 1)
        keep = torch.cat([texts["encoder_attention_mask_2"], texts["encoder_attention_mask"]], 1).bool()
        order = torch.argsort((~keep).int(), dim=1, stable=True)[0]
        return self.block(x, rows[:, order], keep[:, order])[0]


@pytest.mark.parametrize(("drops", "verdict"), [(0, "pass"), (1, "fail")])
def test_the_padding_of_two_texts_may_stand_anywhere(drops: int, verdict: str) -> None:
    model = TwoTexts()
    weight, bias = (jnp.asarray(p.detach().numpy()) for p in model.block.to_k.parameters())

    def where_it_is(x: Any, **texts: Any) -> Any:
        rows = jnp.concatenate([texts["encoder_hidden_states_2"], texts["encoder_hidden_states"]], 1)
        keep = jnp.concatenate([texts["encoder_attention_mask_2"], texts["encoder_attention_mask"]], 1) > 0
        keep = parity.tap("block:in.mask", keep & (jnp.arange(keep.shape[1]) >= drops))
        rows = jnp.concatenate([parity.tap("block:in.x", x), parity.tap("block:in.text", rows * keep[..., None])], 1)
        keys = parity.tap("block.to_k:out", rows @ weight.T + bias)
        read = jnp.pad(keep, ((0, 0), (x.shape[1], 0)), constant_values=True)
        scores = jnp.where(read[:, None], rows @ keys.mT, -jnp.inf)
        rows = rows + jax.nn.softmax(scores, axis=-1) @ keys
        parity.tap("block:out.1", rows[:, x.shape[1] :])
        return parity.tap("block:out.0", rows[:, : x.shape[1]])

    given = {"x": X[:1, :3], "encoder_hidden_states": torch.randn(1, 6, 8)}
    given |= {"encoder_hidden_states_2": torch.randn(1, 5, 8)}
    given |= {"encoder_attention_mask": (torch.arange(6) < 4).long()[None]}
    given |= {"encoder_attention_mask_2": (torch.arange(5) < 3).long()[None]}
    result = parity.compare(model, where_it_is, given)
    assert result.verdict == verdict, result.reason
    assert "pass" in {d.verdict for d in result.sites if d.key.site == "block:out.1"} or drops


class Keyed(torch.nn.Module):
    """Its keys have a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_out = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm_k: torch.nn.Module | None = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.to_q, self.to_k))
        k = k if self.norm_k is None else self.norm_k(k)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, q)
        return x + self.to_out(out.transpose(1, 2).flatten(-2))


def test_a_norm_of_keys_that_is_left_out_is_placed_at_the_keys_and_named() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(*(Keyed() for _ in range(3)))))
    other = copy.deepcopy(model)
    for block in other.blocks:
        block.norm_k = None
    result = parity.compare(model, other, X[:1])
    assert result.origin is not None
    assert result.origin.key.site == "blocks.0.attention:in.key"
    (found,) = differences(result)
    assert found.place == "blocks.*.attention's input key"
    assert found.causes == [
        "blocks.0.attention's input key: the candidate's is the reference's made without blocks.*.norm_k"
    ]


class Shifted(torch.nn.Module):
    """A norm with its modulation in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8, elementwise_affine=False), torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(e)[:, None].chunk(2, -1)
        return self.norm(x) * (1 + scale) + shift


class Feeds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Shifted(), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x, e))))


class Fed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.norm_out, self.out = (
            torch.nn.ModuleList(Feeds() for _ in range(4)),
            Shifted(),
            torch.nn.Linear(8, 8),
        )

    def forward(self, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, e)
        return self.out(self.norm_out(x, e))


@pytest.mark.parametrize(("act", "listed"), [("silu", []), ("gelu", ["blocks.0.down's input"])])
def test_plain_norms_under_the_names_of_modulated_ones_are_no_difference(act: str, listed: list[str]) -> None:
    torch.manual_seed(0)
    model = Fed()
    w = {name: jnp.asarray(x.numpy()) for name, x in model.state_dict().items()}

    def linear(name: str, x: Any) -> Any:
        return parity.tap(name, parity.tap(f"{name}:in.inputs", x) @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def modulated(name: str, x: Any, e: Any) -> Any:
        plain = parity.tap(name, jax.nn.standardize(parity.tap(f"{name}:in.x", x), epsilon=1e-5))
        scale, shift = jnp.split(e @ w[f"{name}.linear.weight"].T + w[f"{name}.linear.bias"], 2, -1)
        return plain * (1 + scale[:, None]) + shift[:, None]

    def port(x: Any, e: Any) -> Any:
        for i in range(4):
            h = linear(f"blocks.{i}.up", modulated(f"blocks.{i}.norm", x, e))
            x = parity.tap(f"blocks.{i}", x + linear(f"blocks.{i}.down", getattr(jax.nn, act if i == 0 else "silu")(h)))
        return linear("out", modulated("norm_out", x, e))

    result = parity.compare(model, port, {"x": X[:1], "e": X[1, :1]})
    assert (result.verdict, [d.place for d in differences(result)]) == ("fail" if listed else "pass", listed), (
        result.reason
    )
    assert not listed or result.origin is None or result.origin.key.module == "blocks.0.down"


@pytest.mark.parametrize(
    ("wrong", "inside", "listed"),
    [
        (("first",), (), ["first.*.down's input"]),
        (("first", "second"), (), ["first.*.down's input", "second.*.down's input"]),
        (("first",), ("second",), ["first.*.down's input"]),
        (("first", "second"), ("second",), ["first.*.down's input", "second.*.down"]),
    ],
)
def test_inputs_under_another_name_are_followed_where_their_module_makes_the_same_of_them(
    wrong: Sequence[str], inside: Sequence[str], listed: list[str]
) -> None:
    """The activations of a list of blocks may be wrong, and may be in the projection behind them."""
    torch.manual_seed(0)
    lists = {name: torch.nn.Sequential(Block(8), Block(8)) for name in ("first", "second")}
    model = torch.nn.Sequential(OrderedDict(lists))
    w = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}

    def linear(name: str, x: Any, act: Callable[[Any], Any] = lambda x: x) -> Any:
        x = act(parity.tap(f"{name}:in.inputs", x))
        return parity.tap(name, x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def port(x: Any) -> Any:
        for name, i in itertools.product(lists, range(2)):
            act, h = jnp.sin if name in wrong else jnp.tanh, linear(f"{name}.{i}.up", x)
            down = f"{name}.{i}.down"
            x = parity.tap(f"{name}.{i}", x + (linear(down, h, act) if name in inside else linear(down, act(h))))
        return x

    assert [d.place for d in differences(parity.compare(model, port, X))] == listed


def test_channels_last() -> None:
    conv, x = torch.nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 6)
    kernel, bias = jnp.asarray(conv.weight.detach()[:, :, 0, 0].numpy()), jnp.asarray(conv.bias.detach().numpy())

    def product(x: Any) -> Any:
        return x @ kernel.T + bias

    assert parity.compare(conv, product, x, layout="channels_last").passed
    # The library is that of what it calls, and what tells it else is traced in the port's layout.
    assert parity.compare(conv, functools.partial(lambda f, x: f(x), product), x, layout="channels_last").passed


class Heads(torch.nn.Module):
    """A picture [B, C, H, W] whose pixels attend to each other, in two heads; without a projection behind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 8, 1), torch.nn.LayerNorm(4), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(self.conv(x).flatten(2).mT.unflatten(2, (2, 4)))  # [B, pixels, 2, 4]
        return self.out(heads.flatten(2))


def heads_in_jax(model: Heads, *, wrong: bool) -> Callable[[Any], Any]:
    w = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}

    def forward(x: Any) -> Any:
        y = x @ w["conv.weight"][:, :, 0, 0].T + w["conv.bias"]
        parity.tap("conv", y)
        y = y.reshape(1, -1, 2, 4)
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + (0.5 if wrong else 1e-5))
        parity.tap("norm", y * w["norm.weight"] + w["norm.bias"])
        return (y * w["norm.weight"] + w["norm.bias"]).reshape(1, -1, 8) @ w["out.weight"].T + w["out.bias"]

    return forward


@pytest.mark.parametrize("wrong", [False, True])
def test_heads_of_an_attention_are_no_pixels_whose_channels_are_last(wrong: bool) -> None:
    model, x = Heads(), torch.randn(1, 3, 5, 6)
    found = parity.compare(model, heads_in_jax(model, wrong=wrong), x, layout="channels_last", sites="all")
    sites = {d.key.site: d for d in found.sites}
    assert [sites[f"{name}:out"].verdict for name in ("conv", "norm")] == ["pass", "fail" if wrong else "pass"]
    assert str(found.origin and found.origin.key.site) == ("norm:out" if wrong else "None")


@pytest.mark.parametrize("act", ["tanh", "relu"])
def test_what_is_made_of_other_weights_that_a_port_does_not_name_is_no_other_difference(act: str) -> None:
    """Keys of wrongly loaded weights, which the port does not hand out, but the norm of them."""

    class Acts(Keyed):
        def __init__(self) -> None:
            super().__init__()
            self.act = torch.nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.act(super().forward(x))
            return made

    torch.manual_seed(0)
    model = Acts()
    right = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    wrong = {**right, "to_k.weight": right["to_q.weight"], "to_q.weight": right["to_k.weight"]}

    def call(w: Any, given: Any) -> Any:
        x = given["x"]

        def linear(name: str) -> Any:
            return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

        q, k = (linear(name).reshape(1, 5, 2, 4) for name in ("to_q", "to_k"))
        k = (k - k.mean(-1, keepdims=True)) / jnp.sqrt(k.var(-1, keepdims=True) + 1e-5)
        k = parity.tap("norm_k", (k * w["norm_k.weight"] + w["norm_k.bias"]).transpose(0, 2, 1, 3)).transpose(
            0, 2, 1, 3
        )
        heads = jax.nn.dot_product_attention(q, k, q).reshape(1, 5, 8)
        out = parity.tap("to_out", heads @ w["to_out.weight"].T + w["to_out.bias"])
        return parity.tap("act", jnp.tanh(x + out) if act == "tanh" else jax.nn.relu(x + out))

    found = parity.compare(model, Port(call=call, weights=wrong), {"x": X[:1]})
    assert [d.place for d in differences(found)] == ["the weights", *(["act"] if act == "relu" else [])]
    assert parity.compare(model, Port(call=call, weights=right), {"x": X[:1]}).verdict == (
        "pass" if act == "tanh" else "fail"
    )


@pytest.mark.parametrize(
    ("first", "named", "cause"),
    [(True, "mod", "without mod.0"), (True, "mod.1", "without mod.0"), (False, "mod.1", "without it")],
)
def test_an_activation_of_a_sequence_that_is_left_out_is_named(first: bool, named: str, cause: str) -> None:
    """Its place in the sequence is no block's number."""
    torch.manual_seed(0)
    linear, act = torch.nn.Linear(8, 8), torch.nn.SiLU()
    mod = torch.nn.Sequential(act, linear) if first else torch.nn.Sequential(linear, act)
    model = torch.nn.Sequential(OrderedDict(mod=mod))
    w, b = (jnp.asarray(p.detach().numpy()) for p in (linear.weight, linear.bias))
    (found,) = differences(parity.compare(model, lambda x: parity.tap(named, x @ w.T + b), X[:1]))
    assert found.causes == [f"{named}: the candidate's is the reference's made {cause}"]


@pytest.mark.parametrize(
    ("own", "theirs", "cause"),
    [
        (torch.nn.functional.gelu, jax.nn.gelu, "gelu_tanh, not gelu"),
        (torch.nn.functional.gelu, lambda x: x * jax.nn.sigmoid(1.702 * x), "gelu_quick, not gelu"),
        (functools.partial(torch.nn.functional.gelu, approximate="tanh"), jax.nn.silu, "silu, not gelu_tanh"),
        (torch.nn.functional.silu, functools.partial(jax.nn.gelu, approximate=False), "gelu, not silu"),
        (torch.nn.functional.silu, jax.nn.silu, ""),
    ],
)
def test_another_activation_is_named_where_the_code_of_a_gated_layer_calls_it(
    own: Any, theirs: Any, cause: str
) -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = torch.nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, gate = self.proj(x).chunk(2, dim=-1)
            return x * own(gate)

    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict(ff=Gated(), out=torch.nn.Linear(8, 8)))
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.state_dict().items()}

    def port(x: Any) -> Any:
        x, gate = jnp.split(x @ w["ff.proj.weight"].T + w["ff.proj.bias"], 2, axis=-1)
        return parity.tap("ff", x * theirs(gate)) @ w["out.weight"].T + w["out.bias"]

    found = differences(parity.compare(model, port, X[:1]))
    made = [f"ff: the candidate's is the reference's made with activation={cause}"] if cause else []
    assert [one.causes for one in found] == ([made] if made else [])


def linear_of(model: torch.nn.Module) -> Callable[[str, Any], Any]:
    """A model's linear layers in JAX, by name."""
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.state_dict().items()}
    return lambda name, x: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def test_an_activation_is_named_beside_another_of_the_same_block() -> None:
    class Modulated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mod, self.up, self.down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shift = self.mod(torch.nn.functional.silu(x.mean(1, keepdim=True)))
            return x + self.down(torch.nn.functional.gelu(self.up(x + shift)))

    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict(block=Modulated(), out=torch.nn.Linear(8, 8)))
    linear = linear_of(model)

    def port(x: Any) -> Any:
        shift = linear("block.mod", jax.nn.silu(x.mean(1, keepdims=True)))
        return linear("out", parity.tap("block", x + linear("block.down", jax.nn.gelu(linear("block.up", x + shift)))))

    (found,) = differences(parity.compare(model, port, torch.randn(1, 12, 8)))
    assert found.causes == ["block: the candidate's is the reference's made with activation=gelu_tanh, not gelu"]


VALID = np.arange(10) < 7
TRIL = np.tri(10, dtype=bool)


ATTENTIONS = [  # what is added to the logits, None for what should be; keys set to zero; the scale; the cause
    (None, False, 6**-0.5, ""),
    (0.0, False, 6**-0.5, "without its mask"),
    (None, False, 1.0, "without a scale"),
    (None, False, 128**-0.5, "scaled as of heads that are 128 wide"),
]
OF_KEYS = [
    (0.0, True, 6**-0.5, "with keys and values of zero where its mask leaves them out"),
    (VALID.astype(np.float32), False, 6**-0.5, "with its mask added as ones and zeros"),
    (np.where(VALID, -1e9, 0.0), False, 6**-0.5, "with its mask inverted"),
    (np.where(VALID & TRIL, 0.0, -1e9), False, 6**-0.5, "that is causal"),
]


@pytest.mark.parametrize(
    ("form", "bias", "zeroed", "scale", "cause"),
    [
        *((form, *case) for form in ("keys", "added") for case in (*ATTENTIONS, *OF_KEYS)),
        *(("causal", *case) for case in ATTENTIONS),
    ],
)
def test_a_fault_of_an_attention_that_a_port_does_not_name_is_named(
    form: str, bias: Any, zeroed: bool, scale: float, cause: str
) -> None:
    """A function of JAX's computes it by hand, and names the module around it alone."""
    right = np.where(TRIL if form == "causal" else VALID[None], 0.0, -1e9)
    mask = {"keys": torch.tensor(VALID[None]), "added": torch.tensor(right).float()}.get(form)
    if form == "causal" and cause == "without its mask":
        cause = "that is not causal"

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (f(x).unflatten(-1, (2, 6)).transpose(1, 2) for f in (self.q, self.k, self.v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
            return self.o(out.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict(attn=Attention(), out=torch.nn.Linear(12, 12)))
    linear = linear_of(model)

    def port(x: Any) -> Any:
        q, k, v = (linear(f"attn.{n}", x).reshape(1, 10, 2, 6) for n in "qkv")
        k, v = (t * jnp.asarray(VALID)[:, None, None] if zeroed else t for t in (k, v))
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale + (right if bias is None else bias)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v).reshape(1, 10, 12)
        return linear("out", parity.tap("attn", linear("attn.o", out)))

    found = parity.compare(model, port, torch.randn(1, 10, 12))
    causes = [one.causes for one in differences(found)]
    assert causes == ([[f"attn: the candidate's is the reference's made with an attention {cause}"]] if cause else [])


def test_an_activation_that_is_left_out_is_named_behind_many_norms_with_another_constant() -> None:
    torch.manual_seed(0)

    def made(eps: float, act: torch.nn.Module) -> torch.nn.Module:
        norms = ((f"norm_{i}", torch.nn.LayerNorm(8, eps=eps)) for i in "abcde")
        layers = ((f"linear_{i}", torch.nn.Linear(8, 8)) for i in "abcde")
        both = (pair for norm, layer in zip(norms, layers, strict=True) for pair in (norm, layer))
        return torch.nn.Sequential(OrderedDict([*both, ("act", act)]))

    model, port = made(1e-5, torch.nn.SiLU()), made(1e-3, torch.nn.Identity())
    port.load_state_dict(model.state_dict())
    result = parity.compare(model, port, X[:1])
    *norms, act = differences(result)
    assert [d.place for d in norms] == [f"norm_{i}" for i in "abcde"]
    assert act.causes == ["act: the candidate's is the reference's made without it"]
    text = str(result)
    assert text.count("made with eps=0.001") == 1
    assert "norm_b; norm_c; norm_d; norm_e" in " ".join(text.split())


class CausalText(torch.nn.Module):
    """Padded behind, so that no valid row sees whether it reads its mask, as it does where it is `ours`."""

    def __init__(self, ours: bool, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.to_qkv, self.to_out = (
            torch.nn.Embedding(50, 16),
            torch.nn.Linear(16, 48),
            torch.nn.Linear(16, 16),
        )
        self.ours, self.factor = ours, factor

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        q, k, v = self.to_qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None]
        if self.ours:
            seen = seen & attention_mask.bool()[:, None]
        seen = seen | torch.eye(x.shape[1], dtype=torch.bool)
        weight = (q @ k.mT / 4.0).masked_fill(~seen, -1e9).softmax(-1)
        hidden: torch.Tensor = x + self.factor * self.to_out(weight @ v)
        return hidden


def encoder_in_jax(ours: bool, factor: float) -> Any:
    model = CausalText(ours)
    w = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}

    def call(input_ids: Any, attention_mask: Any) -> Any:
        x = parity.tap("embed", w["embed.weight"][input_ids])
        q, k, v = jnp.split(x @ w["to_qkv.weight"].T + w["to_qkv.bias"], 3, -1)
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))[None]
        seen = (seen & (attention_mask[:, None] > 0) if ours else seen) | jnp.eye(x.shape[1], dtype=bool)
        weight = jax.nn.softmax(jnp.where(seen, q @ k.mT / 4.0, -1e9), -1)
        made = (weight @ v) @ w["to_out.weight"].T + w["to_out.bias"]
        return x + factor * parity.tap("to_out", made)

    return call


@pytest.mark.parametrize("make", [CausalText, encoder_in_jax])
@pytest.mark.parametrize("lengths", [(7,), (7, 10), (9, 4)], ids=str)
@pytest.mark.parametrize(
    ("ours", "factor", "verdict"), [(False, 1.0, "pass"), (True, 1.0, "pass"), (False, 1.01, "fail")]
)
def test_padding_of_a_text_encoder_is_not_compared(
    make: Any, lengths: tuple[int, ...], ours: bool, factor: float, verdict: str
) -> None:
    mask = (torch.arange(10) < torch.tensor(lengths)[:, None]).long()
    given = {"input_ids": torch.arange(10).repeat(len(lengths), 1) + 3, "attention_mask": mask}
    result = parity.compare(CausalText(True), make(ours, factor), given)
    assert result.verdict == verdict, result.reason
    padded = int((mask == 0).sum())
    assert f"the padding of the text, {padded} tokens, was not compared" in [note.text for note in result.notes]


class Masked(torch.nn.Module):
    """Of the rows that its mask leaves out it may make something else."""

    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.wrong = torch.nn.Linear(16, 16), wrong

    def forward(self, x: torch.Tensor, **masks: torch.Tensor) -> torch.Tensor:
        (mask,) = masks.values()
        hidden: torch.Tensor = self.net(x)
        return torch.where(mask[..., None] > 0, hidden, self.wrong * hidden)


@pytest.mark.parametrize("name", ["attention_mask", "conditioning_mask", "key_padding_mask"])
def test_rows_that_a_mask_of_no_text_leaves_out_are_compared(name: str) -> None:
    given = {"x": torch.randn(1, 10, 16), name: (torch.arange(10) < 7)[None]}
    assert not parity.compare(Masked(), Masked(1.5), given).passed


class RaggedBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.scaled_dot_product_attention(x, x, self.net(x), attn_mask=attn_mask[:, None])


class Ragged(torch.nn.Module):
    """As Z-Image: items of several lengths in one batch, whose padding it makes itself and cuts off again."""

    def __init__(self, padding: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.padding = torch.nn.ModuleList(RaggedBlock() for _ in range(2)), padding
        with torch.no_grad():
            self.blocks[1].net.bias.mul_(scale)

    def forward(self, items: list[torch.Tensor]) -> list[torch.Tensor]:
        most = max(map(len, items))
        padded = [torch.nn.functional.pad(x, (0, 0, 0, most - len(x)), value=self.padding) for x in items]
        x, mask = torch.stack(padded), torch.stack([torch.arange(most) < len(x) for x in items])
        for block in self.blocks:
            x = block(x, mask)
        return [x[i, : len(item)] for i, item in enumerate(items)]


@pytest.mark.parametrize(
    ("padding", "scale", "listed"),
    [(1.0, 1.0, []), (0.0, 1.01, ["the weights"]), (1.0, 1.01, ["the weights"])],
    ids=str,
)
def test_padding_that_a_model_makes_itself_may_hold_anything(padding: float, scale: float, listed: list[str]) -> None:
    torch.manual_seed(1)
    items = [torch.randn(12, 16), torch.randn(7, 16)]
    result = parity.compare(Ragged(), Ragged(padding, scale), {"items": items})
    assert [d.place for d in differences(result)] == listed, str(result)


class Sinusoids(torch.nn.Module):
    def forward(self, timestep: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.cos(timestep[:, None] * 0.01), torch.sin(timestep[:, None] * 0.01)], -1)


class InAUnit(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.time_proj, self.first, self.embed = Sinusoids(), torch.nn.Linear(16, 32), torch.nn.Linear(2, 32)
        self.last = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.first(x).tanh() + self.embed(self.time_proj(timestep))[:, None])
        return made


@pytest.mark.parametrize(
    ("times", "factor", "listed"),
    [
        (1000.0, 1.0, []),
        (1.0, 1.0, ["the argument timestep"]),
        (1000.0, 1.01, ["last's input"]),
        (1.0, 1.01, ["the argument timestep", "last's input"]),
    ],
)
def test_a_port_may_take_its_timestep_in_another_unit(times: float, factor: float, listed: list[str]) -> None:
    linen = pytest.importorskip("flax.linen")

    class Flax(linen.Module):
        def setup(self) -> None:
            self.first, self.embed, self.last = linen.Dense(32), linen.Dense(32), linen.Dense(16)

        def __call__(self, x: Any, timestep: Any) -> Any:
            t = timestep[:, None] * times * 0.01
            e = self.embed(jax.numpy.concatenate([jax.numpy.cos(t), jax.numpy.sin(t)], -1))
            return self.last(factor * jax.numpy.tanh(self.first(x)) + e[:, None])

    reference, net = InAUnit(), Flax()
    layers = dict(reference.named_children())
    held = {
        name: {
            "kernel": jax.numpy.asarray(layers[name].weight.detach().numpy().T),
            "bias": layers[name].bias.detach().numpy(),
        }
        for name in ("first", "embed", "last")
    }
    port = Port(
        call=lambda weights, given: net.apply({"params": weights}, given["x"], given["timestep"] / 1000.0),
        module=net,
        weights=held,
    )
    result = parity.compare(reference, port, {"x": torch.randn(1, 24, 16), "timestep": torch.tensor([731.0])})
    assert [d.place for d in differences(result)] == listed, str(result)


class MarkedBlock(torch.nn.Module):
    def __init__(self, wrong: float) -> None:
        super().__init__()
        self.net, self.wrong = torch.nn.Linear(16, 16), wrong

    def forward(self, x: torch.Tensor, given_mask: torch.Tensor) -> torch.Tensor:
        made = self.net(x)
        return x + torch.where(given_mask[..., None], made, self.wrong * made)


class Marked(torch.nn.Module):
    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(MarkedBlock(by) for by in (wrong, 1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[1]).expand(x.shape[:2]) < 4
        for block in self.blocks:
            x = block(x, mask)
        return x


def test_rows_that_a_mask_of_another_kind_leaves_out_decide_inside_a_model_too() -> None:
    result = parity.compare(Marked(), Marked(1.01), torch.randn(2, 12, 16))
    assert [d.place for d in differences(result)] == ["blocks.0"], str(result)


class KeyMasked(torch.nn.Module):
    """Of the keys that its mask leaves out a port may read one, set keys and values to zero, or read all."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))
        self.how = how

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 16)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.how == "zeroed":
            k, v = k * attention_mask[:, None, :, None], v * attention_mask[:, None, :, None]
        seen = None if self.how in ("zeroed", "read") else attention_mask[:, None, None] > 0
        seen = seen.roll(1, -1) if self.how == "late" and seen is not None else seen
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out: torch.Tensor = self.out(made.transpose(1, 2).flatten(2))
        return out


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("zeroed", "7.00 phantom keys = its 7 padded text tokens"),
        ("read", "7 of 20 keys that the reference masks are"),
        ("late", "the mask lies one key too far"),
    ],
)
def test_what_was_done_to_a_mask_is_known(how: str, cause: str) -> None:
    given = {"x": torch.randn(1, 20, 32), "attention_mask": (torch.arange(20) < 13).float()[None]}
    result = parity.compare(KeyMasked(), KeyMasked(how), given)
    assert [c.cause.startswith(cause) for c in result.causes] == [True], str(result)


class Projected(torch.nn.Module):
    """An attention of what nobody names."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = 1.5 * x
        q, k, v = (f(more).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out: torch.Tensor = x + self.to_out(made.flatten(2))
        return out


def projected(blocks: int, named: Sequence[str], wrong: Callable[[str, Any], Any]) -> Result:
    """How blocks of `Projected` compare with a port that names some of their values, which may be wrong."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(*(Projected() for _ in range(blocks)))))
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.state_dict().items()}

    def port(x: Any) -> Any:
        for i in range(blocks):

            def made(name: str, y: Any, i: int = i) -> Any:
                at = f"blocks.{i}.{name}"
                y = wrong(at, y if name == "attention" else y @ w[f"{at}.weight"].T + w[f"{at}.bias"])
                return parity.tap(at, y) if name in named else y

            q, k, v = (made(f"to_{n}", 1.5 * x).reshape(1, 12, 2, 8) for n in "qkv")
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5)
            out = made("attention", jnp.einsum("bhqk,bkhd->bqhd", weights, v))
            x = parity.tap(f"blocks.{i}", x + made("to_out", out.reshape(1, 12, 16)))
        return x

    return parity.compare(model, port, torch.randn(1, 12, 16), sites="all")


@pytest.mark.parametrize("rows", [0, 4])
def test_what_is_made_of_rows_that_are_not_finite_is_no_difference(rows: int) -> None:
    def wrong(at: str, x: Any) -> Any:
        return x.at[:, 12 - rows :].set(jnp.nan) if at == "blocks.0.attention" else x

    found = projected(2, ("attention", "to_out"), wrong)
    assert [d.place for d in differences(found)] == ["blocks.0.attention"] * (rows > 0), str(found)
    assert not any("meet no module" in note.text for note in found.notes)


@pytest.mark.parametrize("block", [0, 1])
def test_what_may_differ_beside_another_in_one_block_is_said(block: int) -> None:
    def wrong(at: str, x: Any) -> Any:
        return jnp.tanh(x) if at in [f"blocks.{block}.to_{n}" for n in "qkv"] else x

    found = projected(2, ("to_q", "to_k", "to_v"), wrong)
    assert [d.place for d in differences(found)] == [f"blocks.{block}.to_q"], str(found)
    assert any(note.text.startswith("also blocks.*.to_k, blocks.*.to_v differ") for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("eps", "other", "listed"),
    [
        (1e-3, "", ["blocks.*.lin"]),
        (1e-3, "blocks.2.lin", ["blocks.*.lin", "blocks.2.lin"]),
        (0.0, "", ["blocks.*.lin"]),  # which two of those that are tried are as near
    ],
)
def test_a_second_fault_of_one_block_is_not_lost_among_the_same_fault_of_all(
    eps: float, other: str, listed: list[str]
) -> None:
    torch.manual_seed(0)
    parts = (OrderedDict(norm=torch.nn.LayerNorm(16), lin=torch.nn.Linear(16, 16)) for _ in range(4))
    model = torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(*map(torch.nn.Sequential, parts))))
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.state_dict().items()}

    def port(x: Any) -> Any:
        for at in (f"blocks.{i}.lin" for i in range(4)):
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
            made = x @ w[f"{at}.weight"].T + w[f"{at}.bias"]
            x = parity.tap(at, jnp.tanh(made) if at == other else made)
        return x

    found = parity.compare(model, port, torch.randn(1, 12, 16), sites="all")
    assert [d.place for d in differences(found)] == listed
    made = f"blocks.0.lin: the candidate's is the reference's made with eps={eps or 1e-12}, not 1e-05"
    otherwise = f"{other}: differs in another way than in the other blocks"
    assert [c.cause for c in found.causes] == [made, *([otherwise] if other else [])]


class Biased(torch.nn.Module):
    """As a block of T5's: the first one makes a bias, which it hands on to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bias = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        bias = self.bias(x).tanh() if bias is None else bias
        return x + torch.tanh(self.net(x) + bias), bias


class BiasedStack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Biased() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None
        for block in self.blocks:
            x, bias = block(x, bias)
        return x


@pytest.mark.parametrize(
    ("wrong", "listed"), [((1,), ["blocks.1"]), ((1, 2), ["blocks.*"]), ((2,), ["blocks.2"])], ids=str
)
def test_a_value_that_a_block_which_agrees_made_for_the_others_is_no_doubt(
    wrong: tuple[int, ...], listed: list[str]
) -> None:
    torch.manual_seed(0)
    model = BiasedStack()

    def port(x: Any) -> Any:
        held = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}

        def linear(name: str, x: Any) -> Any:
            return x @ held[f"blocks.{name}.weight"].T + held[f"blocks.{name}.bias"]

        bias = jnp.tanh(linear("0.bias", x))
        for i in range(3):
            moved = jnp.tanh(linear(f"{i}.net", x) + bias)
            x = parity.tap(f"blocks.{i}", x + (1.1 if i in wrong else 1.0) * moved)
        return x

    found = differences(parity.compare(model, port, X[:1]))
    assert [d.place for d in found] == listed


class Placed(torch.nn.Module):
    """Adds to each token what a table has at its relative positions, which its own code makes."""

    def __init__(self, eps: float = 1e-6, sign: int = 1, at: int = 8, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.norm, self.at, self.rel = torch.nn.LayerNorm(8, eps=eps), torch.nn.Identity(), torch.nn.Embedding(16, 8)
        self.sign, self.first, self.dtype = sign, at, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed, n = self.norm(x), torch.arange(x.shape[1], dtype=self.dtype)
        at = self.at(self.sign * (n - n[:, None]) + self.first)
        return x + torch.tanh(normed + self.rel(at).mean(1))


@pytest.mark.parametrize(
    ("fault", "listed"),
    [
        ({"eps": 1e-5, "sign": -1}, ["blocks.*.norm", "blocks.*.at's input"]),
        ({"eps": 1e-5, "at": 7}, ["blocks.*.norm", "blocks.*.at's input"]),
        ({"sign": -1}, ["blocks.*.at's input"]),
        ({"eps": 1e-5, "dtype": torch.int32}, ["blocks.*.norm"]),
        ({"dtype": torch.int32}, []),
    ],
    ids=str,
)
def test_integers_are_judged_behind_another_fault(fault: dict[str, Any], listed: list[str]) -> None:
    torch.manual_seed(6)
    made = (torch.nn.Sequential(Placed(**own), Placed(**own)) for own in ({}, fault))
    model, port = (torch.nn.Sequential(OrderedDict(blocks=blocks)) for blocks in made)
    port.load_state_dict(model.state_dict())
    assert [d.place for d in differences(parity.compare(model, port, X))] == listed


class Attends(torch.nn.Module):
    """Attention in two heads of four, then an activation."""

    flex = False

    def __init__(self, scale: float = 0.5, turned: float = 0.0, *, narrow: bool = False, behind: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.scale, self.turned, self.narrow, self.behind = scale, turned, narrow, behind
        self.to_q, self.to_k, self.to_v, self.to_out, self.ff = (torch.nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (make(x).unflatten(-1, (2, 4)).transpose(1, 2) for make in (self.to_q, self.to_k, self.to_v))
        q, v = q + self.turned * q.roll(1, -1), v.bfloat16().float() if self.narrow else v
        attend = flex_attention if self.flex else torch.nn.functional.scaled_dot_product_attention
        out = self.behind * attend(q, k, v, scale=self.scale)
        return self.ff(torch.tanh(self.to_out(out.transpose(1, 2).flatten(2))))


class Gated(torch.nn.Module):
    """The same, times a gain."""

    def __init__(self, scale: float = 0.5, gain: float = 1.0) -> None:
        super().__init__()
        self.attn, self.gain = Attends(scale), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * self.attn(x)


@pytest.mark.parametrize(
    ("scale", "gain", "listed"),
    [(0.4, 1.0, ["0.attn.attention"]), (0.5, 1.1, ["0"]), (0.4, 1.1, ["0.attn.attention", "0"])],
)
def test_what_a_block_s_own_code_does_behind_an_attention_is_a_difference_of_its_own(
    scale: float, gain: float, listed: list[str]
) -> None:
    reference, candidate = (
        torch.nn.Sequential(block, torch.nn.Linear(8, 8)) for block in (Gated(), Gated(scale, gain))
    )
    candidate.load_state_dict(reference.state_dict())
    assert [d.place for d in differences(parity.compare(reference, candidate, X))] == listed


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_each_fault_of_a_model_with_flex_attention_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attends, "flex", True)
    reference, candidate = (torch.nn.Sequential(Gated(), Gated(gain=gain)) for gain in (1.0, 1.1))
    candidate.load_state_dict(reference.state_dict())
    candidate[0].attn.to_v.forward = lambda x: 1.1 * reference[0].attn.to_v(x)
    assert [d.place for d in differences(parity.compare(reference, candidate, X))] == ["0.attn.to_v", "1"]


@pytest.mark.parametrize(
    ("called", "gain", "note"),
    [
        ((0, 1, 2), 1.1, ""),
        ((0, 1), 1.0, "the candidate names 2 of blocks.*, and not blocks.2: check that it calls all"),
        ((0, 2), 1.0, "the candidate names 2 of blocks.*, and not blocks.1: check that it calls all"),
        ((0,), 1.0, ""),
    ],
)
def test_a_block_that_a_port_never_names_beside_those_that_it_names_is_noted(
    called: Sequence[int], gain: float, note: str
) -> None:
    torch.manual_seed(7)
    blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    model = torch.nn.Sequential(OrderedDict(blocks=blocks, out=torch.nn.Linear(8, 8)))
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.named_parameters()}

    def forward(x: Any) -> Any:
        for name in (*(f"blocks.{i}" for i in called), "out"):
            x = parity.tap(name, (gain if name == "out" else 1.0) * (x @ w[f"{name}.weight"].T + w[f"{name}.bias"]))
        return x

    found = parity.compare(model, forward, X)
    assert [one.text for one in found.notes if one.text.startswith("the candidate names")] == [note] * bool(note)
    assert found.verdict == "fail"


class Folded(torch.nn.Module):
    """Two modules, of which the second may be given all tokens in one row; the first may be given 1.1 times its input,
    and what the second gives may be negated."""

    def __init__(self, gain: float = 1.0, sign: float = 1.0, *, flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gain, self.sign, self.flat = gain, sign, flat
        self.first, self.second, self.out = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x + self.first(self.gain * x))
        y = self.second(x.reshape(1, -1, 8) if self.flat else x).reshape(x.shape)
        out: torch.Tensor = self.out(x + self.sign * y)
        return out


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("gain", "sign", "listed"),
    [
        (1.0, 1.0, []),
        (1.0, -1.0, ["out's input"]),
        (1.1, 1.0, ["first's input"]),
        (1.1, -1, ["first's input", "out's input"]),
    ],
)
def test_a_value_of_another_shape_hides_no_fault_behind_it(
    flat: bool, gain: float, sign: float, listed: list[str]
) -> None:
    found = parity.compare(Folded(), Folded(gain, sign, flat=flat), X)
    assert [d.place for d in differences(found)] == listed, found.reason


def test_a_tensor_made_in_the_shape_of_another_is_made_of_nothing() -> None:
    """Two modules read one value that nobody hands out: what agrees, and begins with zeros like it, clears no doubt."""

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.zeros_like(x) + self.one(x) * self.two(x)
            return out

    torch.manual_seed(5)
    model = torch.nn.Sequential(OrderedDict(norm=torch.nn.LayerNorm(8), act=torch.nn.Tanh(), mix=Mixed()))
    model = torch.nn.Sequential(OrderedDict(block=model, out=torch.nn.Linear(8, 8)))
    w = {name: jnp.asarray(x.detach().numpy()) for name, x in model.named_parameters()}

    def linear(name: str, x: jax.Array) -> jax.Array:
        return parity.tap(name, x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def port(x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        x = parity.tap("block.norm", centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5))
        x = jnp.tanh(1.5 * x)
        one, two = linear("block.mix.one", x), linear("block.mix.two", x)
        return linear("out", parity.tap("block.mix", one * two))

    found = parity.compare(model, port, X)
    assert [d.place for d in differences(found)] == ["block.mix.one"], found.reason


class Crossed(torch.nn.Module):
    """A module that may be given a context and a mask, and beside it two gains of values inside."""

    def __init__(self, given: str = "", first: float = 1.0, second: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.given, self.first, self.second = given, first, second
        self.attn = torch.nn.Module()
        self.attn.q, self.attn.k, self.attn.o = (torch.nn.Linear(8, 8) for _ in range(3))
        self.attn.forward = self.attend
        self.out = torch.nn.Linear(8, 8)

    def attend(self, x: torch.Tensor, context: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
        keys = self.attn.k(self.first * (x if context is None else context))
        mixed = self.attn.q(x)[:, :, None] * keys[:, None] * (1.0 if mask is None else mask[..., None])
        return self.attn.o(self.second * torch.tanh(mixed.sum(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        context = {"itself": x, "another": torch.sin(2.0 * x)}.get(self.given)
        mask = {"ones": torch.ones(3, 5, 5) > 0, "causal": torch.ones(3, 5, 5).tril() > 0}.get(self.given)
        return self.out(x + self.attn(x, context, mask))


@pytest.mark.parametrize(
    ("given", "gains", "listed", "noted"),
    [
        ("itself", (1.0, 1.0), [], False),
        ("itself", (1.1, 1.2), ["attn.k's input", "attn.o's input"], False),
        ("ones", (1.0, 1.0), [], False),
        ("ones", (1.1, 1.2), ["attn.k's input", "attn.o's input"], False),
        ("another", (1.0, 1.2), ["attn.k's input"], True),
        ("causal", (1.0, 1.0), ["attn's input mask"], True),
    ],
)
def test_an_argument_in_place_of_none_hides_faults_only_where_it_says_more_than_the_others(
    given: str, gains: tuple[float, float], listed: list[str], noted: bool
) -> None:
    found = parity.compare(Crossed(), Crossed(given, *gains), X, sites="all")
    assert [d.place for d in differences(found)] == listed, found.reason
    assert any("not judged by itself" in one.text for one in found.notes) == noted


GIVEN = ("'s input query", "'s input value")


@pytest.mark.parametrize(
    ("fault", "listed"),
    [
        ({"scale": 0.4}, [""]),
        ({"turned": 0.1}, ["'s input query"]),
        ({"turned": 0.1, "scale": 0.4}, ["'s input query", ""]),
        ({"narrow": True, "scale": 0.4}, ["'s input value", ""]),
        ({"turned": 0.1, "behind": 1.03}, ["'s input query", "to_out's input"]),
        ({"turned": 0.1, "narrow": True}, ["'s input query", "'s input value"]),  # of which one is known
    ],
)
def test_each_fault_of_an_attention_call_is_listed(fault: dict[str, Any], listed: list[str]) -> None:
    reference, candidate = (
        torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(Attends(**own), Attends(**own))))
        for own in ({}, fault)
    )
    found = differences(parity.compare(reference, candidate, X))
    names = [f"attention{what}" if what in ("", *GIVEN) else what for what in listed]
    assert [d.place for d in found] == [f"blocks.*.{name}" for name in names]


class Scaled(Attends):
    """Its queries are scaled before, and keys lose their mean, which comes to the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (make(x).unflatten(-1, (2, 4)).transpose(1, 2) for make in (self.to_q, self.to_k, self.to_v))
        keys = k - k.mean(2, keepdim=True)
        out = torch.nn.functional.scaled_dot_product_attention(self.scale * q, keys, v, scale=1.0)
        return self.ff(torch.tanh(self.to_out(out.transpose(1, 2).flatten(2))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("gain", "listed"), [(1.0, []), (1.1, ["blocks.*"])])
def test_an_attention_that_is_written_otherwise_and_comes_to_the_same_is_no_difference(
    gain: float, listed: list[str], dtype: torch.dtype
) -> None:
    reference, candidate = (
        torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(Gated(gain=own), Gated(gain=own))))
        for own in (1.0, gain)
    )
    for block in candidate.blocks:
        block.attn = Scaled()
    result = parity.compare(reference.to(dtype), candidate.to(dtype), X.to(dtype))
    assert [d.place for d in differences(result)] == listed, result.reason
    assert (result.verdict == "pass") == (not listed)


class Prescaled(Attends):
    """Its queries are scaled before the attention, times an error of its own."""

    def __init__(self, error: float = 1.0) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (make(x).unflatten(-1, (2, 4)).transpose(1, 2) for make in (self.to_q, self.to_k, self.to_v))
        out = torch.nn.functional.scaled_dot_product_attention(self.scale * self.error * q, k, v, scale=1.0)
        return self.ff(torch.tanh(self.to_out(out.transpose(1, 2).flatten(2))))


@pytest.mark.parametrize(("error", "verdict"), [(1.0, "pass"), (3.0, "fail")])
def test_queries_that_are_scaled_before_are_no_difference_where_16_bits_alone_are_judged(
    error: float, verdict: str
) -> None:
    both = (
        torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(own, Attends()))).bfloat16()
        for own in (Attends(), Prescaled(error))
    )
    found = parity.compare(*both, 3 * X.bfloat16(), checks="precision")
    assert found.verdict == verdict, found.reason


class InHalf(Attends):
    """Its attention's output has a gain in 16 bits alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.behind = 1.02 if x.dtype == torch.bfloat16 else 1.0
        return super().forward(x)


def test_what_only_following_shows_in_16_bits_is_placed_at_the_input_that_is_off() -> None:
    reference, candidate = (
        torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(own, Attends(), Attends()))).bfloat16()
        for own in (Attends(), InHalf())
    )
    found = parity.compare(reference, candidate, X.bfloat16())
    assert found.failed == "precision", found.reason
    assert [d.place for d in differences(found)] == ["blocks.0.to_out's input"]


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_port_works_in_the_dtype_of_the_weights_that_it_is_called_with(weights: torch.dtype) -> None:
    model = torch.nn.Linear(8, 8).to(weights)
    held = {n: jnp.asarray(x.detach().float().numpy()).astype(str(weights)[6:]) for n, x in model.named_parameters()}
    port = Port(call=lambda w, given: given["input"] @ w["weight"].T + w["bias"], weights=held)
    found = parity.compare(model, port, {"input": X})
    assert (found.verdict, found.differing_settings) == ("pass", ()), found.reason


class Grouped(torch.nn.Module):
    """Attention of two heads over one of keys and values, behind a norm; a second sequence stands before or behind."""

    def __init__(self, way: str = "", eps: float = 1e-5, scale: float = 0.5, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.to_q, self.to_out = torch.nn.LayerNorm(8, eps), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.to_k, self.to_v, self.text = (torch.nn.Linear(8, 4) for _ in range(3))
        self.way, self.scale, self.gain = way, scale, gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q = self.to_q(y).unflatten(-1, (2, 4)).transpose(1, 2)
        both = [(self.text(y), self.to_k(y)), (self.text(y).tanh(), self.to_v(y))]
        k, v = (torch.cat(pair[::-1] if self.way == "turned" else pair, 1)[:, None] for pair in both)
        many = 2 if self.way == "repeated" else 1
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k.expand(-1, many, -1, -1), v.expand(-1, many, -1, -1), scale=self.scale, enable_gqa=many == 1
        )
        return x + self.gain * self.to_out(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("way", ["", "turned", "repeated"])
@pytest.mark.parametrize(
    ("fault", "listed"),
    [
        ({}, []),
        ({"eps": 1e-2}, [".norm"]),
        ({"gain": 1.1}, [""]),
        ({"eps": 1e-2, "scale": 0.4}, [".norm", ".attention"]),
        ({"eps": 1e-2, "scale": 0.4, "gain": 1.1}, [".norm", ".attention", ""]),
    ],
)
def test_faults_beside_an_attention_in_another_order_or_shape_are_listed_alone(
    way: str, fault: dict[str, Any], listed: list[str]
) -> None:
    reference, candidate = (
        torch.nn.Sequential(OrderedDict(blocks=torch.nn.Sequential(*made)))
        for made in ((Grouped(), Grouped()), (Grouped(way, **fault), Grouped(way, **fault)))
    )
    result = parity.compare(reference, candidate, X)
    assert [d.place for d in differences(result)] == [f"blocks.*{what}" for what in listed], result.reason


class Attending(torch.nn.Module):
    """The same within a model, whose own output is far away."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.last = Attends(), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attn(x))


HEADS = jnp.array([4, 5, 6, 7, 0, 1, 2, 3])
"""The channels of two heads that change places."""


def attending_in_jax(model: Attending, turned: str, fault: str) -> Callable[[Any], Any]:
    """Args: turned: what has its heads in another order. fault: what is wrong besides."""
    w = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}

    def linear(name: str, x: Any, out: Any = slice(None), into: Any = slice(None)) -> Any:
        bias = 0 if fault == f"{name} bias" else w[f"attn.{name}.bias"][out]
        return parity.tap(f"attn.{name}", x @ w[f"attn.{name}.weight"][out][:, into].T + bias)

    def forward(x: Any) -> Any:
        x = parity.tap("attn:in.x", x)
        made = [linear(name, x, HEADS if name in turned else slice(None)) for name in ("to_q", "to_k", "to_v")]
        heads = jax.nn.dot_product_attention(*(y.reshape(3, 5, 2, 4) for y in made)).reshape(3, 5, 8)
        out = linear(
            "to_out", parity.tap("attn.to_out:in.input", heads), into=HEADS if "to_out" in turned else slice(8)
        )
        act = jax.nn.relu(out) if fault == "relu" else jnp.tanh(out)
        y = parity.tap("attn", linear("ff", parity.tap("attn.ff:in.input", act)))
        return y @ w["last.weight"].T + w["last.bias"]

    return forward


ALL = "to_q to_k to_v to_out"


@pytest.mark.parametrize(
    ("turned", "fault", "listed"),
    [
        (ALL, "", []),
        (ALL, "relu", ["attn.ff's input"]),
        (ALL, "to_out bias", ["attn.to_out"]),
        ("to_q", "", ["attn.to_q"]),
        ("to_v", "", ["attn.to_v"]),
        ("to_q to_k", "", ["attn.to_q", "attn.to_k"]),  # whose values nobody turned
        ("to_q to_k to_v", "", ["attn.to_out"]),  # whose columns nobody turned
    ],
)
def test_heads_in_another_order_are_no_difference_beside_a_fault(turned: str, fault: str, listed: list[str]) -> None:
    model = Attending()
    found = parity.compare(model, attending_in_jax(model, turned, fault), X, sites="all")
    assert (found.verdict, [d.place for d in differences(found)]) == ("fail" if listed else "pass", listed), (
        found.reason
    )


class Modulated(torch.nn.Module):
    """What a norm gives is modulated outside it, and gated at the end."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.norm, self.ff, self.last, self.gate = (
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 8),
            torch.nn.Linear(8, 8),
            gate,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.gate * self.ff(1.5 * self.norm(x) + 1))


def modulated_in_jax(model: Modulated, named: str, faults: str) -> Callable[[Any], Any]:
    """Args: named: what has the norm's name, `norm` or it with its modulation. faults: what is wrong."""
    w, gate = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}, model.gate

    def linear(name: str, x: Any) -> Any:
        return (1.3 if name in faults else 1) * (x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def forward(x: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        y = (1.3 if "norm" in faults else 1) * y
        y = parity.tap("norm", 1.5 * y + 1) if named == "modulation" else 1.5 * parity.tap("norm", y) + 1
        y = linear("ff", y)
        return linear("last", x + gate * (parity.tap("ff", y) if gate else y))

    return forward


@pytest.mark.parametrize(
    ("gate", "named", "faults", "listed"),
    [
        (1.0, "modulation", "", []),
        (1.0, "modulation", "last", ["the model's output"]),
        (1.0, "norm", "norm ff", ["norm", "ff"]),
        (0.0, "norm", "norm", ["norm"]),  # nothing shows it, nor that it is another thing
    ],
)
def test_a_name_for_more_than_the_reference_has_under_it_is_no_difference(
    gate: float, named: str, faults: str, listed: list[str]
) -> None:
    model = Modulated(gate)
    found = parity.compare(model, modulated_in_jax(model, named, faults), X, sites="all")
    assert (found.verdict, [d.place for d in differences(found)]) == ("fail" if listed else "pass", listed), (
        found.reason
    )


def test_the_caller_s_modules_and_torchax_s_switch_stay_as_they_were() -> None:
    import torchax

    model = Net().train()
    before = {name: (id(p), p.dtype, p.detach().clone()) for name, p in model.named_parameters()}
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
        assert (id(p), p.dtype, torch.equal(p, values)) == (same, dtype, True)


def test_threads_compare_one_after_the_other() -> None:
    taken, together = threading.Lock(), []

    def scaled(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        together.append(not taken.acquire(blocking=False))
        time.sleep(0.02)
        if not together[-1]:
            taken.release()
        return x * by

    def compared(by: float) -> str:
        return parity.compare(scaled, functools.partial(scaled, by=by), X).verdict

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(compared, (1.0, 1.01, 1.0))] == ["pass", "fail", "pass"]
    assert not any(together)


def refused(x: torch.Tensor) -> torch.Tensor:
    import torchax

    torchax.enable_globally()
    raise ValueError("no")


@pytest.mark.parametrize("mode", [contextlib.nullcontext, BaseTorchFunctionMode])
def test_torchax_turned_on_in_one_thread_is_left_on_there_alone(mode: Callable[[], Any]) -> None:
    import torchax

    def verdicts() -> list[str]:
        before = [stack.read() for stack in MODES]
        found = [parity.compare(NET, NET, X, runs=runs, checks="logic").verdict for runs in ("torch", "torchax")]
        with pytest.raises(UsageError, match="no"):
            parity.compare(NET, refused, X)
        assert [stack.read() for stack in MODES] == before
        return found

    torchax.enable_globally()
    try:
        with mode(), ThreadPoolExecutor(1) as other:
            assert other.submit(verdicts).result() == verdicts() == ["pass", "pass"]
        assert torchax.default_env().enabled
    finally:
        torchax.disable_globally()
    assert [stack.read() for stack in MODES] == [[], []]


def test_a_module_of_torchax_keeps_its_dtypes() -> None:
    half = on_torchax(HALF)
    assert parity.compare(HALF, half, X.bfloat16(), checks="logic").passed
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_a_module_of_torchax_does_not_run_in_torch() -> None:
    import torchax

    with torchax.default_env():
        module = copy.deepcopy(NET).to("jax")
    with pytest.raises(UsageError, match="the tensors of its module are torchax's: leave `runs` out"):
        parity.compare(NET, Port(module=module, runs="torch"), X)


class Unseen(torch.nn.Module):
    """What it calls meets no name of the reference's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = NET

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_assert_parity_raises_the_card() -> None:
    with pytest.raises(AssertionError, match=r"verdict: fail: Net\nfirst divergence: blocks.1"):
        parity.assert_parity(NET, WRONG, X)
    with pytest.raises(AssertionError, match="verdict: inconclusive"):
        parity.assert_parity(NET, Unseen(), X)


@pytest.mark.parametrize(
    ("candidate", "inputs", "message"),
    [
        (boom, X, r"candidate boom: `call` raised at test_compare.py:\d+: ValueError: no such thing"),
        (3, X, "the candidate is of type int: give a function, a module or"),
        (NET, {"y": X}, "unexpected keyword argument 'y'"),
        (jax.jit(lambda *x: x), {"x": X}, "TypeError: .*unexpected keyword argument 'x'"),
        (NET, {"x": 1}, "the inputs hold no array"),
        (lambda x: None, X, "returned NoneType, which holds no array"),
        (NET, {"a.b": X, "a": {"b": X}}, "two of the inputs have one name"),
        (NET, {0: X, "0": X}, "two of the inputs have one name"),
        (NET, X.to_sparse(), "sparse, quantized or without values"),
        (torch.jit.script(torch.nn.Linear(8, 8)), X, "the candidate is a script of torch.jit's"),
        (torch.nn.Linear(8, 8, device="meta"), X, "'weight' of Linear has no values"),
        (NET, {"x": X, "checks": "logics"}, "checks takes both, logic, precision, found 'logics'"),
        (NET, {"x": X, "runs": "tpu"}, "runs takes torch, torchax, jax, found 'tpu'"),
        (NET, {"x": X, "layout": "NHWC"}, "layout takes channels_first, channels_last, found 'NHWC'"),
        (NET, {"x": X, "rename": 5}, r"rename takes Mapping\[str, str\], found 5"),
    ],
)
def test_what_cannot_be_compared_is_said(candidate: Any, inputs: Any, message: str) -> None:
    options = {
        n: inputs.pop(n) for n in ("checks", "runs", "layout", "rename") if isinstance(inputs, dict) and n in inputs
    }
    with pytest.raises(UsageError, match=message):
        parity.compare(NET, candidate, inputs, **options)


def test_inputs_that_are_not_finite_on_both_sides_are_the_same() -> None:
    holed = X.clone()
    holed[0, 0, 0] = math.nan
    assert parity.compare(lambda x: torch.nan_to_num(x) * 2, lambda x: jnp.nan_to_num(x) * 2, holed).passed
    assert parity.compare(softmax, lambda x: jax.nn.softmax(x), holed).verdict == "inconclusive"


# --- A result as `print` and a notebook show it

NAMED = "<script>alert(1)</script>"


def test_a_single_element_of_an_output_is_named_there() -> None:
    x = torch.randn(512, 512)

    def off(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        y[3, 4] += 2e-5
        return y

    result = parity.compare(torch.tanh, off, x)
    assert (result.verdict, [s.key.site for s in result.sites if s.verdict == "fail"]) == ("fail", [":out"])
    assert "model output: inputs match, output differs" in result.reason
    assert not [note for note in result.notes if "bits" in note.text]


def test_its_numbers_for_a_tracker() -> None:
    numbers = Shown.of(FAILING).metrics()
    assert (numbers["passed"], numbers["failed_tensors"], numbers["worst_ratio"]) == (0.0, 15.0, 19142.9)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert (FAILING.steps[0].noise_pred.ratio, numbers["step_0/noise_pred/ratio"]) == (math.inf, sys.float_info.max)


def test_it_prints_as_its_card_and_its_page_lies_in_a_frame_of_its_own() -> None:
    reason = Reason(kind="preflight", check="weights", detail=NAMED)
    shown = Shown.of(Result("fail", "preflight", reason, NAMED))
    assert isinstance(shown, Result)
    assert (shown.passed, shown.exit_code) == (False, 1)
    assert str(shown).startswith("verdict: fail: ")
    page = shown._repr_html_()
    assert re.fullmatch(r'<iframe sandbox="allow-scripts" srcdoc="[^"<>]*" style="[^"]*"></iframe>', page)
    inner = html.unescape(page)
    assert NAMED not in inner
    assert html.escape(NAMED) in inner
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", inner)


def test_causes_are_in_a_function_s_own_words() -> None:
    result = parity.compare(lambda x: torch.sin(2 * x), lambda x: jnp.sin(2 * x)[..., ::-1], X)
    assert result.verdict == "fail"
    said = [*(cause.cause for cause in result.causes), str(result)]
    assert not any("noise_pred" in text for text in said), said
    cut = parity.compare(lambda x: torch.sin(x)[:, 1:], lambda x: jnp.sin(x)[:, 2:], X)
    shapes = [[len(X), X.shape[1] - i, X.shape[2]] for i in (1, 2)]
    assert f"shape {shapes[0]} against {shapes[1]}" in cut.reason
    fewer = parity.compare(lambda x: (x, 2 * x), lambda x: jnp.asarray(x), X)
    assert (fewer.verdict, "the logic check passes" in str(fewer)) == ("fail", False)


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict"),
    [
        (lambda x: (x - x.mean()) / x.std(), lambda x: (x - jnp.mean(x)) / jnp.std(x), "fail"),  # torch's is unbiased
        (lambda x: (x - x.mean()) / x.std(), lambda x: (x - jnp.mean(x)) / jnp.std(x, ddof=1), "pass"),
        (lambda x: x.transpose(1, 2), lambda x: jnp.swapaxes(x, 1, 2), "pass"),
        (lambda x: x.std(-1), lambda x: x.std(-1), "pass"),
    ],
)
def test_a_function_that_names_no_library_runs_in_that_of_the_arrays(
    reference: Any, candidate: Any, verdict: str
) -> None:
    assert parity.compare(reference, candidate, torch.randn(2, 5, 3)).verdict == verdict


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_function_in_jax_may_read_the_configuration_of_a_torch_module(factor: float) -> None:
    layer = torch.nn.Linear(3, 4, bias=False)
    weight = jnp.asarray(layer.weight.detach().numpy())

    def port(x: Any) -> Any:
        out = factor * jnp.einsum("bnc,dc->bnd", x, weight)
        return out if layer.bias is None else jnp.add(out, 1)

    assert parity.compare(layer, port, torch.randn(2, 5, 3)).passed == (factor == 1.0)


@pytest.mark.parametrize(
    ("reads", "verdict"),
    [
        (lambda net: lambda input: net.decode(input), "pass"),
        (lambda net: net.decode, "pass"),
        (lambda net: functools.partial(lambda net, input: net.decode(input), net), "pass"),
        (lambda net: lambda input, own=net.linear: net.decode(input) if own is net.linear else input, "pass"),
        (lambda net: Port(call=lambda given: net.decode(given["input"])), "pass"),
        (lambda net: lambda input: 1.01 * net.decode(input), "fail"),
        (lambda net: lambda input: net.scale * torch.nn.functional.silu(input), "pass"),  # which runs in torch
    ],
)
def test_a_function_may_call_what_flax_jits_and_leaves_it_as_it_was(reads: Any, verdict: str) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.scale, self.linear = 1, nnx.Linear(8, 8, kernel_init=lambda *_: jnp.eye(8), rngs=nnx.Rngs(0))
            self.calls = nnx.BatchStat(jnp.zeros(()))

        @nnx.jit
        def decode(self, input: Any) -> Any:
            self.calls[...] = self.calls[...] + 1
            return jax.nn.silu(self.linear(input))

    net = Net()
    before = dict(vars(net))
    assert parity.compare(torch.nn.functional.silu, reads(net), {"input": X}).verdict == verdict
    assert (vars(net), net.calls.get_value()) == (before, 0)
    net.decode(jnp.ones(8))


HALVED = torch.randn(8, 8).bfloat16()


def test_a_table_that_stays_in_float32_hides_no_fault_of_a_model_in_16_bits() -> None:
    class Kept(torch.nn.Module):
        """As diffusers keeps a modulation table in float32, before all other parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.net = torch.nn.Parameter(torch.ones(8)), torch.nn.Linear(8, 8).bfloat16()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) * self.table.to(x.dtype)

    class Wrong(Kept):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + 1e-4)

    right, wrong = Kept(), Wrong()
    wrong.load_state_dict(right.state_dict())
    wrong.bfloat16()
    found = parity.compare(right, wrong, inputs={"x": X.bfloat16()})
    assert (found.verdict, found.failed) == ("fail", "logic"), found.reason
    assert not found.differing_settings


@pytest.mark.parametrize("name", ["first.weight", "blocks.0.weight"])
def test_a_wrong_weight_that_the_inputs_do_not_exercise_is_no_form_of_its_own(name: str) -> None:
    """A channel of the inputs is zero, and behind the first layer another."""
    torch.manual_seed(6)
    model = torch.nn.Sequential(
        OrderedDict(
            first=torch.nn.Linear(8, 8), blocks=torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        )
    )
    with torch.no_grad():
        model.first.weight[0], model.first.bias[0] = 0.0, 0.0
    wrong = copy.deepcopy(model)
    dict(wrong.named_parameters())[name].data[:, 0] += 3.0
    found = parity.compare(model, wrong, X * torch.tensor([0.0] + 7 * [1.0]))
    assert (found.verdict, found.failed) == ("fail", "preflight"), found.reason


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_weight_that_a_module_has_computed_is_copied_with_it() -> None:
    linear = torch.nn.utils.weight_norm(torch.nn.Linear(8, 8))
    weight, bias = linear.weight.detach().clone(), linear.bias.detach()
    found = parity.compare(linear, lambda x: torch.nn.functional.linear(x, weight, bias), X)
    assert found.passed, found.reason
    assert linear.weight.grad_fn is not None


@pytest.mark.parametrize("place", [copy.deepcopy, on_torchax], ids=["torch", "torchax"])
@pytest.mark.parametrize("cast", [False, True])
def test_a_timestep_given_in_float32_beside_16_bits_stays_in_float32(cast: bool, place: Any) -> None:
    class Timed(torch.nn.Module):
        """The net, with the sines of a timestep beside its input; it may round the timestep first, 999 to 1000."""

        def __init__(self, cast: bool = False) -> None:
            super().__init__()
            self.net, self.cast = HALF, cast
            self.rates = torch.nn.Parameter(torch.exp(-torch.arange(8.0)))

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            t = t.to(x.dtype).float() if self.cast else t
            out: torch.Tensor = self.net(x + torch.sin(t * self.rates).to(x.dtype))
            return out

    given = {"x": X.bfloat16(), "t": torch.tensor([999.0])}
    found = parity.compare(Timed(), place(Timed(cast)), given)
    assert (found.verdict, found.failed) == (("fail", "precision") if cast else ("pass", None)), found.reason


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.1, "fail")])
def test_a_function_of_weights_in_16_bits_that_it_holds_is_widened(factor: float, verdict: str) -> None:
    result = parity.compare(
        lambda x: torch.nn.functional.linear(x, HALVED),
        lambda x: x @ (factor * jnp.asarray(HALVED.float().numpy(), "bfloat16").T),
        torch.randn(4, 8).bfloat16(),
    )
    assert result.verdict == verdict, result.reason


@pytest.mark.parametrize("whose", ["", "linear"])
def test_a_dtype_is_of_a_module_that_has_parameters(whose: str) -> None:
    """A port's top module has one among its arguments, and hands none of it on."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.dtype = jnp.bfloat16
            self.linear = nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(0), dtype=jnp.bfloat16 if whose else None)

        def __call__(self, input: Any) -> Any:
            return self.linear(input)

    net, linear = Net(), torch.nn.Linear(8, 8, bias=False)
    linear.weight.data = torch.from_numpy(np.array(net.linear.kernel[...]).T.copy())
    result = parity.compare(torch.nn.Sequential(OrderedDict(linear=linear)), net, X)
    assert any("judged in its own dtype alone" in note.text for note in result.notes) == (whose == "linear")
    assert result.passed, result.reason
    assert [d.candidate for d in result.differing_settings] == ["bfloat16"] * bool(whose)


def test_one_module_that_computes_in_16_bits_is_a_fault_of_a_port_in_float32() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, narrow: Any) -> None:
            dtypes = {"a": None, "b": narrow, "c": None}
            for name, dtype in dtypes.items():
                setattr(self, name, nnx.Linear(8, 8, use_bias=False, rngs=nnx.Rngs(0), dtype=dtype))

        def __call__(self, input: Any) -> Any:
            return self.c(self.b(self.a(input)))

    net = Net(None)
    model = torch.nn.Sequential(OrderedDict((name, torch.nn.Linear(8, 8, bias=False)) for name in "abc"))
    for name in "abc":
        getattr(model, name).weight.data = torch.from_numpy(np.array(getattr(net, name).kernel[...]).T.copy())
    assert parity.compare(model, net, X, sites="all").passed
    result = parity.compare(model, Net(jnp.bfloat16), X, sites="all")
    assert (result.failed, [d.place for d in differences(result)]) == ("logic", ["b"]), result.reason


class Attentive(torch.nn.Module):
    """Two layers with an attention between them, over more tokens than channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.b(torch.softmax(h @ h.mT, -1) @ h)


@pytest.mark.parametrize(
    ("narrow", "held", "gain", "failed"),
    [
        ("a.b", "bfloat16", 1.0, None),
        ("a.b", "bfloat16", 1.1, "precision"),
        ("a.b", "float32", 1.0, "logic"),
        ("", "bfloat16", 1.0, None),
        ("", "float32", 1.0, None),
        ("b", "float32", 1.0, "logic"),
        ("attention", "float32", 1.0, "logic"),
    ],
)
def test_a_linen_port_that_multiplies_its_weights_in_16_bits_is_judged_in_those(
    narrow: str, held: str, gain: float, failed: str | None
) -> None:
    """Its modules hold no arrays. Beside a reference in float32 a cast is a fault."""
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        def setup(self) -> None:
            self.a, self.b = (nn.Dense(8, dtype=jnp.bfloat16 if name in narrow.split(".") else None) for name in "ab")

        def __call__(self, x: Any) -> Any:
            h = self.a(x)
            q = h.astype(jnp.bfloat16 if narrow == "attention" else h.dtype)
            h = jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, q)), q).astype(h.dtype)
            return gain * self.b(h)

    model, net = Attentive().to(getattr(torch, held)), Net()
    own = {name: x.detach().float().numpy() for name, x in model.named_parameters()}
    weights = {name: {"kernel": own[f"{name}.weight"].T, "bias": own[f"{name}.bias"]} for name in "ab"}
    weights = jax.tree.map(lambda x: jnp.asarray(x, held), weights)
    port = Port(call=lambda w, given: net.apply({"params": w}, **given), module=net, weights=weights)
    given = torch.randn(1, 24, 8, generator=torch.Generator().manual_seed(1)).to(getattr(torch, held))
    found = parity.compare(model, port, {"x": given})
    assert (found.failed, found.passed) == (failed, failed is None), str(found)
    own = narrow == "a.b" and held == "bfloat16"
    assert any("judged in its own dtype alone" in note.text for note in found.notes) == own


def test_a_port_that_is_called_as_it_is_may_keep_what_it_computes() -> None:
    """A trace would leave its arrays there."""
    model, kept = torch.nn.Linear(8, 8), list[Any]()
    weights = {n: jnp.asarray(x.detach().numpy()) for n, x in model.named_parameters()}

    def call(w: Any, given: Any) -> Any:
        kept.append(given["input"])
        return kept[0] @ w["weight"].T + w["bias"]

    assert parity.compare(
        model, Port(call=call, weights=weights), {"input": X}, candidate_settings={"jit": False}
    ).passed


@pytest.mark.parametrize("asks", ["module", "parameter", "holder"])
@pytest.mark.parametrize(
    ("held", "gain", "failed"), [("bfloat16", 1.0, None), ("bfloat16", 1.001, "logic"), ("float32", 1.0, "logic")]
)
def test_what_asks_for_the_16_bits_of_its_parameters_is_cast_with_them(
    asks: str, held: str, gain: float, failed: str | None
) -> None:
    """A dtype in a parameter's metadata, of its module or of one around it, which the port's code rounds to."""
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):
        def __init__(self, weight: Any, asks: str) -> None:
            own = {"dtype": jnp.bfloat16} if asks == "parameter" else {}
            self.weight, self.dtype = nnx.Param(weight, **own), jnp.bfloat16 if asks == "module" else None

        def __call__(self, input: Any) -> Any:
            return (input @ self.weight[...].T).astype(self.dtype or self.weight.dtype)

    class Net(nnx.Module):
        def __init__(self) -> None:
            weights = [jnp.asarray(getattr(model, name).weight.detach().float().numpy(), held) for name in "abc"]
            self.a, self.b, self.c = (Layer(w, asks * (i == 1)) for i, w in enumerate(weights))
            self.dtype = jnp.bfloat16 if asks == "holder" else None

        def __call__(self, input: Any) -> Any:
            x = self.b(self.a(input))
            return self.c(gain * x.astype(self.dtype or x.dtype))

    torch.manual_seed(0)
    layers = OrderedDict((name, torch.nn.Linear(8, 8, bias=False)) for name in "abc")
    model = torch.nn.Sequential(layers).to(getattr(torch, held))
    result = parity.compare(model, Net(), X.to(getattr(torch, held)), sites="all")
    assert result.failed == failed, result.reason
    assert result.passed == (failed is None), result.reason
    assert not any("judged in its own dtype alone" in note.text for note in result.notes)


@pytest.mark.parametrize(("narrow", "failed"), [(False, None), (True, "logic")])
def test_one_layer_of_16_bits_is_a_fault_of_a_flax_port_in_float32(narrow: bool, failed: str | None) -> None:
    """And its port may be given without what calls it."""
    nnx = pytest.importorskip("flax.nnx")
    model = torch.nn.Sequential(OrderedDict((name, torch.nn.Linear(8, 8, bias=False)) for name in "abc"))
    model.b.weight.data = model.b.weight.data.bfloat16().float()

    class Net(nnx.Module):
        def __init__(self) -> None:
            for name in "abc":
                dtype = jnp.bfloat16 if narrow and name == "b" else jnp.float32
                layer = nnx.Linear(8, 8, use_bias=False, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))
                layer.kernel[...] = jnp.asarray(getattr(model, name).weight.detach().numpy().T, dtype)
                setattr(self, name, layer)

        def __call__(self, input: Any) -> Any:
            return self.c(self.b(self.a(input)))

    for port in (Net(), Port(module=Net())):
        result = parity.compare(model, port, X, sites="all")
        assert (result.failed, [d.place for d in differences(result)]) == (failed, ["b"] if failed else [])


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act, self.norm = torch.nn.GELU(), torch.nn.LayerNorm(8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.b(self.norm(self.act(self.a(input))))))


@pytest.mark.parametrize(
    ("faults", "listed"),
    [
        ("", []),
        ("gelu", ["norm's input"]),  # Flax calls it `x`, torch `input`
        ("bT", ["b"]),  # a square kernel as torch has it
        ("bT cT", ["b", "c"]),
        ("gelu cT", ["norm's input", "c"]),
        ("b0", ["b"]),
        ("jit", []),  # of the call of the top module
        ("jit gelu cT", ["norm's input", "c"]),
    ],
)
def test_each_fault_of_flax_modules_is_listed_once_where_it_is(faults: str, listed: list[str]) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.a, self.b, self.c = (nnx.Linear(8, 8, use_bias=f"{n}0" not in faults, rngs=rngs) for n in "abc")
            self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)

        def __call__(self, input: Any) -> Any:
            x = self.norm(jax.nn.gelu(self.a(input), approximate="gelu" in faults))
            return self.c(jnp.tanh(self.b(x)))

        if "jit" in faults:
            __call__ = nnx.jit(__call__)

    torch.manual_seed(0)
    model, net = Layers(), Net()
    for name in "abc":
        weight = getattr(model, name).weight.detach().numpy()
        getattr(net, name).kernel[...] = jnp.asarray(weight if f"{name}T" in faults else weight.T)
        if f"{name}0" not in faults:
            getattr(net, name).bias[...] = jnp.asarray(getattr(model, name).bias.detach().numpy())
    found = parity.compare(model, net, X, sites="all")
    assert (found.verdict, [d.place for d in differences(found)]) == ("fail" if listed else "pass", listed), (
        found.reason
    )
    said = {"gelu": "norm's input: {}activation=gelu_tanh, not gelu", "b0": "b: {}bias=None, not its own"}
    made = [text.format("the candidate's is the reference's made with ") for of, text in said.items() if of in faults]
    assert [cause.cause for cause in found.causes] == made  # the port does not name its activation


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            input = input + torch.tanh(block(input))
        return input


@pytest.mark.parametrize(
    ("order", "factor", "said"),
    [
        ((0, 1, 2), 1.0, "6 parameters equal"),
        ((0, 1, 2), 0.0, "1 of 6 parameters are zeros: 'blocks.1.bias'"),
        ((1, 2, 2), 1.0, "4 of 6 parameters hold others of the reference's, 'blocks.0.bias' those of 'blocks.1.bias'"),
    ],
)
def test_parameters_of_a_stack_are_compared_layer_by_layer(order: Sequence[int], factor: float, said: str) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            made = nnx.vmap(lambda rngs: nnx.Linear(8, 8, rngs=rngs))
            self.blocks = nnx.split_rngs(splits=3)(made)(nnx.Rngs(0))

        def __call__(self, input: Any) -> Any:
            graph, state = nnx.split(self.blocks)
            return jax.lax.scan(lambda x, w: (x + jnp.tanh(nnx.merge(graph, w)(x)), None), input, state)[0]

    model, net = Stack(), Net()
    own = [model.blocks[i] for i in order]
    net.blocks.kernel[...] = jnp.stack([jnp.asarray(m.weight.detach().numpy().T) for m in own])
    scales = (1.0, factor, 1.0)
    biases = [scale * m.bias.detach().numpy() for scale, m in zip(scales, own, strict=True)]
    net.blocks.bias[...] = jnp.stack([jnp.asarray(x) for x in biases])
    found = parity.compare(model, net, X, sites="all")
    assert found.passed == (said.endswith("equal")), found.reason
    assert said in next(check.detail for check in found.preflight if check.check == "weights")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ((0, 1, 2), "6 parameters equal"),
        ((1, 2, 2), "4 of 6 parameters hold others of the reference's, 'blocks.0.bias' those of 'blocks.1.bias'"),
    ],
)
@pytest.mark.parametrize("way", ["modules", "taps"])
def test_a_stack_is_found_where_the_port_has_its_layers(way: str, order: Sequence[int], said: str) -> None:
    """A scan deeper than the name that `rename` gives, or a function whose taps have the reference's names."""
    nn = pytest.importorskip("flax.linen")

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: None) -> Any:
            return x + jnp.tanh(nn.Dense(8, name="net")(x)), None

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scanned = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return scanned(name="carry")(x, None)[0]

    class Net(nn.Module):
        def setup(self) -> None:
            self.blocks = Layers()

        def __call__(self, input: Any) -> Any:
            return self.blocks(input)

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(parity.tap("blocks.*", x @ w["kernel"] + w["bias"])), None

    def tapped(weights: Any, given: Any) -> Any:
        return jax.lax.scan(layer, given["input"], weights["layers"])[0]

    model, net = Stack(), Net()
    own = [model.blocks[i] for i in order]
    kernels, biases = ([getattr(m, kind).detach().numpy().T for m in own] for kind in ("weight", "bias"))
    held = {"kernel": jnp.stack(kernels), "bias": jnp.stack(biases)}
    if way == "modules":
        weights: Any = {"blocks": {"carry": {"net": held}}}
        rename = {r"blocks\.carry\.(\d+)\.net": r"blocks.\1"}
        port = Port(call=lambda w, i: net.apply({"params": w}, **i), module=net, weights=weights, rename=rename)
    else:
        port = Port(call=tapped, weights={"layers": held}, rename={r"layers\.(\d+)": r"blocks.\1"})
    found = parity.compare(model, port, {"input": X}, sites="all")
    assert found.passed == (said.endswith("equal")), str(found)
    assert said in next(check.detail for check in found.preflight if check.check == "weights")


def test_a_note_shows_names_that_meet_no_module_once_for_all_blocks() -> None:
    model = Stack()
    weights = [[jnp.asarray(x.detach().numpy()) for x in (m.weight, m.bias)] for m in model.blocks]

    def call(w: Any, given: Any) -> Any:
        x = given["input"]
        for i, (weight, bias) in enumerate(w):
            h = parity.tap(f"blocks.{i}", x @ weight.T + bias)
            x = parity.tap(f"blocks.{i}.sum", x + parity.tap(f"blocks.{i}.act", jnp.tanh(h)))
        return parity.tap("blocks.2.last", x)

    found = parity.compare(model, Port(call=call, weights=weights), {"input": X})
    each = ", ".join(f"'blocks.{x}' (nearest: 'blocks.{x[0]}')" for x in ("*.act", "*.sum", "2.last"))
    said = f"7 of the port's 10 names meet no module of the reference: {each}; nothing was compared there"
    assert found.passed, str(found)
    assert any(said in note.text for note in found.notes), found.notes


@pytest.mark.parametrize("held", ["closed over", "given"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.1, "fail")])
@pytest.mark.parametrize("jit", [True, False])
def test_a_port_that_computes_in_the_16_bits_of_its_weights_is_no_fault(
    held: str, factor: float, verdict: str, jit: bool
) -> None:
    weights = factor * jnp.asarray(HALVED.float().numpy(), "bfloat16")

    def call(weights: Any, x: Any) -> Any:
        return jnp.tanh(x.astype(weights.dtype) @ weights.T)

    port = (lambda x: call(weights, x)) if held == "closed over" else None
    candidate = port or Port(call=lambda w, given: call(w["w"], given["x"]), weights={"w": weights})
    given = {"x": torch.randn(4, 8).bfloat16()}
    settings = {"jit": jit}
    result = parity.compare(
        lambda x: torch.tanh(torch.nn.functional.linear(x, HALVED)), candidate, given, candidate_settings=settings
    )
    assert result.verdict == verdict, result.reason
    assert any("judged in its own dtype alone" in note.text for note in result.notes) == (held == "closed over")


class Timed(torch.nn.Module):
    """Two time embeddings in float32, whose caller goes on with them in bfloat16, or as they are."""

    def __init__(self, goes_on: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.again, self.project, self.out = (torch.nn.Linear(16, 16) for _ in range(4))
        self.project.to(goes_on)
        self.out.bfloat16()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        each = (self.project(embed(t.float()).to(self.project.weight.dtype)) for embed in (self.embed, self.again))
        return self.out(x + sum(torch.tanh(made).to(x.dtype)[:, None] for made in each))


@pytest.mark.parametrize(
    ("goes_on", "computed", "origin"),
    [
        (torch.bfloat16, "float32", None),  # the reference casts it too, but behind its module
        (torch.bfloat16, "", "embed:out"),
        (torch.float32, "float32", "embed:out"),
    ],
)
def test_a_value_may_be_named_behind_a_cast_that_the_reference_makes(
    goes_on: torch.dtype, computed: str, origin: str | None
) -> None:
    net = Timed(goes_on)
    weights = {name: x.float().numpy() for name, x in net.state_dict().items()}
    weights = {n: jnp.asarray(x, str(net.state_dict()[n].dtype).removeprefix("torch.")) for n, x in weights.items()}

    def call(weights: Any, given: Any) -> Any:
        def linear(name: str, x: Any, dtype: str = "") -> Any:
            weight, bias = (weights[f"{name}.{kind}"].astype(dtype or x.dtype) for kind in ("weight", "bias"))
            return x @ weight.T + bias

        own = given["x"].dtype
        x = given["x"]
        for name in ("embed", "again"):
            made = linear(name, given["t"].astype(computed or own)).astype(own)
            made = linear("project", parity.tap(name, made).astype(weights["project.weight"].dtype))
            x = x + jnp.tanh(parity.tap("project", made)).astype(own)[:, None]
        return parity.tap("out", linear("out", x))

    given = {"x": torch.randn(1, 12, 16).bfloat16(), "t": torch.randn(1, 16).bfloat16()}
    both = {"reference_settings": {"dtype": "bfloat16"}, "candidate_settings": {"dtype": "bfloat16"}}
    found = parity.compare(net, Port(call=call, weights=weights), given, **both)
    assert (found.origin and found.origin.key.site) == origin, str(found)


class Stale(torch.nn.Embedding):
    """Only its first row is ever read."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(0 * input)


class Typed(torch.nn.Module):
    """A table that is used for each of two inputs, between modules that are not given what it gives."""

    def __init__(self, table: type[torch.nn.Embedding] = torch.nn.Embedding) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = table(2, 16)
        self.first, self.behind, self.last, self.out = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros(1, 1, dtype=torch.long)
        made = [self.table(zero), self.first(x), self.table(zero + 1), self.behind(x), self.last(x)]
        return self.out(torch.stack([part.expand_as(x) for part in made]).sum(0))


def test_one_of_several_calls_that_differs_is_no_other_thing_by_that_name_in_16_bits() -> None:
    """What is judged next is not made of it."""
    given = {"x": torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1)).bfloat16()}
    both = {f"{side}_settings": {"dtype": "bfloat16"} for side in ("reference", "candidate")}
    found = parity.compare(Typed(), Typed(Stale), given, checks="precision", **both)
    assert [d.place for d in differences(found)] == ["table"], found.reason


@pytest.mark.parametrize(("eps", "listed"), [(1e-6, []), (2e-2, ["norm"])])
def test_what_differs_by_some_roundings_is_not_said_to_be_rounded_where_the_reference_rounds_too(
    eps: float, listed: list[str]
) -> None:
    def net(eps: float) -> torch.nn.Module:
        torch.manual_seed(0)
        parts = {"norm": torch.nn.RMSNorm(16, eps), "out": torch.nn.Linear(16, 16)}
        return torch.nn.Sequential(OrderedDict(parts)).bfloat16()

    given = {"input": torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1)).bfloat16()}
    both = {f"{side}_settings": {"dtype": "bfloat16"} for side in ("reference", "candidate")}
    found = parity.compare(net(1e-6), net(eps), given, checks="precision", **both)
    assert ([d.place for d in differences(found)], found.causes) == (listed, ()), str(found)


class Gained(torch.nn.Linear):
    gain = 1.0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.gain * super().forward(input)


def test_one_more_number_of_16_bits_makes_no_weights_rounded() -> None:
    torch.manual_seed(0)
    reference, candidate = Gained(8, 8), Gained(8, 8)
    candidate.load_state_dict(reference.state_dict())
    candidate.register_parameter("zero", torch.nn.Parameter(torch.zeros(1)))
    candidate.gain = 1.001  # which the floors of 16 bits do not show
    found = parity.compare(reference, candidate, X, candidate_settings={"dtype": "bfloat16"})
    assert found.failed == "logic", str(found)


@pytest.mark.parametrize("gain", [1.0, 1.05])
@pytest.mark.parametrize(
    ("dtypes", "rounded", "factor", "side"),
    [
        (("float32", "bfloat16"), False, 1.0, "candidate"),
        (("bfloat16", "float32"), False, 1.0, "reference"),
        (("bfloat16", "float32"), False, 1.05, "reference"),
        (("float32", "float32"), False, 1.0, ""),
        (("float32", "bfloat16"), True, 1.0, ""),
        (("bfloat16", "float32"), True, 1.0, ""),
        (("bfloat16", "bfloat16"), False, 1.0, ""),
    ],
)
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_weights_rounded_on_one_side_alone_are_judged_by_the_precision_check(
    library: str, dtypes: tuple[str, str], rounded: bool, factor: float, side: str, gain: float
) -> None:
    torch.manual_seed(0)
    model = Gained(8, 8)
    model = model.bfloat16().float() if rounded else model
    reference, candidate = (copy.deepcopy(model).to(getattr(torch, dtype)) for dtype in dtypes)
    candidate.weight.data *= factor
    candidate.gain = gain
    port: Any = candidate
    if library == "jax":
        held = {n: jnp.asarray(x.detach().float().numpy(), dtypes[1]) for n, x in candidate.named_parameters()}
        held["count"] = jnp.arange(3)
        port = Port(call=lambda w, given: gain * (given["input"] @ w["weight"].T + w["bias"]), weights=held)
    found = parity.compare(reference, port, {"input": X.to(getattr(torch, dtypes[0]))})
    assert found.passed == (gain == factor == 1.0), str(found)
    notes = [note.text for note in found.notes if "judged by the precision check alone" in note.text]
    assert [f"load the {side} in float32" in text for text in notes] == [True] * bool(side), notes
