"""Views on the torchax path: what torchax's own operators read of a tensor, they can read of a view."""

from __future__ import annotations

import pytest

pytest.importorskip("torchax")
import jax.numpy as jnp
import torch
import torchax
from torchax import interop
from torchax.view import View

from parity.paths.jax.views import readable_views


def sliced() -> torch.Tensor:
    x = interop.torch_view(jnp.arange(12.0).reshape(3, 4))[1:]
    assert isinstance(x, View)
    return x


def test_a_view_is_indexed_by_a_list_and_gives_its_dtype() -> None:
    with torchax.default_env(), readable_views():
        ends = sliced()[[0, -1]]
        typed = interop.torch_view(jnp.ones((2,), jnp.int32)).type_as(sliced())
    assert jnp.array_equal(ends.jax(), jnp.arange(12.0).reshape(3, 4)[jnp.array([1, 2])])
    assert typed.dtype == torch.float32


def test_it_is_as_it_was_afterwards() -> None:
    """torchax without it fails, which is why it is here; where that is mended this room can go."""
    with torchax.default_env():
        with readable_views(), readable_views():
            sliced()[[0, -1]]
        with pytest.raises(AttributeError, match="_elem"):
            sliced()[[0, -1]]
