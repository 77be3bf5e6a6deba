"""Frames line two orders of the same tokens up and set padding apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from parity.hooks.rows import WHOLE, NoRows, Part, take


def tokens(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[1, 4, 3] tokens whose values say which row they are."""
    return torch.arange(1, 5, dtype=dtype).reshape(1, 4, 1).expand(1, 4, 3).contiguous()


def test_take_gives_the_valid_rows_in_the_frames_order_and_the_padded_ones_apart() -> None:
    index, weight = torch.tensor([2, 0, 1, 3], dtype=torch.int32), torch.tensor([1.0, 1.0, 0.0, 0.0])
    valid, padded = take(tokens(), index, weight)
    assert valid[0, :, 0].tolist() == [3, 1, 0, 0]
    assert padded[0, :, 0].tolist() == [0, 0, 2, 4]


def test_two_orders_of_the_same_tokens_are_equal_in_their_frames() -> None:
    first = tokens()
    moved = first[:, [3, 2, 0, 1]]
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    ours, _ = take(first, torch.tensor([0, 1, 2, 3], dtype=torch.int32), weight)
    theirs, _ = take(moved, torch.tensor([2, 3, 1, 0], dtype=torch.int32), weight)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_take_keeps_dtype_and_trailing_axes(dtype: torch.dtype) -> None:
    x = tokens(dtype).unsqueeze(-1).expand(1, 4, 3, 2)
    valid, padded = take(x, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1.0, 0.0]))
    assert valid.dtype == padded.dtype == dtype
    assert valid.shape == (1, 2, 3, 2)


def test_take_of_a_matrix_takes_columns() -> None:
    mask = torch.tensor([[True, False, True]])
    valid, padded = take(mask, torch.tensor([2, 1, 0], dtype=torch.int32), torch.tensor([1.0, 1.0, 0.0]))
    assert valid.tolist() == [[True, False, False]]
    assert padded.tolist() == [[False, False, True]]


def test_not_even_nan_in_padding_reaches_the_valid_rows() -> None:
    x = tokens()
    x[0, 1] = float("nan")
    valid, padded = take(x, torch.tensor([0, 1, 2, 3], dtype=torch.int32), torch.tensor([1.0, 0.0, 1.0, 1.0]))
    assert bool(valid.isfinite().all())
    assert bool(padded[0, 1].isnan().all())


def test_a_frame_longer_than_the_tensor_gives_zeros_where_there_is_no_row() -> None:
    valid, padded = take(tokens(), torch.tensor([3, 0, 0], dtype=torch.int32), torch.tensor([1.0, 0.0, 0.0]))
    assert valid[0, :, 0].tolist() == [4, 0, 0]
    assert padded[0, :, 0].tolist() == [0, 1, 1]


def test_without_token_rows_a_tensor_is_whole() -> None:
    assert NoRows().parts("any", "out", (1, 4, 3)) == WHOLE == (Part(),)


def test_parts_are_values() -> None:
    assert Part("text", 4, None, "text") == Part("text", 4, None, "text")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Part().name = "x"  # type: ignore[misc]
