"""torchax's own defects, mended where its tensors are parity's candidate's; a port meets them as its users do.

Views: torchax (0.0.14) keeps a slice as a view, and some of its operators read the field in which its tensors hold
their array: `'View' object has no attribute '_elem'`. Here a view has it too: the array that the view stands for. What
is written to it is refused as before.

`type_as`: torchax casts the array of the tensor itself and keeps the tensor's own dtype, so that in
`y = x.float().type_as(x)` a later `y.float()` does nothing: Wan's norms then run in bfloat16. Here it is a cast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_FIELD = "_elem"


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """Within it, a view can be read as a torchax tensor is, and `type_as` makes another tensor."""
    from torchax.tensor import Tensor

    own = Tensor.type_as
    Tensor.type_as = lambda self, other: self.to(other.dtype)
    try:
        with _readable_views():
            yield
    finally:
        Tensor.type_as = own


@contextlib.contextmanager
def _readable_views() -> Iterator[None]:
    """A torchax whose views can be read already is left alone."""
    from torchax.view import View  # a port with older pins has perhaps none, and does not come here

    own = hasattr(View, _FIELD)
    if not own:
        setattr(View, _FIELD, property(_array))
    try:
        yield
    finally:
        if not own:
            delattr(View, _FIELD)


def _array(view: Any) -> Any:
    return view.jax()
