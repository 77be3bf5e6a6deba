"""Hooks come and go without a trace; attention calls are seen once; silence is an error."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from parity.errors import InconclusiveError
from parity.hooks.attach import attached
from parity.hooks.tap import require_fired
from parity.hooks.torchtools import callable_modules
from parity.models.attention import AttentionSettings, attend
from tests.hooks.seen import Seen, gathered, make_tap, observe

PORTS = ("in.query", "in.key", "in.value", "out")


class Attention(torch.nn.Module):
    """Four rows of two heads of eight, by torch's own function or by parity's `attend`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.to_q = how, torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_q(x).unflatten(2, (2, 8)), x.unflatten(2, (2, 8)), (x * 2).unflatten(2, (2, 8))
        if self.how == "attend":
            valid = torch.ones(x.shape[:2], dtype=torch.bool)
            return attend(q, k, v, valid, AttentionSettings("sdpa", "none")).flatten(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.how == "folded":  # heads in the batch
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)
        if self.how == "keywords":
            return F.scaled_dot_product_attention(query=q, key=k, value=v).transpose(1, 2).flatten(2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Model(torch.nn.Module):
    """A list of attention blocks, and a module that is never called."""

    def __init__(self, how: str = "torch", calls: int = 1) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Attention(how) for _ in range(2)])
        self.spare, self.calls = torch.nn.Linear(2, 2), calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            for _ in range(self.calls):
                x = block(x)
        return x


class Fails(torch.nn.Module):
    """Raises inside a submodule's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Identity()
        self.inner.forward = self._raise  # type: ignore[method-assign]

    def _raise(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("inside")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def tokens() -> torch.Tensor:
    return torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))


def hooks(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# --- without a trace -------------------------------------------------------------------------------------------


def test_observing_does_not_change_the_result_and_leaves_no_hooks() -> None:
    model, x = Model(), tokens()
    before = model(x)
    with attached(model, make_tap(model)):
        assert hooks(model) > 0
        assert torch.equal(model(x), before)
    assert hooks(model) == 0
    assert torch.equal(model(x), before)
    names = ["", "blocks.0", "blocks.0.to_q", "blocks.1", "blocks.1.to_q", "spare"]
    assert list(callable_modules(model)) == names  # a list of modules cannot be called


def test_hooks_are_removed_after_an_exception() -> None:
    model = Fails()
    tap = make_tap(model)
    with pytest.raises(RuntimeError, match="inside"), attached(model, tap):
        model(tokens())
    assert hooks(model) == 0
    # And attention announces itself to nobody.
    attend(*[torch.ones(1, 2, 1, 4)] * 3, torch.ones(1, 2, dtype=torch.bool), AttentionSettings("sdpa", "none"))
    assert gathered(tap).sites() == [":in.x", "inner:in.x"]


# --- attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["torch", "keywords", "folded", "attend"])
@pytest.mark.parametrize("calls", [1, 2])
def test_attention_calls_are_seen_once_and_counted_by_their_owner(how: str, calls: int) -> None:
    seen = observe(Model(how, calls), tokens())
    attention = [(site, call) for _, site, call in seen.order if "attention" in site]
    assert attention == [(f"blocks.{i}.attention:{p}", c) for i in range(2) for c in range(calls) for p in PORTS]
    assert seen.at("blocks.0.attention:in.query").shape == (1, 4, 2, 8)


def test_torch_and_parity_attention_record_the_same() -> None:
    ours, theirs = Model("torch"), Model("attend")
    theirs.load_state_dict(ours.state_dict())
    a, b = observe(ours, tokens()), observe(theirs, tokens())
    assert a.order == b.order
    for key in a.order:
        assert a.records[key].shape == b.records[key].shape
        np.testing.assert_allclose(a.records[key].sketch, b.records[key].sketch, atol=1e-6)


class Guarded(torch.nn.Module):
    """Tries a kernel that does not run here, then torch's attention: what many ports do."""

    def __init__(self) -> None:
        super().__init__()
        self.flash = Fails()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.flash(x)
        except RuntimeError:
            q = x[:, None]
            return F.scaled_dot_product_attention(q, q, q)[:, 0]


def test_a_call_that_raised_and_was_caught_has_no_part_in_what_follows() -> None:
    model = torch.nn.Sequential(Guarded(), torch.nn.Identity())
    seen = [(site, call) for _, site, call in observe(model, tokens()).order]
    own = [("0.attention:out", 0), ("0:out", 0), ("1:in.input", 0), ("1:out", 0), (":out", 0)]
    assert seen[-5:] == own
    assert ("0.flash:in.x", 0) in seen
    assert not any(site.startswith("0.flash.attention") for site, _ in seen)


def test_an_attention_that_a_script_replaced_before_it_imported_parity_is_seen() -> None:
    program = """
import torch, torch.nn.functional as F
own = F.scaled_dot_product_attention
def mine(query, key, value, *args, **kwargs):
    return own(query, key, value, *args, **kwargs)
F.scaled_dot_product_attention = mine
from tests.hooks.test_attach import Model, make_tap, attached, tokens, gathered
model = Model(); tap = make_tap(model)
with attached(model, tap):
    model(tokens())
print([site for site in gathered(tap).sites() if site.startswith("blocks.0.attention")], tap.ran())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert str([f"blocks.0.attention:{port}" for port in PORTS]) in ran.stdout
    assert "the port's own function mine" in ran.stdout


@pytest.mark.parametrize(("own", "seen"), [(lambda query, key, value: value + 1, 4), (lambda q, k, v: v + 1, 0)])
def test_a_scripts_own_attention_is_called_by_its_own_names(
    own: Any, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", own)

    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            named: Any = dict.fromkeys(inspect.signature(own).parameters, x)
            return torch.nn.functional.scaled_dot_product_attention(**named)

    model, x = Attends(), torch.randn(1, 1, 4, 8)
    with attached(model, tap := make_tap(model)):
        assert torch.equal(model(x), x + 1)
    assert sum(site.startswith("attention:") for site in gathered(tap).sites()) == seen


def test_flex_attention_that_a_module_is_given_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention as home

    def compiled(*args: Any, **kwargs: Any) -> Any:
        return home.flex_attention(*args, **kwargs)

    vars(compiled)["_torchdynamo_orig_callable"] = home.flex_attention  # as torch.compile leaves it
    monkeypatch.setattr(home, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    kept: Any = types.ModuleType("kept_by_a_port")
    monkeypatch.setitem(sys.modules, "kept_by_a_port", kept)

    class Attends(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = kept.attend(x, x, x)
            return found

    ran = []
    for kept.attend in (home.flex_attention, compiled):
        model = Attends()
        with attached(model, tap := make_tap(model)):
            model(torch.randn(1, 1, 4, 8))
        ran += tap.ran().values()
    assert ran[0] == "torch's own, 1 call"
    assert re.fullmatch(r"the port's own function compiled \(.*\), 1 call", ran[1])
    assert len(ran) == 2, "what a compiled function calls inside is no call of its own"


# --- containers -------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor
    backend: str = "xla"


class Pairing(torch.nn.Module):
    def forward(self, x: torch.Tensor, pair: Pair | None = None) -> Pair:
        return Pair(x, x + 1 if pair is None else pair.second)


def test_tensors_of_a_dataclass_are_seen() -> None:
    model = Pairing()
    tap = make_tap(model)
    with attached(model, tap):
        model(tokens(), Pair(tokens(), tokens() + 2))
    assert gathered(tap).sites() == [":in.x", ":in.pair.first", ":in.pair.second", ":out.0", ":out.1"]


# --- what is chosen has to fire --------------------------------------------------------------------------------


def fired(sites: str, values: tuple[str, ...] = (), silenced: frozenset[str] = frozenset(), calls: int = 1) -> Seen:
    model = Model(calls=calls)
    tap = make_tap(model, sites, values=values)
    with attached(model, tap):
        model(tokens())
    require_fired(tap.plan, tap.plan.must_fire - silenced, tap.calls, {e.site for e in tap.entries})
    return gathered(tap)


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ("blocks.0.attention:out", [("blocks.0.attention:out", 0), ("blocks.0.attention:out", 1)]),
        ("blocks.?:out", [("blocks.0:out", 0), ("blocks.0:out", 1), ("blocks.1:out", 0), ("blocks.1:out", 1)]),
        ("blocks.1.to_q:out", [("blocks.1.to_q:out", 0), ("blocks.1.to_q:out", 1)]),  # counted as if all were chosen
    ],
)
def test_only_chosen_sites_are_recorded(sites: str, expected: list[tuple[str, int]]) -> None:
    assert [key[1:] for key in fired(sites, calls=2).order] == expected


def test_of_a_glob_one_module_has_to_fire() -> None:
    assert {key[1].partition(".")[0] for key in fired("*s*:out").order} == {"blocks"}


@pytest.mark.parametrize(
    ("sites", "values"),
    [
        (glob, ())
        for glob in ("spare", "spar?", "blocks", "blocks.0.to_q.attention", "blocks.0:in.nothing", "blocks.*:out.1")
    ]
    + [("all", (glob,)) for glob in ("blocks.0.to_q.attention", "blocks.0:in.nothing", "blocks.*:out.1")],
)
def test_a_chosen_site_that_never_fires_is_an_error(sites: str, values: tuple[str, ...]) -> None:
    with pytest.raises(InconclusiveError, match="never fired"):
        fired(sites, values)
