"""Calls handed over: the right ones, with the inputs as they were, and none of those made while handling one."""

from __future__ import annotations

from typing import Any

import torch

from parity.hooks.calls import Call, calls_of, mapped, retyped


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


def collected(model: torch.nn.Module, handle: Any = None) -> list[Call]:
    found: list[Call] = []

    def take(call: Call) -> None:
        found.append(call)
        if handle is not None:
            handle(call)

    with calls_of(model, ["inner"], ("cond",), take):
        model(torch.ones(2, 3))
    return found


def test_each_call_comes_with_its_inputs_before_the_module_wrote_to_them() -> None:
    first, second = collected(Outer())
    assert [(c.module, c.number, c.branches) for c in (first, second)] == [("inner", i, ("cond",)) for i in (0, 1)]
    assert torch.equal(first.args[0], torch.ones(2, 3))
    assert torch.equal(second.args[0], 2 * torch.ones(2, 3))
    assert torch.equal(second.kwargs["rest"][1], 2 * torch.ones(2, 3))
    assert torch.equal(second.output, 6 * torch.ones(2, 3))


def test_calls_made_while_handling_one_are_not_handed_over() -> None:
    model = Outer()
    found = collected(model, lambda call: model.inner(torch.ones(1), scale=torch.tensor(1.0)))
    assert len(found) == 2
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks


def test_inputs_take_the_dtypes_of_their_sites() -> None:
    (call, second) = collected(Outer())
    sites = {"inner:in.x": torch.bfloat16, "inner:in.rest.1": torch.float16}
    changed = retyped(Inner(), second, sites)
    assert changed.args[0].dtype == torch.bfloat16
    assert changed.kwargs["scale"].dtype == torch.float32
    assert [x.dtype for x in changed.kwargs["rest"]] == [torch.float32, torch.float16]
    assert retyped(Inner(), call, {}).args[0].dtype == torch.float32


def test_mapping_keeps_the_nest() -> None:
    nest = {"a": (torch.ones(1), None, [torch.ones(2), 3]), "b": "text"}
    out = mapped(lambda x: x.numel(), nest)
    assert out == {"a": (1, None, [2, 3]), "b": "text"}
