"""Views on the torchax path, where torchax's own operators forget them: `x[:, 1:][[0, -1]]`, `y.type_as(x[:, 1:])`.

torchax (0.0.14) keeps a slice as a view, and some of its operators read the field in which its tensors hold their
array: `'View' object has no attribute '_elem'`. Here a view has it too: the array that the view stands for. What is
written to it is refused as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_FIELD = "_elem"


@contextlib.contextmanager
def readable_views() -> Iterator[None]:
    """Within it, a view can be read as a torchax tensor is. A torchax whose views can be already is left alone."""
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
