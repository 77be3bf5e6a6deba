"""Monte Carlo rounding moves what rounds, by one ulp, and leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diffusers.utils import BaseOutput
from torch.nn import functional

from parity.hooks.perturb import perturbed
from parity.hooks.torchtools import mapped
from parity.settings.chips import EPS


class Keeps(torch.nn.Module):
    """Remembers what its forward was given and what its parameters were then; returns its input."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
        self.bias = torch.nn.Parameter(torch.zeros(4))
        self.fails = fails
        self.given: list[Any] = []
        self.used: list[dict[str, torch.Tensor]] = []

    def forward(self, x: Any) -> Any:
        self.given.append(x)
        self.used.append({name: p.detach().clone() for name, p in self.named_parameters()})
        if self.fails:
            raise RuntimeError("inside")
        return x


class Outer(torch.nn.Module):
    """A module within a module, both with parameters."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2, 2))
        self.inner = Keeps(fails=fails)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Computes(torch.nn.Module):
    """Hands a module what it has computed, which is no longer what it was given itself; remembers what that gave."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.gave: Any = None

    def forward(self, x: Any) -> Any:
        self.gave = self.inner(mapped(torch.clone, x))
        return self.gave


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def moved_by_one_ulp(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Every element is the next number below or above, and some are each."""
    down, up = (torch.nextafter(before, torch.full_like(before, v)) for v in (-torch.inf, torch.inf))
    return bool(((after == down) | (after == up)).all()) and bool((after == up).any()) and bool((after == down).any())


def given(module: Keeps, x: Any, seed: int = 0) -> Any:
    model = Computes(module)
    with perturbed(model, seed):
        model(x)
    return module.given[-1]


# --- what moves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_float_tensors_move_by_exactly_one_ulp(dtype: torch.dtype) -> None:
    x, module = values(5, 7, dtype=dtype), Keeps().to(dtype)
    model, before = Computes(module), x.clone()
    with perturbed(model, 0):
        model(x)
    (seen,), out = module.given, model.gave
    assert (seen.dtype, out.dtype) == (dtype, dtype)
    assert moved_by_one_ulp(x, seen)
    assert moved_by_one_ulp(seen, out)
    assert torch.equal(x, before)  # the tensor itself is not written to


@dataclass
class Output(BaseOutput):
    sample: torch.Tensor
    more: Any = None


def test_an_output_object_moves_as_a_tuple_does() -> None:
    x = values(5, 7)
    module = Keeps()
    module.forward = lambda x: Output(x, (x,))  # type: ignore[method-assign]
    with perturbed(module, 0):
        out = module(x + 0)
    assert isinstance(out, Output)
    assert moved_by_one_ulp(x, out.sample)
    assert moved_by_one_ulp(x, out.more[0])
    assert out.more[0] is out.sample  # what a caller writes into one, it writes into both


def test_what_rounding_does_not_touch_stays() -> None:
    """Zeros, vectors, numbers, integers; masks too: a cast to integers would make 0 of what lies an ulp below 1."""
    mask, zeros = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), values(6, 6)
    zeros[2:4] = 0
    things = {"vector": values(6), "number": torch.tensor(1.5), "tokens": torch.arange(6).reshape(2, 3), "mask": mask}
    seen = given(Keeps(), {**things, "none": None, "flag": True, "nest": (zeros, ["text", 2.0]), "half": mask + 0.5})
    assert all(torch.equal(seen[name], things[name]) for name in things)
    assert (seen["none"], seen["flag"], seen["nest"][1]) == (None, True, ["text", 2.0])
    assert torch.equal(seen["nest"][0] == 0, zeros == 0)
    assert moved_by_one_ulp(zeros[zeros != 0], seen["nest"][0][zeros != 0])
    assert not torch.equal(seen["half"], mask + 0.5)


class Handed(torch.nn.Module):
    """Hands on what it is given, a view of it, and what it computes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList([Keeps() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        return [module(y) for module, y in zip(self.inner, (x, x[:2].T, x * 1.0), strict=True)]


def test_what_a_model_is_given_stays_and_what_it_computes_of_it_moves() -> None:
    model, x = Handed(), values(4, 4)
    with perturbed(model, 0):
        model(x)
    given, view, computed = (module.given[0] for module in model.inner)
    assert torch.equal(given, x)
    assert torch.equal(view, x[:2].T)
    assert moved_by_one_ulp(x, computed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_wide_run_computes_in_float32_and_moves_by_half_an_ulp_of_16_bits(dtype: torch.dtype) -> None:
    module, x = Keeps().to(dtype), values(64, 64).to(dtype)
    model = Computes(module)
    with perturbed(model, 0, wide=True):
        out = model(x)
    (seen,) = module.given
    assert (seen.dtype, module.used[0]["weight"].dtype, module.weight.dtype, out.dtype) == (
        torch.float32,
        torch.float32,
        dtype,
        dtype,
    )
    apart = (seen - x.float()).abs() / (torch.finfo(dtype).eps * x.float().abs())
    assert 0.4 < float(apart.max()) <= 0.5
    assert 0.1 < float(apart.mean()) < 0.25


@pytest.mark.parametrize("terms", [64, 2048])
def test_products_move_by_what_adding_their_terms_one_by_one_rounds(terms: int) -> None:
    """As far as an implementation that sums in that order is: neither far below (false alarms) nor far above."""
    torch.manual_seed(terms)
    module, x = torch.nn.Linear(terms, 128), torch.randn(1, 32, terms)
    exact = module.double()(x.double()).detach()
    module.float()
    one_by_one = torch.zeros(1, 32, 128)
    for k in range(terms):
        one_by_one += x[..., k : k + 1] * module.weight.detach()[:, k]
    one_by_one += module.bias.detach()
    with torch.no_grad(), perturbed(module, 0):
        moved = module(x)
    assert 0.35 < (one_by_one - exact).norm() / (moved - exact).norm() < 1.15


@pytest.mark.parametrize("module", [torch.nn.Conv1d(4, 8, 3), torch.nn.Conv3d(4, 8, 3, padding=1)])
def test_convolutions_move_too_and_rows_of_zeros_stay(module: torch.nn.Module) -> None:
    module.bias = None
    x = torch.zeros(1, 4, *([6] * len(module.kernel_size)))  # type: ignore[arg-type]
    with torch.no_grad(), perturbed(module, 0):
        assert not module(x).any()
        x[:] = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        moved = module(x)
    with torch.no_grad():
        assert 0 < (moved - module(x)).norm() / moved.norm() < 1e-6


def in_one_pass(x: torch.Tensor, *, in_a_row: bool) -> torch.Tensor:
    """[groups, numbers], each group without its mean, over its deviation, as Flax's norms have both; with sums of one
    number after the other, as XLA's over pixels, or of pairs."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        total = x.cumsum(-1, dtype=torch.float32)[:, -1:] if in_a_row else x.sum(-1, keepdim=True)
        return total / x.shape[-1]

    middle = mean(x)
    return (x - middle) * (mean(x * x) - middle * middle + 1e-5).rsqrt()


NORMS: dict[str, tuple[torch.nn.Module, bool]] = {
    "layer": (torch.nn.LayerNorm(48), False),
    "layer, not affine": (torch.nn.LayerNorm(48, elementwise_affine=False), False),
    "layer of two axes": (torch.nn.LayerNorm((24, 48)), False),
    "group": (torch.nn.GroupNorm(4, 24), True),
}


@pytest.mark.parametrize("middle", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("name", NORMS)
def test_norms_move_by_what_their_mean_and_their_mean_square_round(name: str, middle: float) -> None:
    """As far as one pass over the input is off: neither far below (false alarms) nor far above."""
    module, grouped = NORMS[name]
    x = torch.randn(2, 24, 48, generator=torch.Generator().manual_seed(1)) + middle
    rows = x.reshape(2 * 4, -1) if grouped else x.reshape(-1, getattr(module, "normalized_shape", (48,))[-1])
    rows = x.reshape(2, -1) if name == "layer of two axes" else rows
    other = in_one_pass(rows, in_a_row=grouped).reshape(x.shape)
    with torch.no_grad():
        exact = module.double()(x.double())
        module.float()
        with perturbed(module, 0):
            moved = module(x)
        assert 0.1 < (other - exact).norm() / (moved - exact).norm() < 1.5
        assert not module(x.new_zeros(x.shape)).any()


def test_no_norm_moves_far_however_its_values_lie() -> None:
    x = torch.randn(2, 24, 48, generator=torch.Generator().manual_seed(1)) + 1e3
    x[:, ::2] = 30.0  # rows without a variance
    for module in (torch.nn.LayerNorm(48), torch.nn.GroupNorm(4, 24)):
        with torch.no_grad(), perturbed(module, 0):
            moved = module(x)
        assert float((moved - module(x)).norm()) < 1e-3 * moved.numel() ** 0.5
    module = torch.nn.LayerNorm(48)
    with torch.no_grad(), perturbed(module, 0):
        torch.vmap(lambda row: functional.layer_norm(row, (48,)))(x)  # in which nothing can be drawn


class Waves(torch.nn.Module):
    """A time embedding whose frequencies its own forward makes: nothing at its boundary shows them."""

    def __init__(self, make: Callable[[], torch.Tensor], *, has_children: bool = True, fails: bool = False) -> None:
        super().__init__()
        self.make, self.fails, self.table = make, fails, torch.zeros(0)
        if has_children:
            self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.make()
        if self.fails:
            raise RuntimeError("inside")
        return x


GRID = torch.linspace(0.1, 3, 64).reshape(8, 8)


def frequencies() -> torch.Tensor:
    return (300.0 * torch.exp(-torch.linspace(0.0, 9.2, 64))).cos()


def phases() -> torch.Tensor:
    """As Mochi's rotary table adds up a phase of three places."""
    places = torch.arange(24.0).reshape(8, 3)
    return torch.einsum("nd,df->nf", places, torch.linspace(1.0, 16.0, 24).reshape(3, 8)).cos()


def wide() -> torch.Tensor:
    """In float64, as some time embeddings have them; JAX has none unless told, and is 3e-5 away at a phase of 1000."""
    return (1000.0 / torch.pow(10000.0, torch.arange(64, dtype=torch.float64) / 64)).sin()


@pytest.mark.parametrize(
    ("make", "has_children", "least", "most"),
    [
        (lambda: torch.sin(GRID), False, 1e-8, 1e-6),  # a module of constants: one ulp
        (frequencies, True, 1e-6, 1e-5),  # a timestep multiplies their ulp
        (wide, False, 1e-6, 1e-4),  # as coarse as float32
        (lambda: torch.exp(torch.linspace(-1, 1, 12).reshape(3, 4)), True, -1, 0),  # activations stay
        (phases, False, 1e-6, 1e-4),  # a phase is a sum of products, whose ulp is that of what is large
    ],
)
def test_made_frequencies_move(make: Callable[[], torch.Tensor], has_children: bool, least: float, most: float) -> None:
    waves = Waves(make, has_children=has_children)
    model = torch.nn.Sequential(waves, torch.nn.Linear(2, 2))  # has parameters elsewhere
    with perturbed(model, 0):
        model(values(2, 2))
    off = float((waves.table - make()).norm() / make().norm())
    assert least < off <= most
    assert has_children or make in (wide, phases) or moved_by_one_ulp(make(), waves.table)


# --- nothing is left behind ------------------------------------------------------------------------------------


TABLES = ("given", "made", "positions", "plain", "turns")


class Tables(torch.nn.Module):
    """One that the checkpoint gives, and others that its `__init__` makes."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.exp(-torch.arange(8.0))
        self.register_buffer("given", made)
        self.register_buffer("made", made.clone(), persistent=False)
        self.register_buffer("positions", torch.arange(8.0), persistent=False)
        self.plain, self.turns = made.clone(), torch.polar(torch.ones(8), made)
        self.seen = dict[str, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = {name: getattr(self, name).clone() for name in TABLES}
        return x


class Cache(torch.nn.Module):
    """Remembers what it was given, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.full((2, 2), 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x + self.held
        self.held.copy_(x)
        return out


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_module_writes_into_a_table_stays_written(mode: Callable[[], AbstractContextManager[None]]) -> None:
    module = Cache()
    with mode(), perturbed(module, 0):
        module(torch.full((2, 2), 3.7))
        assert torch.allclose(module(torch.ones(2, 2)), torch.tensor(4.7))
    assert torch.equal(module.held, torch.ones(2, 2))


def test_tables_that_no_checkpoint_gives_move() -> None:
    """Another implementation makes them by itself: Kandinsky 5's are an attribute and buffers."""
    module = Tables()
    before = {name: getattr(module, name) for name in TABLES}
    with perturbed(module, 0):
        module(torch.ones(2, 2))
    moved = {name for name, x in module.seen.items() if not torch.equal(x, before[name])}
    assert moved == {"made", "plain", "turns"}
    assert all((module.seen[name] - before[name]).abs().max() < 2e-7 for name in moved)
    assert all(getattr(module, name) is x for name, x in before.items())


@pytest.mark.parametrize("fails", ["no", "caught within", "caught outside"])
def test_parameters_and_hooks_are_restored(fails: str) -> None:
    module, x = Outer(fails=fails != "no"), values(4, 4)
    before = {name: (p, p.detach().clone()) for name, p in module.named_parameters()}

    def intact() -> bool:
        return all(p is before[n][0] and torch.equal(p, before[n][1]) for n, p in module.named_parameters())

    if fails == "caught outside":
        with pytest.raises(RuntimeError, match="inside"), perturbed(module, 0):
            module(x)
    else:
        with perturbed(module, 0):
            if fails == "no":
                module(x)
            else:
                with pytest.raises(RuntimeError, match="inside"):
                    module(x)
            assert intact()  # they move during the call only
    assert intact()
    assert moved_by_one_ulp(before["inner.weight"][1], module.inner.used[0]["weight"])
    assert not module.inner.used[0]["bias"].any()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_functions_and_random_state_are_restored(fails: bool) -> None:
    exact = torch.sin(GRID), torch.exp(GRID)
    model = torch.nn.Sequential(Waves(frequencies, fails=fails))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    try:
        with perturbed(model, 0):
            model(values(2, 2))
    except RuntimeError:
        assert fails
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.sin(GRID), exact[0])
    assert torch.equal(torch.exp(GRID), exact[1])


def test_a_seed_gives_one_result() -> None:
    module, x = torch.nn.Linear(8, 8), values(4, 8)
    results = []
    for seed in (0, 0, 1):
        with perturbed(module, seed):
            results.append(module(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# --- the elementary functions of a chip ------------------------------------------------------------------------

X = torch.linspace(-4, 4, 4096).reshape(64, 64)


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "exp": (torch.exp, 33 * EPS),
    "sigmoid": (torch.sigmoid, 4e-5),
    "softmax": (lambda x: x.softmax(-1), 35 * EPS),
    "attention": (lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0], 35 * EPS),
    "norm": (lambda x: functional.rms_norm(x, (64,)), 2 * EPS),
    "named argument": (lambda x: functional.gelu(input=x, approximate="tanh"), 2e-6),
    "quotient": (lambda x: 1 / (x.abs() + 1), 2 * EPS),
}
ALIKE = [lambda x: x / 3, lambda x: x * x, lambda x: x.bfloat16().exp().float()]


class Apply(torch.nn.Module):
    """A module with weights, so that no rule but the chip's moves what it computes inside."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.scale, self.seen = function, torch.nn.Parameter(torch.zeros(1)), torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.function(X)
        return x + self.scale


def inside(function: Callable[[torch.Tensor], torch.Tensor], chip: str) -> torch.Tensor:
    module = Apply(function)
    with torch.no_grad(), perturbed(module, 5, chip=chip):
        module(X)
        assert torch.equal(torch.exp(X), X.exp())  # outside of the model's calls
    return module.seen


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_move_by_what_their_chip_may_be_off(name: str) -> None:
    function, about = FUNCTIONS[name]
    exact = function(X)
    assert torch.equal(inside(function, ""), exact)
    off = float((inside(function, "v6e") - exact).norm() / exact.norm())
    assert about / 8 < off < about


@pytest.mark.parametrize("function", ALIKE)
def test_what_every_chip_computes_alike_stays(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert torch.equal(inside(function, "v4"), function(X))
    infinities = inside(lambda x: torch.exp(torch.tensor([[200.0, -torch.inf]])), "v5e")
    assert infinities.tolist() == [[torch.inf, 0.0]]
