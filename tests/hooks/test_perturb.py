"""Monte Carlo rounding moves what rounds, by one ulp, and leaves the model as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity.hooks.attach import attached
from parity.hooks.perturb import perturbed
from parity.paths.loaded import Loaded
from tests.hooks.seen import gathered, make_tap


class Keeps(torch.nn.Module):
    """Remembers what its forward was given and what its parameters were then; returns its input."""

    def __init__(self, *, parameters: bool = True, fails: bool = False) -> None:
        super().__init__()
        if parameters:
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
            self.bias = torch.nn.Parameter(torch.zeros(4))
        self.fails = fails
        self.given: list[Any] = []
        self.used: list[dict[str, torch.Tensor]] = []

    def forward(self, x: Any) -> Any:
        self.given.append(x)
        self.used.append({name: p.detach().clone() for name, p in self._parameters.items() if p is not None})
        if self.fails:
            raise RuntimeError("inside")
        return x


class Pair(torch.nn.Module):
    """A module within a module, both with parameters."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2, 2))
        self.inner = Keeps(fails=fails)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def neighbours(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next number below and above each."""
    below, above = (torch.full_like(x, v) for v in (-torch.inf, torch.inf))
    return torch.nextafter(x, below), torch.nextafter(x, above)


def moved_by_one_ulp(before: torch.Tensor, after: torch.Tensor) -> bool:
    down, up = neighbours(before)
    return bool(((after == down) | (after == up)).all()) and bool((after == up).any()) and bool((after == down).any())


def given(module: Keeps, x: Any, seed: int = 0) -> Any:
    with perturbed(module, seed):
        module(x)
    return module.given[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_every_other_float_tensor_moves_by_exactly_one_ulp(dtype: torch.dtype) -> None:
    x = values(5, 7, dtype=dtype)
    seen = given(Keeps().to(dtype), x)
    assert seen.dtype == dtype
    assert moved_by_one_ulp(x, seen)


def test_zeros_stay_zero() -> None:
    x = values(6, 6)
    x[2:4] = 0
    seen = given(Keeps(), x)
    assert torch.equal(seen == 0, x == 0)


def test_vectors_numbers_and_integers_stay() -> None:
    things = {"vector": values(6), "number": torch.tensor(1.5), "tokens": torch.arange(6).reshape(2, 3), "none": None}
    seen = given(Keeps(), {**things, "flag": True, "nest": (values(3, 3), ["text", 2.0])})
    assert all(torch.equal(seen[name], things[name]) for name in ("vector", "number", "tokens"))
    assert (seen["none"], seen["flag"], seen["nest"][1]) == (None, True, ["text", 2.0])
    assert moved_by_one_ulp(values(3, 3), seen["nest"][0])


def test_masks_of_zeros_and_ones_stay() -> None:
    """A cast to integers, as of what counts a mask's rows, would make 0 of what lies an ulp below 1."""
    model, mask = Keeps(), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    with perturbed(model, 3):
        model(mask)
        model(mask + 0.5)
    assert torch.equal(model.given[0], mask)
    assert not torch.equal(model.given[1], mask + 0.5)


def test_the_tensor_itself_is_not_written_to() -> None:
    x = values(4, 4)
    before = x.clone()
    given(Keeps(), x)
    assert torch.equal(x, before)


def test_outputs_move_as_well() -> None:
    x = values(4, 4)
    module = Keeps()
    with perturbed(module, 0):
        out = module(x)
    assert moved_by_one_ulp(module.given[0], out)


@pytest.mark.parametrize("terms", [64, 1024, 2048])
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
    ratio = (one_by_one - exact).norm() / (moved - exact).norm()
    assert 0.35 < ratio < 1.15


@pytest.mark.parametrize("module", [torch.nn.Conv1d(4, 8, 3), torch.nn.Conv3d(4, 8, 3, padding=1)])
def test_convolutions_move_likewise_and_rows_of_zeros_stay(module: torch.nn.Module) -> None:
    module.bias = None
    x = torch.zeros(1, 4, *([6] * len(module.kernel_size)))  # type: ignore[arg-type]
    with torch.no_grad(), perturbed(module, 0):
        assert not module(x).any()
        x[:] = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        moved = module(x)
    with torch.no_grad():
        assert 0 < (moved - module(x)).norm() / moved.norm() < 1e-6


def test_parameters_move_during_the_call_only() -> None:
    module = Pair()
    before = {name: (p, p.detach().clone()) for name, p in module.named_parameters()}
    with perturbed(module, 0):
        module(values(4, 4))
        assert all(p is before[name][0] for name, p in module.named_parameters())
    used = module.inner.used[0]
    assert moved_by_one_ulp(before["inner.weight"][1], used["weight"])
    assert not used["bias"].any()
    for name, p in module.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])


@pytest.mark.parametrize("caught", [True, False], ids=["caught within", "caught outside"])
def test_parameters_and_hooks_are_restored_after_exceptions(caught: bool) -> None:
    module = Pair(fails=True)
    before = {name: (p, p.detach().clone()) for name, p in module.named_parameters()}
    if caught:
        with perturbed(module, 0):
            with pytest.raises(RuntimeError, match="inside"):
                module(values(4, 4))
            assert all(p is before[name][0] for name, p in module.named_parameters())
    else:
        with pytest.raises(RuntimeError, match="inside"), perturbed(module, 0):
            module(values(4, 4))
    for name, p in module.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    x = values(4, 4)
    with pytest.raises(RuntimeError, match="inside"):
        module(x)
    assert module.inner.given[-1] is x


class Waves(torch.nn.Module):
    """No parameters and no children: its table comes from constants, and nothing at its boundary shows it."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.table = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.sin(torch.linspace(0.1, 3, 64).reshape(8, 8))
        if self.fails:
            raise RuntimeError("inside")
        return x


def with_weights(waves: Waves) -> torch.nn.Module:
    """A model that has parameters elsewhere."""
    return torch.nn.Sequential(waves, torch.nn.Linear(2, 2))


def test_elementary_functions_move_in_modules_of_constants() -> None:
    waves = Waves()
    model = with_weights(waves)
    model(values(2, 2))
    exact = waves.table
    with perturbed(model, 0):
        model(values(2, 2))
    assert moved_by_one_ulp(exact, waves.table)


class Wide(torch.nn.Module):
    """Frequencies in float64, as some time embeddings have them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = 1.0 / torch.pow(10000.0, torch.arange(64, dtype=torch.float64) / 64)
        return (1000.0 * frequencies).sin()[None] * x[:, :1]


def test_float64_of_a_models_own_is_as_coarse_as_float32() -> None:
    """JAX has none unless told otherwise: the sine of a phase of 1000 is then 3e-5 away, where an ulp is 1e-16."""
    model = with_weights(Wide())
    exact = model[0](torch.ones(1, 2))
    with perturbed(model, 0):
        moved = model[0](torch.ones(1, 2))
    assert 1e-6 < float((moved - exact).norm() / exact.norm()) < 1e-4


class Embedding(torch.nn.Module):
    """A time embedding whose frequencies its own forward makes, in front of a linear layer."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(128, 4)
        self.waves, self.activations, self.fails = torch.zeros(0), torch.zeros(0), fails

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-torch.linspace(0.0, 9.2, 64))
        phase = t[:, None] * frequencies
        self.waves = torch.cat([phase.cos(), phase.sin()], dim=-1)
        self.activations = torch.exp(torch.linspace(-1, 1, 12).reshape(3, 4))
        if self.fails:
            raise RuntimeError("inside")
        return self.linear(self.waves)


def test_frequencies_that_a_module_with_children_makes_move() -> None:
    """Nothing at a boundary shows them, and a timestep multiplies their ulp; functions of activations stay."""
    model = torch.nn.Sequential(Embedding())
    t = torch.tensor([300.0])
    model(t)
    waves, activations = model[0].waves, model[0].activations
    with perturbed(model, 0):
        model(t)
    assert 1e-6 < float((model[0].waves - waves).norm() / waves.norm()) < 1e-5
    assert torch.equal(model[0].activations, activations)


def test_frequencies_are_themselves_after_a_failure() -> None:
    x, model = torch.linspace(0.1, 3, 64), torch.nn.Sequential(Embedding(fails=True))
    exact = torch.exp(x)
    with pytest.raises(RuntimeError, match="inside"), perturbed(model, 0):
        model(torch.tensor([300.0]))
    assert torch.equal(torch.exp(x), exact)


@pytest.mark.parametrize("fails", [False, True])
def test_elementary_functions_are_themselves_afterwards(fails: bool) -> None:
    model = with_weights(Waves(fails))
    x = torch.linspace(0.1, 3, 64).reshape(8, 8)
    exact = torch.sin(x)
    expected = pytest.raises(RuntimeError, match="inside") if fails else contextlib.nullcontext()
    with expected, perturbed(model, 0):
        model(values(2, 2))
    assert torch.equal(torch.sin(x), exact)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    module, x = torch.nn.Linear(8, 8), values(4, 8)
    results = []
    for seed in (0, 0, 1):
        with perturbed(module, seed):
            results.append(module(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    given(Keeps(), values(4, 4))
    assert torch.equal(torch.rand(3), expected)


def test_a_tap_sees_what_the_module_is_given() -> None:
    module, x = Keeps(), values(4, 4)
    tap = make_tap(module, values=(":in", ":out"))
    with perturbed(module, 0), attached(module, tap):
        out = module(x)
    seen = gathered(tap)
    assert torch.equal(torch.from_numpy(seen.at(":in.x").value), module.given[0])
    assert torch.equal(torch.from_numpy(seen.at(":out").value), out)


def test_the_tiny_models_prediction_moves_by_rounding_only(tiny_side: Callable[..., Loaded]) -> None:
    side = tiny_side("torch")
    model = side.backend.module()
    parameters = dict(model.named_parameters())
    arguments = side.family.model_arguments(
        side.case, side.settings, side.inputs.noise, torch.tensor([500.0]), side.backend.dtype
    )
    with side.backend.scope():
        exact = model(**arguments, **side.inputs.conditions["cond"], return_dict=False)[0]
        with perturbed(model, 0):
            moved = model(**arguments, **side.inputs.conditions["cond"], return_dict=False)[0]
        again = model(**arguments, **side.inputs.conditions["cond"], return_dict=False)[0]
    assert 1e-8 < float((moved - exact).norm() / exact.norm()) < 1e-4
    assert torch.equal(again, exact)
    assert all(p is parameters[name] for name, p in model.named_parameters())


class Remembers(torch.nn.Module):
    """Keeps its place, and what it saw, in lists that it is given: as the convolutions of Wan's VAE do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor | None], place: list[int]) -> torch.Tensor:
        at = place[0]
        place[0] += 1
        before, cache[at] = cache[at], x
        return self.mix(x if before is None else x + before)


def test_what_a_module_writes_into_a_list_that_it_is_given_stays_written() -> None:
    net = torch.nn.ModuleList(Remembers() for _ in range(2))

    def run() -> torch.Tensor:
        cache: list[torch.Tensor | None] = [None, None]
        for frame in range(2):
            place, x = [0], torch.full((3, 4), 1.0 + frame)
            for module in net:
                x = module(x, cache, place)
            assert place == [2]
        return x

    with torch.no_grad():
        plain = run()
        with perturbed(net, 1):
            moved = run()
    assert 0 < (moved - plain).norm() / plain.norm() < 1e-5
