"""Rows are paired across two orders and lengths of the same tokens, by frames and masks, and padding is set apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from parity.hooks.attach import attached
from parity.hooks.rows import SEQUENCE, WHOLE, Masks, NoRows, Part, cut, frame_of, paired, take, unordered
from tests.hooks.seen import Seen, gathered, make_tap


def tokens(n: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[1, n, 3] tokens whose values say which row they are, from 1 on."""
    return torch.arange(1, n + 1, dtype=dtype).reshape(1, n, 1).expand(1, n, 3).contiguous()


@pytest.mark.parametrize(
    ("index", "weight", "valid", "padded"),
    [
        ([2, 0, 1, 3], [1.0, 1.0, 0.0, 0.0], [3, 1, 0, 0], [0, 0, 2, 4]),
        ([3, 0, 0], [1.0, 0.0, 0.0], [4, 0, 0], [0, 1, 1]),  # longer than the tokens: zeros
        ([0, 1], [1.0, 0.0], [1, 0], [0, 2]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_take_gives_valid_rows_in_the_frames_order_and_padded_ones_apart(
    index: list[int], weight: list[float], valid: list[int], padded: list[int], dtype: torch.dtype
) -> None:
    x = tokens(dtype=dtype).unsqueeze(-1).expand(1, 4, 3, 2)
    found = take(x, torch.tensor(index, dtype=torch.int32), torch.tensor(weight))
    assert [y[0, :, 0, 0].tolist() for y in found] == [valid, padded]
    assert {(y.dtype, y.shape) for y in found} == {(dtype, (1, len(index), 3, 2))}


def test_nan_in_padding_reaches_no_valid_row_and_a_matrix_has_columns() -> None:
    x = tokens()
    x[0, 1] = float("nan")
    valid, padded = take(x, torch.tensor([0, 1, 2, 3], dtype=torch.int32), torch.tensor([1.0, 0.0, 1.0, 1.0]))
    assert bool(valid.isfinite().all())
    assert bool(padded[0, 1].isnan().all())
    mask = torch.tensor([[True, False, True]])
    valid, padded = take(mask, torch.tensor([2, 1, 0], dtype=torch.int32), torch.tensor([1.0, 1.0, 0.0]))
    assert (valid.tolist(), padded.tolist()) == ([[True, False, False]], [[False, False, True]])
    assert NoRows().parts("any", "out", (1, 4, 3)) == WHOLE == (Part(),)


# --- masks -----------------------------------------------------------------------------------------------------


class JointRows:
    """Two image rows, then a text that has a mask."""

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if len(shape) == 3 and shape[1] in masked:
            return (Part(frame="text"),)
        return (Part("image", 0, 2), Part("text", 2, None, "text")) if len(shape) == 3 else WHOLE


class Joined(JointRows):
    """Joint sequences of image and text in an order that nobody says."""

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        return SEQUENCE


class Block(torch.nn.Module):
    """Hands its rows on; the mask comes after them among its arguments."""

    def forward(self, rows: torch.Tensor, text_mask: torch.Tensor | None = None) -> torch.Tensor:
        return rows * 2


def tap_of(rule: JointRows, weight: list[float]) -> Any:
    frame = (torch.arange(len(weight), dtype=torch.int32), torch.tensor(weight))
    tap = make_tap(Block(), frames={"cond": {"text": frame}})
    tap.masks = Masks(rule)
    return tap


def sketch_of(seen: Seen, site: str) -> np.ndarray:
    found = seen.at(site).sketch
    assert found is not None
    return found


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12))
@settings(max_examples=25)
def test_valid_rows_come_first_in_their_order_whatever_lies_between(valid: list[bool], length: int) -> None:
    kept, _ = take(tokens(len(valid)), *frame_of(torch.tensor(valid), length))
    wanted = [float(i) for i, ok in enumerate(valid, 1) if ok][:length]
    assert kept[0, :, 0].tolist() == wanted + [0.0] * (length - len(wanted))


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
    frame = paired(torch.tensor(valid).bool(), torch.arange(4, dtype=torch.int32), weight)
    assert take(tokens(len(valid)), *frame)[0][0, :, 0].tolist() == rows


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 5), st.floats(1e-4, 1.0), st.integers(0, 9))
def test_sums_over_rows_hold_neither_their_order_nor_rows_of_zeros(
    order: Sequence[int], zeros: int, apart: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, noise = (torch.randn(1, 12, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    other = torch.nn.functional.pad(rows[:, list(order)], (0, 0, zeros, 0))
    torch.testing.assert_close(unordered(other), unordered(rows))
    moved = float((unordered(rows + apart * noise) - unordered(rows)).norm())
    assert 0.0 < moved <= 4 * 12**0.5 * apart * float(noise.norm())


def test_rows_that_exchange_channels_have_other_sums() -> None:
    rows = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(0))
    other = torch.cat([rows[:, :, :3], rows[:, :, 3:].flip(1)], -1)
    assert not torch.allclose(unordered(other), unordered(rows))


def test_two_orders_and_lengths_of_the_same_tokens_have_equal_sketches() -> None:
    rows = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    gap, pad = torch.zeros(1, 1, 8), torch.full((1, 1, 8), 7.0)
    split = torch.cat([rows[:, :1], gap, rows[:, 1:]], 1)

    def observed(rows: torch.Tensor, mask: list[int]) -> np.ndarray:
        tap, model = tap_of(JointRows(), [1.0, 1.0, 1.0, 0.0]), Block()
        with attached(model, tap):
            model(rows, torch.tensor([mask]).bool())
        return sketch_of(gathered(tap), ":out")

    first = observed(torch.cat([rows, pad], 1), [1, 1, 1, 0])
    assert (observed(split, [1, 0, 1, 1]) == first).all()
    assert (observed(rows, [1, 1, 1]) == first).all()
    assert (observed(split, [1, 1, 1, 0]) != first).any()  # with another mask other rows are paired


def test_the_text_of_a_joint_sequence_is_paired_by_the_mask_of_the_text() -> None:
    tap = tap_of(JointRows(), [0.0] * 4)
    tap.masked("blocks.0", {"text_mask": torch.tensor([[0, 1, 1]])})
    tap.see("blocks.0.attention", 0, "out", torch.arange(1.0, 6.0).reshape(1, 5, 1))
    seen = gathered(tap)
    assert sketch_of(seen, "blocks.0.attention:out@text").tolist() == [4.0, 5.0, 0.0, 0.0]
    assert sketch_of(seen, "blocks.0.attention:out@image").tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("mask", "read"),
    [
        ([[[1, 1, 0, 1, 0]]], [1.0, 2.0, 0.0, 4.0, 0.0]),
        ([[[1, 1, 0, 0, 0], [0, 0, 0, 1, 0]]], [1.0, 2.0, 0.0, 4.0, 0.0]),  # read by any query
        ([[[1, 1, 0, 0, 0]]], [1.0, 2.0, 0.0, 0.0, 0.0]),  # one more than the text has padded: of another stream
    ],
)
def test_the_rows_that_are_read_of_a_joint_sequence_are_recorded_too(mask: list[Any], read: list[float]) -> None:
    tap = tap_of(Joined(), [1.0, 0.0, 0.0])  # two padded rows of text
    tap.masked("blocks.0", {"attention_mask": torch.tensor(mask).bool()})
    tap.see("blocks.0.attention", 0, "out", torch.arange(1.0, 6.0).reshape(1, 5, 1))
    seen = gathered(tap)
    assert sketch_of(seen, "blocks.0.attention:out").tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sketch_of(seen, "blocks.0.attention:out@read").tolist() == read
    index, weight = cut(torch.tensor([0, 3, 1], dtype=torch.int32), torch.ones(3), 2)
    assert (index.tolist(), weight.tolist()) == ([0, 1, 1], [1.0, 0.0, 1.0])  # a frame of more rows than there are


def test_inside_a_compiled_program_the_frame_follows_the_mask_of_each_call() -> None:
    torchax = pytest.importorskip("torchax")
    import jax

    env = torchax.default_env()  # made within a trace it would keep that trace's random key

    def traced(mask: Any) -> Any:
        with env:
            return torchax.interop.jax_view(frame_of(torchax.interop.torch_view(mask), 4))

    compiled = jax.jit(traced)
    for mask, index, weight in (([1, 0, 1], [0, 2, 1, 0], [1, 1, 0, 0]), ([0, 0, 1], [2, 0, 1, 0], [1, 0, 0, 0])):
        assert [x.tolist() for x in compiled(jax.numpy.asarray(mask, bool))] == [index, weight]
