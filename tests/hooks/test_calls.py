"""Module calls handed over with their inputs, run again in another dtype, and seen of objects that have no hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity.hooks.calls import Call, calls_of
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


# --- again in another dtype ------------------------------------------------------------------------------------


class Sinusoids(torch.nn.Module):
    """Makes its operand in float32 whatever its weights are, as Motif's time embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.linear(x.float().sin())
        scores = torch.nn.functional.scaled_dot_product_attention(made[None], x.float()[None], made[None])[0]
        return torch.matmul(self.conv(x.float()[None].mT)[0], scores)


def test_a_module_is_run_again_in_float64() -> None:
    module, x = Sinusoids(), torch.linspace(0.1, 1, 8).reshape(2, 4)
    call = Call("module", 0, ("cond",), (x,), {}, None)
    wide, narrow = rerun(module, call, torch.float64), rerun(module, call, None)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(wide.float(), narrow, atol=1e-6)
    assert not torch.equal(wide, narrow.double())  # computed in float64, not only returned so


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
