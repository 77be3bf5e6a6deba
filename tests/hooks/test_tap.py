"""The tap: names, kinds, branches, padding, and each tensor reduced once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from parity.hooks.attach import attached
from parity.hooks.rows import WHOLE, MaskedRows, Masks, Part
from parity.hooks.tap import single_output
from tests.hooks.seen import Seen, gathered, make_tap, observe


class Add(torch.nn.Module):
    """Two arguments and an optional one."""

    def forward(self, x: torch.Tensor, y: Any = None, scale: float = 1.0) -> torch.Tensor:
        return x * scale + (0 if y is None else y)


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, extra: Any = None) -> Any:
        return self.function(x)


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

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if len(shape) == 3 and shape[1] == 5:
            return (Part("image", 0, 2), Part("text", 2, None, "text"))
        return WHOLE


def rows(n: int = 5, batch: int = 1, channels: int = 4) -> torch.Tensor:
    return torch.randn(batch, n, channels, generator=torch.Generator().manual_seed(n + batch))


def text_frame(index: list[int], weight: list[float]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {"text": (torch.tensor(index, dtype=torch.int32), torch.tensor(weight))}


def same(a: Seen, b: Seen, sites: Sequence[str], ours: str = "cond", theirs: str = "cond") -> bool:
    pairs = [(a.at(site, ours), b.at(site, theirs)) for site in sites]
    return all(x.moments == y.moments and np.array_equal(x.sketch, y.sketch) for x, y in pairs)


# --- names and kinds -------------------------------------------------------------------------------------------


def test_positional_and_keyword_arguments_have_the_same_names() -> None:
    x, y = rows(), rows(5, 1)
    calls = [observe(Add(), x, y, 2.0), observe(Add(), x, scale=2.0, y=y), observe(Add(), scale=2.0, y=y, x=x)]
    for seen in calls:
        assert sorted(seen.sites()) == [":in.scale", ":in.x", ":in.y", ":out"]
        assert same(seen, calls[0], (":in.x", ":in.y", ":out"))
        assert (seen.at(":in.scale").kind, seen.at(":in.scale").dtype, seen.at(":in.scale").value) == (
            "scalar",
            "float",
            2.0,
        )


@pytest.mark.parametrize(
    ("wrap", "sites"),
    [
        (lambda x: x, [":out"]),
        (lambda x: (x,), [":out"]),
        (lambda x: {"sample": x}, [":out"]),
        (lambda x: (x, x + 1), [":out.0", ":out.1"]),
        (lambda x: {"b": x, "a": x + 1}, [":out.0", ":out.1"]),  # numbered in a mapping as in a tuple
    ],
)
def test_outputs_are_named_however_they_are_wrapped(wrap: Callable[..., Any], sites: list[str]) -> None:
    assert observe(Of(wrap), rows()).sites() == [":in.x", *sites]


def test_values_are_stored_only_where_asked_and_as_they_were() -> None:
    x, y = rows(), rows() + 1
    seen = observe(Add(), x, y, tap_options={"values": (":in.y",)})
    assert np.array_equal(seen.at(":in.y").value, y.numpy())
    assert (seen.at(":in.x").value, seen.at(":out").value) == (None, None)
    before = x.clone()
    seen = observe(Of(lambda x: x.add_(1)), x, tap_options={"values": (":in",)})
    assert np.array_equal(seen.at(":in.x").value, before.numpy())


# --- branches --------------------------------------------------------------------------------------------------

BRANCHES = {"branches": ("cond", "uncond")}


def test_a_batch_is_split_into_branches_by_name() -> None:
    x = rows(5, 2)
    both = observe(Add(), x, scale=3.0, tap_options=BRANCHES)
    for i, branch in enumerate(("cond", "uncond")):
        alone = observe(Add(), x[i : i + 1], scale=3.0, tap_options={"branches": (branch,)})
        assert same(both, alone, (":in.x", ":out"), branch, branch)
        assert both.at(":in.scale", branch).value == 3.0
    assert not same(both, both, (":out",), "cond", "uncond")


SHARED = {"table": torch.ones(5, 4), "number": torch.tensor(2.0), "parameter": torch.nn.Parameter(torch.ones(2, 1, 4))}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_a_tensor_without_the_batch_axis_belongs_to_every_branch(shared: torch.Tensor) -> None:
    seen = observe(Add(), rows(5, 2), shared, tap_options=BRANCHES)
    for branch in ("cond", "uncond"):
        assert seen.at(":in.y", branch).shape == tuple(shared.shape)
        assert seen.at(":in.y", branch).moments.count == shared.numel()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("gives", "seen"),
    [
        ((1, 2), (1, 2)),
        ((1,), 1),
        (((1, 2), None), (1, 2)),  # of a block that jax.lax.scan calls
        ((1, None), (1, None)),
        ({"b": 1, "a": 2}, (2, 1)),
    ],
)
def test_outputs_are_observed_by_their_places(gives: object, seen: object) -> None:
    assert single_output(gives) == seen


# --- padding ---------------------------------------------------------------------------------------------------

TEXT = {"rule": TextRows(), "frames": {"cond": text_frame([1, 0, 2], [1.0, 1.0, 0.0])}}


def test_padded_rows_are_recorded_apart_without_a_sketch() -> None:
    x = rows()
    seen = observe(Add(), x, tap_options=TEXT)
    assert seen.sites()[:3] == [":in.x@image", ":in.x@text", ":in.x@text@padding"]
    image, text, padding = (seen.at(site) for site in seen.sites()[:3])
    assert {r.shape for r in (image, text, padding)} == {(1, 5, 4)}
    assert np.array_equal(image.sketch, x[:, :2].reshape(-1).numpy())
    assert np.array_equal(text.sketch.reshape(3, 4), torch.stack([x[0, 3], x[0, 2], torch.zeros(4)]).numpy())
    assert (padding.key.is_padding, padding.sketch) == (True, None)
    assert padding.moments.l2 == pytest.approx(float(x[0, 4].norm()), rel=1e-6)
    assert (text.rows, padding.rows, image.rows) == ("text", "", "")


# --- once ------------------------------------------------------------------------------------------------------


def test_a_tensor_seen_at_several_sites_is_reduced_once() -> None:
    seen = observe(Outer(Add(), 3), rows())
    assert seen.reductions == 4  # the input and three outputs; each is an input or output of two modules
    assert seen.at(":in.x").moments == seen.at("body:in.x").moments
    assert np.array_equal(seen.at("body:out", call=0).sketch, seen.at("body:in.x", call=1).sketch)
    assert [key for key in seen.order if key[1].endswith(":out")] == [
        *(("cond", "body:out", i) for i in range(3)),
        ("cond", ":out", 0),
    ]


class Attends(torch.nn.Module):
    """Calls attention for these rows of its batch, one after the other or several at once."""

    def __init__(self, calls: Sequence[slice]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.calls:
            part = x[each, None]
            torch.nn.functional.scaled_dot_product_attention(part, part, part)
        return x


@pytest.mark.parametrize(
    ("calls", "rows_of", "expected"),
    [
        ([slice(0, 1), slice(1, 2)], ("cond", "uncond"), [("cond", 0), ("uncond", 0)]),
        ([slice(0, 1), slice(1, 2)] * 2, ("cond", "uncond"), [("cond", 0), ("cond", 1), ("uncond", 0), ("uncond", 1)]),
        ([slice(0, 2)], ("cond", "uncond"), [("cond", 0), ("uncond", 0)]),
        ([slice(0, 2)] * 2, ("cond", "uncond"), [("cond", 0), ("cond", 1), ("uncond", 0), ("uncond", 1)]),
        # What is of one row and not of each is of all.
        ([slice(0, 1)], ("cond", "uncond"), [("cond", 0), ("uncond", 0)]),
        ([slice(0, 1), slice(0, 2)], ("cond", "uncond"), [("cond", 0), ("cond", 1), ("uncond", 0), ("uncond", 1)]),
        ([slice(0, 1), slice(0, 1)], ("cond",), [("cond", 0), ("cond", 1)]),
    ],
)
def test_attention_that_is_called_for_each_row_is_of_its_row(
    calls: list[slice], rows_of: tuple[str, ...], expected: list[tuple[str, int]]
) -> None:
    x = rows(batch=len(rows_of))
    seen = observe(Attends(calls), x, tap_options={"branches": rows_of})
    queries = [(branch, call) for branch, site, call in seen.order if site == "attention:in.query"]
    assert sorted(queries) == expected
    if len(calls) == 2 and calls[0] != calls[1] and calls[1] != slice(0, 2):
        own = np.asarray(x[1]).reshape(-1)
        assert np.array_equal(seen.at("attention:in.query", "uncond").sketch, own)


def test_a_table_without_the_batch_axis_is_reduced_once_for_all_branches() -> None:
    seen = observe(Add(), rows(5, 2), torch.ones(5, 4), tap_options=BRANCHES)
    assert seen.reductions == 2 + 1 + 2  # both branches of input and output, and the table


class TwoHeads(torch.nn.Module):
    """Two parts of a model that are given one tensor, and masks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Masked(), Kept()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.tensor([[True, False, True]])
        return self.first(x, one) + self.second(x, ~one)


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * 1


class Kept(torch.nn.Module):
    """Its mask has another name, and is one by its dtype."""

    def forward(self, x: torch.Tensor, ok: torch.Tensor) -> torch.Tensor:
        return x * 1


def test_a_tensor_seen_under_two_masks_is_reduced_under_each() -> None:
    model, x = TwoHeads(), rows(3)
    tap = make_tap(model)
    tap.masks = Masks(MaskedRows())
    with attached(model, tap):
        model(x)
    seen = gathered(tap)
    for head, read in (("first", [0, 2]), ("second", [1])):
        moments = seen.at(f"{head}:in.x@read").moments
        assert moments is not None
        assert moments.l2 == pytest.approx(float(x[:, read].norm()), rel=1e-6)


def test_what_is_bool_stands_in_the_place_of_no_mask_that_is_called_so() -> None:
    mask, other = torch.tensor([[True, False, True]]), torch.tensor([[False, True, False]])
    for names in (("keep", "text_mask"), ("text_mask", "keep")):
        masks = Masks(MaskedRows())
        masks.see("block", {name: mask if "mask" in name else other for name in names})
        found = masks.of("block", 3, 0)
        assert found is not None
        assert found.tolist() == mask.tolist()


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x[:, 0].zero_()], ids=["in place", "by a view"])
def test_a_tensor_written_to_is_reduced_again(write: Callable[[torch.Tensor], object]) -> None:
    class Writes(Outer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.body(x)
            write(x)
            return self.body(x)

    x = rows()
    before, after = x.clone(), x.clone()
    write(after)
    seen = observe(Writes(Add(), 2), x)
    assert np.array_equal(seen.at("body:in.x", call=0).sketch, before.reshape(-1).numpy())
    assert np.array_equal(seen.at("body:in.x", call=1).sketch, after.reshape(-1).numpy())
