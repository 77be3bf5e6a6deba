"""Hooks come and go without a trace; attention calls are seen once; silence is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch.overrides import _get_current_function_mode_stack

from parity.errors import UnjudgedError
from parity.hooks.attach import _ACTIVE, attached, callable_modules, named_arguments, watching
from parity.hooks.tap import Tap, require_fired
from parity.models.attention import AttentionSettings, attend
from tests.hooks.seen import Seen, gathered, make_tap, observe


class Attention(torch.nn.Module):
    """Four rows of two heads of eight, by torch's own function or by parity's `attend`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.to_q = how, torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_q(x).unflatten(2, (2, 8)), x.unflatten(2, (2, 8)), (x * 2).unflatten(2, (2, 8))
        if self.how == "torch":
            parts = [t.transpose(1, 2) for t in (q, k, v)]
            return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        if self.how == "keywords":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(query=q, key=k, value=v).transpose(1, 2).flatten(2)
        return attend(q, k, v, torch.ones(x.shape[:2], dtype=torch.bool), AttentionSettings("sdpa", "none")).flatten(2)


class Model(torch.nn.Module):
    """A list of attention blocks, and a module that is never called."""

    def __init__(self, how: str = "torch", calls: int = 1) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Attention(how) for _ in range(2)])
        self.spare = torch.nn.Linear(2, 2)
        self.calls = calls

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


def test_lists_of_modules_are_not_callable() -> None:
    assert list(callable_modules(Model())) == ["", "blocks.0", "blocks.0.to_q", "blocks.1", "blocks.1.to_q", "spare"]


def test_hooks_are_there_within_and_gone_after() -> None:
    model = Model()
    with attached(model, make_tap(model)):
        assert hooks(model) > 0
    assert hooks(model) == 0


def test_hooks_are_removed_after_an_exception() -> None:
    model = Fails()
    tap = make_tap(model)
    with pytest.raises(RuntimeError, match="inside"), attached(model, tap):
        model(tokens())
    assert hooks(model) == 0
    assert gathered(tap).sites() == [":in.x", "inner:in.x"]
    # And attention announces itself to nobody.
    attend(*[torch.ones(1, 2, 1, 4)] * 3, torch.ones(1, 2, dtype=torch.bool), AttentionSettings("sdpa", "none"))
    assert gathered(tap).sites() == [":in.x", "inner:in.x"]


def test_observing_does_not_change_the_result() -> None:
    model, x = Model(), tokens()
    before = model(x)
    with attached(model, make_tap(model)):
        seen = model(x)
    assert torch.equal(before, seen)


@pytest.mark.parametrize("how", ["torch", "keywords", "attend"])
def test_attention_calls_are_seen_once(how: str) -> None:
    seen = observe(Model(how), tokens())
    sites = [site for site in seen.sites() if "attention" in site]
    ports = ("in.query", "in.key", "in.value", "out")
    assert sites == [f"blocks.{i}.attention:{port}" for i in range(2) for port in ports]
    assert {call for _, site, call in seen.order if "attention" in site} == {0}
    assert seen.at("blocks.0.attention:in.query").shape == (1, 4, 2, 8)


@pytest.mark.parametrize("kernel", ["flex", "sdpa"])
@pytest.mark.parametrize("mask", ["exact", "zero_kv_rescaled"])
def test_attend_is_seen_once_with_every_kernel(kernel: str, mask: str) -> None:
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            valid = torch.tensor([[True, True, True, False]])
            return attend(*[x.unflatten(2, (1, 16))] * 3, valid, AttentionSettings(kernel, mask))

    seen = observe(Own(), tokens())
    assert [site for site in seen.sites() if site.startswith("attention")] == [
        f"attention:{port}" for port in ("in.query", "in.key", "in.value", "out")
    ]


def test_a_kernel_that_runs_within_paritys_own_attention_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a port whose module attends by parity's, and that installs a kernel beneath."""
    own = torch.nn.functional.scaled_dot_product_attention

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        return own(*args, **kwargs)

    def ran() -> dict[str, str]:
        model = Model("attend")
        tap = make_tap(model, "all")
        with attached(model, tap):
            model(tokens())
        return tap.ran.ran()

    assert ran()["blocks.0.attention"] == "parity's own, 1 call"
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    assert "the port's own function kernel (test_attach.py:" in ran()["blocks.0.attention"]


def test_torch_and_parity_attention_record_the_same() -> None:
    torch.manual_seed(0)
    ours, theirs = Model("torch"), Model("attend")
    theirs.load_state_dict(ours.state_dict())
    a, b = observe(ours, tokens()), observe(theirs, tokens())
    assert a.order == b.order
    for key in a.order:
        assert a.records[key].shape == b.records[key].shape
        assert abs(a.records[key].sketch - b.records[key].sketch).max() < 1e-6


def test_attention_calls_are_counted_by_their_owner() -> None:
    seen = observe(Model(calls=2), tokens())
    out = [key[1:] for key in seen.order if key[1].endswith("attention:out")]
    assert out == [(f"blocks.{i}.attention:out", call) for i in range(2) for call in range(2)]


def test_only_chosen_sites_are_recorded() -> None:
    seen = observe(Model(), tokens(), tap_options={"sites": "blocks.0.attention:out"})
    assert seen.sites() == ["blocks.0.attention:out"]
    seen = observe(Model(), tokens(), tap_options={"sites": "blocks.?:out"})
    assert seen.sites() == ["blocks.0:out", "blocks.1:out"]


def test_call_counts_do_not_depend_on_what_is_chosen() -> None:
    seen = observe(Model(calls=2), tokens(), tap_options={"sites": "blocks.1.to_q:out"})
    assert seen.order == [("cond", "blocks.1.to_q:out", 0), ("cond", "blocks.1.to_q:out", 1)]


def fired(sites: str, values: tuple[str, ...] = ()) -> Seen:
    model = Model()
    tap = make_tap(model, sites, values=values)
    with attached(model, tap):
        model(tokens())
    require_fired(tap, tap.plan.must_fire)
    return gathered(tap)


def test_a_chosen_module_that_never_fires_is_an_error() -> None:
    with pytest.raises(UnjudgedError, match=r"never fired: 'spare'; .*--sites"):
        fired("spare")
    with pytest.raises(UnjudgedError, match="'spare'"):
        fired("blocks")


@pytest.mark.parametrize("glob", ["blocks.0.to_q.attention", "blocks.0:in.nothing", "blocks.*:out.1"])
def test_a_chosen_port_or_attention_call_that_is_never_seen_is_an_error(glob: str) -> None:
    with pytest.raises(UnjudgedError, match="never fired"):
        fired(glob)
    with pytest.raises(UnjudgedError, match="never fired"):
        fired("all", (glob,))


def test_what_fires_is_no_error() -> None:
    assert fired("all").order
    assert fired("blocks.*", ("blocks.0.attention:out",)).at("blocks.0.attention:out").value is not None


def test_a_module_that_a_setting_silences_is_excused() -> None:
    model = Model()
    tap = make_tap(model, "spare:out")
    with attached(model, tap):
        model(tokens())
    require_fired(tap, tap.plan.must_fire - {"spare"})


def test_many_silent_modules_are_counted() -> None:
    model = torch.nn.ModuleDict({f"m{i}": torch.nn.Identity() for i in range(8)})
    tap = make_tap(model, "m*")
    with pytest.raises(UnjudgedError, match="'m4' and 3 more"):
        require_fired(tap, tap.plan.must_fire)


class Various(torch.nn.Module):
    def forward(self, x: Any, *rest: Any, flag: bool = False, **options: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, {"x": 1}),
        ((1, 2, 3), {"flag": True}, {"x": 1, "rest": (2, 3), "flag": True}),
        ((), {"x": 1, "extra": 2}, {"x": 1, "extra": 2}),
        ((), {"flag": True}, {"flag": True}),
    ],
)
def test_arguments_are_named_by_the_forwards_signature(args: Any, kwargs: Any, expected: Any) -> None:
    assert named_arguments(Various(), args, kwargs) == expected


def test_a_single_output_is_called_out_however_it_is_wrapped() -> None:
    class Wraps(torch.nn.Module):
        def forward(self, x: torch.Tensor, how: str) -> Any:
            return {"tuple": (x,), "mapping": {"sample": x}, "plain": x}[how]

    for how in ("tuple", "mapping", "plain"):
        assert observe(Wraps(), tokens(), how).sites() == [":in.x", ":in.how", ":out"]


def test_two_outputs_are_numbered_in_a_mapping_as_in_a_tuple() -> None:
    class Wraps(torch.nn.Module):
        def forward(self, x: torch.Tensor, how: str) -> Any:
            return {"tuple": (x, x + 1), "mapping": {"b": x, "a": x + 1}}[how]

    for how in ("tuple", "mapping"):
        assert observe(Wraps(), tokens(), how).sites() == [":in.x", ":in.how", ":out.0", ":out.1"]


class _Seen:
    """Says in which order two listeners of one model begin and are told the end, and what attention is then."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    def begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tap:
        self.order.append(f"{self.name} begins")
        return make_tap(module)

    def end(self, tap: Tap, output: Any) -> None:
        self.order.append(f"{self.name} ends")
        self.order.append("as it was" if torch.nn.functional.scaled_dot_product_attention is _ported else "replaced")


def _ported(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value


class _Attends(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("raises", [None, ValueError, KeyboardInterrupt])
def test_two_who_watch_one_model_leave_nothing_behind(
    raises: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", _ported)
    model, order = _Attends(), list[str]()

    def hook(module: torch.nn.Module, args: Any) -> None:
        if raises is not None:
            raise raises

    outer, inner = _Seen("outer", order), _Seen("inner", order)
    with contextlib.suppress(ValueError, KeyboardInterrupt), watching(model, outer), watching(model, inner):
        model.register_forward_pre_hook(hook)
        model(torch.ones(1, 2, 4, 8))
    assert torch.nn.functional.scaled_dot_product_attention is _ported
    assert not _get_current_function_mode_stack()
    assert _ACTIVE.get() is None
    assert order[:2] == ["outer begins", "inner begins"]
    if raises is None:
        assert order[2:] == ["inner ends", "as it was", "outer ends", "as it was"]
