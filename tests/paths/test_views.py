"""Views on the torchax path: what torchax's own operators read of a tensor, they can read of a view."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchax")
import jax.numpy as jnp
import torch
import torchax
from torchax import interop
from torchax.view import View

from parity.errors import UnjudgedError, UsageError
from parity.models.generic.family import _guarded
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


def test_what_torchax_cannot_run_is_not_blamed_on_the_inputs() -> None:
    """Raised by torchax's own code; an error of the model's stays one of what it is given."""
    family: Any = SimpleNamespace(
        signature=SimpleNamespace(name="Wan3DModel"), made=SimpleNamespace(static={}), given={}
    )
    with torchax.default_env():
        run = _guarded(lambda: sliced()[[0, -1]], family, traced=False)
        with pytest.raises(UnjudgedError, match=r"Wan3DModel does not run through torchax: .*_elem.*--candidate-path"):
            run()
    run = _guarded(lambda: torch.ones(2) @ torch.ones(3), family, traced=False)
    with pytest.raises(UsageError, match="cannot be called with the inputs made for it"):
        run()
