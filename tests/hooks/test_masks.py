"""A mask that a stranger's code is given pairs its rows with the reference's, whatever their order and number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parity.hooks.attach import attached, masks_given
from parity.hooks.masks import Masks, cut, frame_of, let_through, paired
from parity.hooks.rows import SEQUENCE, WHOLE, Part, take
from tests.hooks.seen import gathered, make_tap


class JointRows:
    """Two image rows, then a text that has a mask."""

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        return WHOLE

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        if len(shape) == 3 and shape[1] in masked:
            return (Part(frame="text"),)
        return (Part("image", 0, 2), Part("text", 2, None, "text")) if len(shape) == 3 else WHOLE


class Block(torch.nn.Module):
    """Hands its rows on; the mask comes after them among its arguments."""

    def forward(self, rows: torch.Tensor, text_mask: torch.Tensor | None = None) -> torch.Tensor:
        return rows * 2


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12), st.randoms())
def test_valid_rows_come_first_in_their_order_whatever_lies_between(
    valid: list[bool], length: int, random: Any
) -> None:
    rows = torch.arange(1.0, len(valid) + 1).reshape(1, -1, 1)
    kept, _ = take(rows, *frame_of(torch.tensor(valid), length))
    wanted = [float(i) for i, ok in enumerate(valid, 1) if ok][:length]
    assert kept[0, :, 0].tolist() == wanted + [0.0] * (length - len(wanted))


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([[True, False, True]]),
        torch.tensor([[1, 0, 1]]),
        torch.tensor([[1.0, 0.0, 1.0]]),
        torch.tensor([[[[0.0, -1e4, 0.0]]]]),
        torch.tensor([[True, True, True, False, True]]),
        torch.tensor([[[[True, False, True], [False, False, False]]]]),
    ],
)
def test_masks_of_every_kind_say_the_same(mask: torch.Tensor) -> None:
    masks = Masks(JointRows())
    masks.see("blocks.0", {"attention_mask": mask})
    found = masks.of("blocks.0", 3, 2)
    assert found is not None
    assert found.tolist() == [[True, False, True]]
    assert masks.of("other.0", 3, 2) is None, "another part of the model may have a mask of its own"


@pytest.mark.parametrize(
    ("valid", "rows", "count"),
    [
        ([1, 1, 1, 0], [1.0, 2.0, 3.0, 0.0], 3),
        ([0, 1, 1, 1], [2.0, 3.0, 4.0, 0.0], 3),  # another order
        ([1, 1, 1, 1], [1.0, 2.0, 3.0, 0.0], 3),  # a mask that is lost, and compared itself
        ([1, 0, 0, 0], [1.0, 2.0, 3.0, 0.0], 3),
        ([1, 1, 1], [1.0, 2.0, 3.0, 0.0], 3),  # padding is cut off
        ([0, 0, 0], [1.0, 2.0, 3.0, 0.0], 3),  # an additive mask of zeros
        ([0, 0], [0.0, 0.0, 0.0, 0.0], 0),  # a stream that a prompt lacks
    ],
)
def test_rows_are_paired_by_a_mask_that_lets_as_many_through(valid: list[int], rows: list[float], count: int) -> None:
    weight = (torch.arange(4) < count).float()
    given = torch.arange(1.0, len(valid) + 1).reshape(1, -1, 1)
    found, _ = take(given, *paired(torch.tensor(valid).bool(), torch.arange(4, dtype=torch.int32), weight))
    assert found[0, :, 0].tolist() == rows


def test_what_a_mask_lets_through_where_nothing_else_is_known() -> None:
    found = let_through(torch.tensor([[0.0, -1e4, 0.0]]))
    assert found is not None
    assert found.tolist() == [[True, False, True]]
    nothing = let_through(torch.zeros(1, 3, dtype=torch.int64))
    assert nothing is not None
    assert not nothing.any()
    for other in (torch.zeros(1, 1, 1, 3), torch.ones(1, 3), torch.zeros(3), None):  # an additive one, for the first
        assert let_through(other) is None


def observed(rows: torch.Tensor, mask: torch.Tensor) -> Any:
    tap = make_tap(
        Block(), frames={"cond": {"text": (torch.arange(4, dtype=torch.int32), torch.tensor([1.0, 1, 1, 0]))}}
    )
    tap.masks = Masks(JointRows())
    model = Block()
    with attached(model, tap):
        model(rows, mask)
    return gathered(tap)


def test_two_orders_and_lengths_of_the_same_tokens_have_equal_sketches() -> None:
    rows = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    gap, pad = torch.zeros(1, 1, 8), torch.full((1, 1, 8), 7.0)
    first = observed(torch.cat([rows, pad], 1), torch.tensor([[1, 1, 1, 0]])).at(":out")
    other = observed(torch.cat([rows[:, :1], gap, rows[:, 1:]], 1), torch.tensor([[True, False, True, True]])).at(
        ":out"
    )
    short = observed(rows, torch.tensor([[1, 1, 1]])).at(":out")
    for theirs in (other, short):
        assert (theirs.rows, theirs.frame) == (first.rows, first.frame)
        assert (theirs.sketch == first.sketch).all()
    wrong = observed(torch.cat([rows[:, :1], gap, rows[:, 1:]], 1), torch.tensor([[1, 1, 1, 0]])).at(":out")
    assert (wrong.sketch != first.sketch).any(), "with another mask other rows are paired"


def test_the_text_of_a_joint_sequence_is_paired_by_the_mask_of_the_text() -> None:
    tap = make_tap(Block(), frames={"cond": {"text": (torch.zeros(4, dtype=torch.int32), torch.zeros(4))}})
    tap.masks = Masks(JointRows())
    tap.masked("blocks.0", {"text_mask": torch.tensor([[0, 1, 1]])})
    tap.see("blocks.0.attention", 0, "out", torch.arange(1.0, 6.0).reshape(1, 5, 1))
    seen = gathered(tap)
    text = seen.at("blocks.0.attention:out@text").sketch
    assert text is not None
    assert text.tolist() == [4.0, 5.0, 0.0, 0.0]
    assert seen.at("blocks.0.attention:out@image").sketch.tolist() == [1.0, 2.0]  # type: ignore[union-attr]


def test_a_port_that_hands_no_mask_to_its_modules_names_its_padded_rows() -> None:
    rows = torch.arange(1.0, 4.0).reshape(1, 3, 1)
    model = Block()
    tap = make_tap(model, frames={"cond": {"text": (torch.zeros(4, dtype=torch.int32), torch.zeros(4))}})
    tap.masks = Masks(JointRows())
    with attached(model, tap):
        masks_given({"": torch.tensor([[0, 1, 1]])})
        model(rows)
    found = gathered(tap).at(":out").sketch
    assert found is not None
    assert found.tolist() == [4.0, 6.0, 0.0, 0.0]
    masks_given({"": torch.ones(1, 3)})  # outside a call nobody listens


def test_inside_a_compiled_program_the_frame_follows_the_mask_of_each_call() -> None:
    torchax = pytest.importorskip("torchax")
    import jax

    env = torchax.default_env()  # made within a trace it would keep that trace's random key

    def traced(mask: Any) -> Any:
        with env:
            return torchax.interop.jax_view(frame_of(torchax.interop.torch_view(mask), 4))

    compiled = jax.jit(traced)
    for mask, index, weight in (([1, 0, 1], [0, 2, 1, 0], [1, 1, 0, 0]), ([0, 0, 1], [2, 0, 1, 0], [1, 0, 0, 0])):
        found = compiled(jax.numpy.asarray(mask, bool))
        assert [x.tolist() for x in found] == [index, weight]


class Joined(JointRows):
    """Joint sequences of image and text in an order that nobody says."""

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        return SEQUENCE

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        return SEQUENCE


@pytest.mark.parametrize(
    ("mask", "read"),
    [
        ([[[1, 1, 0, 1, 0]]], [1.0, 2.0, 0.0, 4.0, 0.0]),
        ([[[1, 1, 0, 0, 0], [0, 0, 0, 1, 0]]], [1.0, 2.0, 0.0, 4.0, 0.0]),  # read by any query
        ([[[1, 1, 0, 0, 0]]], [1.0, 2.0, 3.0, 4.0, 5.0]),  # one more than the text has padded: nobody knows what it is
    ],
)
def test_of_a_joint_sequence_the_rows_whose_keys_are_read_stand_beside_the_whole(mask: list, read: list[float]) -> None:
    weight = torch.tensor([1.0, 0.0, 0.0])  # two padded rows of text
    tap = make_tap(Block(), frames={"cond": {"text": (torch.arange(3, dtype=torch.int32), weight)}})
    tap.masks = Masks(Joined())
    tap.masked("blocks.0", {"attention_mask": torch.tensor(mask).bool()})
    tap.see("blocks.0.attention", 0, "out", torch.arange(1.0, 6.0).reshape(1, 5, 1))
    seen = gathered(tap)
    assert {site for _, site, _ in seen.order} == {"blocks.0.attention:out", "blocks.0.attention:out@read"}
    for part, rows in (("", [1.0, 2.0, 3.0, 4.0, 5.0]), ("@read", read)):
        sketch = seen.at(f"blocks.0.attention:out{part}").sketch
        assert sketch is not None
        assert sketch.tolist() == rows


def test_a_frame_of_more_rows_than_there_are_is_cut() -> None:
    index, weight = cut(torch.tensor([0, 3, 1], dtype=torch.int32), torch.ones(3), 2)
    assert (index.tolist(), weight.tolist()) == ([0, 1, 1], [1.0, 0.0, 1.0])
