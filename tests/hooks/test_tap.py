"""The tap: names, kinds, branches, padding, and each tensor reduced once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from parity.golden.sketch import sketch
from parity.hooks.attach import attached
from parity.hooks.rows import WHOLE, Part
from tests.hooks.seen import gathered, make_tap, observe


class Add(torch.nn.Module):
    """Two arguments and an optional one."""

    def forward(self, x: torch.Tensor, y: Any = None, scale: float = 1.0) -> torch.Tensor:
        return x * scale + (0 if y is None else y)


class Nest(torch.nn.Module):
    """Returns nested values of every kind."""

    def forward(self, x: torch.Tensor, extra: Any = None) -> Any:
        return x + 1, [x + 2, {"a": x + 3, "b": None}], (True, 2, 0.5, "text")


class Outer(torch.nn.Module):
    """Calls one module several times, handing outputs on."""

    def __init__(self, body: torch.nn.Module, calls: int) -> None:
        super().__init__()
        self.body, self.calls = body, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            x = self.body(x)
        return x


class TextRows:
    """Rows 2 on are text with a frame; the rule of a joint sequence of five rows."""

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        if len(shape) == 3 and shape[1] == 5:
            return (Part("image", 0, 2), Part("text", 2, None, "text"))
        return WHOLE


def rows(n: int = 5, batch: int = 1, channels: int = 4) -> torch.Tensor:
    return torch.randn(batch, n, channels, generator=torch.Generator().manual_seed(n + batch))


def text_frame(index: list[int], weight: list[float]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {"text": (torch.tensor(index, dtype=torch.int32), torch.tensor(weight))}


def test_positional_and_keyword_arguments_have_the_same_names() -> None:
    x, y = rows(), rows(5, 1)
    model = Add()
    calls = [observe(model, x, y, 2.0), observe(model, x, scale=2.0, y=y), observe(model, scale=2.0, y=y, x=x)]
    assert [sorted(seen.sites()) for seen in calls] == [[":in.scale", ":in.x", ":in.y", ":out"]] * 3
    for seen in calls[1:]:
        for key in seen.order:
            ours, theirs = calls[0].records[key], seen.records[key]
            assert (ours.kind, ours.moments, ours.value) == (theirs.kind, theirs.moments, theirs.value)


def test_none_and_scalars_are_records() -> None:
    seen = observe(Add(), rows(), None, scale=2.0)
    assert seen.at(":in.y").kind == "none"
    assert (seen.at(":in.scale").kind, seen.at(":in.scale").dtype, seen.at(":in.scale").value) == ("scalar", "float", 2)


def test_nested_values_are_named_by_index_and_key() -> None:
    x = rows()
    seen = observe(Nest(), x, {"k": (x, [None])})
    assert seen.sites() == [
        *(":in.x", ":in.extra.k.0", ":in.extra.k.1.0"),
        *(":out.0", ":out.1.0", ":out.1.1.a", ":out.1.1.b"),
        *(":out.2.0", ":out.2.1", ":out.2.2", ":out.2.3"),
    ]
    assert [seen.at(f":out.2.{i}").value for i in range(4)] == [True, 2, 0.5, "text"]
    assert [seen.at(f":out.2.{i}").dtype for i in range(4)] == ["bool", "int", "float", "str"]
    assert seen.at(":out.1.1.b").kind == "none"


def test_a_records_moments_and_sketch_are_those_of_its_tensor() -> None:
    x = rows(700, 1, 12)
    record = observe(Add(), x).at(":in.x")
    assert (record.shape, record.dtype, record.frame, record.rows) == ((1, 700, 12), "float32", (700, 12), "")
    assert record.moments is not None
    assert record.moments.count == x.numel()
    assert record.moments.l2 == pytest.approx(float(x.norm()), rel=1e-5)
    assert np.linalg.norm(record.sketch - sketch(x.numpy())) < 1e-4
    assert record.value is None


def test_values_are_kept_where_asked_and_only_there() -> None:
    x = rows()
    seen = observe(Add(), x, x + 1, tap_options={"values": (":in.y",)})
    assert np.array_equal(seen.at(":in.y").value, (x + 1).numpy())
    assert seen.at(":in.x").value is None
    assert seen.at(":out").value is None


def test_a_kept_value_is_not_changed_by_what_the_model_does_later() -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x = rows()
    before = x.clone()
    seen = observe(InPlace(), x, tap_options={"values": (":in",)})
    assert np.array_equal(seen.at(":in.x").value, before.numpy())


def test_calls_are_counted_for_each_module() -> None:
    seen = observe(Outer(Add(), 3), rows())
    assert [key for key in seen.order if key[1] == "body:out"] == [("cond", "body:out", i) for i in range(3)]
    assert [key for key in seen.order if key[1] == ":out"] == [("cond", ":out", 0)]


def test_a_batch_is_split_into_branches_by_name() -> None:
    x = rows(5, 2)
    both = observe(Add(), x, tap_options={"branches": ("cond", "uncond")})
    for i, branch in enumerate(("cond", "uncond")):
        alone = observe(Add(), x[i : i + 1], tap_options={"branches": (branch,)})
        for site in (":in.x", ":out"):
            ours, theirs = both.at(site, branch), alone.at(site, branch)
            assert (ours.shape, ours.moments) == (theirs.shape, theirs.moments)
            assert np.array_equal(ours.sketch, theirs.sketch)
    assert not np.array_equal(both.at(":out", "cond").sketch, both.at(":out", "uncond").sketch)


@pytest.mark.parametrize("shared", [torch.ones(5, 4), torch.tensor(2.0)], ids=["table", "number"])
def test_a_tensor_without_the_batch_axis_belongs_to_every_branch(shared: torch.Tensor) -> None:
    seen = observe(Add(), rows(5, 2), shared, tap_options={"branches": ("cond", "uncond")})
    for branch in ("cond", "uncond"):
        assert seen.at(":in.y", branch).shape == tuple(shared.shape)
        assert seen.at(":in.y", branch).moments.count == shared.numel()


def test_scalars_belong_to_every_branch() -> None:
    seen = observe(Add(), rows(5, 2), scale=3.0, tap_options={"branches": ("cond", "uncond")})
    assert {seen.at(":in.scale", b).value for b in ("cond", "uncond")} == {3.0}


def test_padded_rows_are_recorded_apart_without_a_sketch() -> None:
    x = rows()
    frames = {"cond": text_frame([1, 0, 2], [1.0, 1.0, 0.0])}
    seen = observe(Add(), x, tap_options={"rule": TextRows(), "frames": frames})
    assert seen.sites()[:3] == [":in.x@image", ":in.x@text", ":in.x@text@padding"]
    image, text, padding = (seen.at(site) for site in seen.sites()[:3])
    assert {r.shape for r in (image, text, padding)} == {(1, 5, 4)}
    assert np.array_equal(image.sketch, x[:, :2].reshape(-1).numpy())
    assert np.array_equal(text.sketch.reshape(3, 4), torch.stack([x[0, 3], x[0, 2], torch.zeros(4)]).numpy())
    assert padding.key.is_padding
    assert padding.sketch is None
    assert padding.moments.l2 == pytest.approx(float(x[0, 4].norm()), rel=1e-6)
    assert (text.rows, padding.rows, image.rows) == ("text", "", "")


def test_padding_changes_nothing_but_its_own_record() -> None:
    x = rows()
    other = x.clone()
    other[0, 4] = float("nan")
    options = {"rule": TextRows(), "frames": {"cond": text_frame([1, 0, 2], [1.0, 1.0, 0.0])}}
    ours, theirs = (observe(Add(), v, tap_options=options) for v in (x, other))
    for key in ours.order:
        same = ours.records[key].moments == theirs.records[key].moments
        assert same is not ours.records[key].key.is_padding


def test_each_branch_has_a_frame_of_its_own() -> None:
    x = rows(5, 2)
    frames = {"cond": text_frame([0, 1, 2], [1.0, 1.0, 1.0]), "uncond": text_frame([2, 1, 0], [1.0, 0.0, 0.0])}
    options = {"rule": TextRows(), "frames": frames, "branches": ("cond", "uncond")}
    seen = observe(Add(), x, tap_options=options)
    assert np.array_equal(seen.at(":in.x@text", "cond").sketch.reshape(3, 4), x[0, 2:].numpy())
    expected = torch.cat([x[1, 4:], torch.zeros(2, 4)])
    assert np.array_equal(seen.at(":in.x@text", "uncond").sketch.reshape(3, 4), expected.numpy())


def test_a_tensor_seen_at_several_sites_is_reduced_once() -> None:
    seen = observe(Outer(Add(), 3), rows())
    # Four tensors: the input and three outputs; each is an input or output of two modules.
    assert seen.reductions == 4
    assert seen.at(":in.x").moments == seen.at("body:in.x").moments
    assert np.array_equal(seen.at("body:out", call=0).sketch, seen.at("body:in.x", call=1).sketch)


class WritesBetween(torch.nn.Module):
    """Hands the same tensor on twice, written to in between."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Add()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.body(x)
        x.add_(1)
        return self.body(x)


def test_a_tensor_written_to_in_place_is_reduced_again() -> None:
    x = rows()
    before = x.clone()
    seen = observe(WritesBetween(), x)
    assert np.array_equal(seen.at("body:in.x", call=0).sketch, before.reshape(-1).numpy())
    assert np.array_equal(seen.at("body:in.x", call=1).sketch, (before + 1).reshape(-1).numpy())


def test_a_write_through_a_view_is_noticed() -> None:
    class WritesView(WritesBetween):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.body(x)
            x[:, 0].zero_()
            return self.body(x)

    x = rows()
    expected = x.clone()
    expected[:, 0] = 0
    seen = observe(WritesView(), x)
    assert np.array_equal(seen.at("body:in.x", call=1).sketch, expected.reshape(-1).numpy())


def test_the_tap_keeps_no_activation_alive() -> None:
    import gc
    import weakref

    held: list[weakref.ref[torch.Tensor]] = []

    class Remembers(Add):
        def forward(self, x: torch.Tensor, y: Any = None, scale: float = 1.0) -> torch.Tensor:
            out = x + 1
            held.append(weakref.ref(out))
            return out

    model = Outer(Remembers(), 2)
    tap = make_tap(model)
    with attached(model, tap):
        model(rows())
    gc.collect()
    assert len(held) == 2
    assert all(ref() is None for ref in held)
    assert len(gathered(tap).order) == 6


def test_a_complex_table_is_seen_as_its_real_view() -> None:
    class Table(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.polar(torch.ones_like(x), x)

    x = rows(n=40, channels=32)
    seen = observe(Table(), x, tap_options={"values": ("*:out",)})
    record = seen.at(":out")
    table = torch.view_as_real(Table()(x)).flatten(-2)
    assert (record.shape, record.dtype, record.frame) == ((1, 40, 64), "complex64", (40, 64))
    assert np.array_equal(record.value, table.numpy())
    assert np.allclose(record.sketch, sketch(table.numpy()), atol=1e-5)
