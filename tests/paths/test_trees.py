"""A call's arguments cross a process border and come back as they were."""

from __future__ import annotations

import pytest
import torch

from parity.paths.worker.trees import nest, plain


def test_every_kind_of_argument_comes_back() -> None:
    x = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    given = {"a": (x, [None, True, 2, 0.5, "text"]), "hidden_dtype": torch.bfloat16}
    found = nest(plain(given))
    assert torch.equal(found["a"][0], x)
    assert found["a"][0].dtype == torch.bfloat16
    assert found["a"][1] == [None, True, 2, 0.5, "text"]
    assert found["hidden_dtype"] is torch.bfloat16


def test_a_device_is_that_of_the_side_that_is_called() -> None:
    """Qwen-Image hands its rotary embedding the device that it is to be on."""
    sent = plain({"device": torch.device("meta"), "shapes": [(1, 2)]})
    assert nest(sent) == {"device": torch.device("cpu"), "shapes": [(1, 2)]}
    assert nest(sent, torch.device("cuda:1"))["device"] == torch.device("cuda:1")


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="type object cannot be handed"):
        plain([object()])
