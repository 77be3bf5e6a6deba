"""What a scheduler draws: the runs beside a script's own draw the same noise, and leave its generators where they were.

Problem. A scheduler that adds noise draws it in the dtype of what it is given, and float64 numbers are other draws than
float32 ones from the same generator: the run in float64 would start from other noise, and its distance, which is as
large as the noise, would stand as a floor under which anything passes. One that draws from torch's own generator would
besides move the script's next draws.

How. `Drawn.now()` keeps the state of torch's generators before the script's step; `again` puts it back for a run
beside it, and draws in the script's dtype, whatever the run's is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_DRAWS = (torch.randn, torch.rand, torch.randn_like, torch.rand_like)


class _InDtype(TorchFunctionMode):
    """Draws of another floating dtype are drawn in this one, and cast."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func not in _DRAWS:
            return func(*args, **given)
        like = next((x for x in args if isinstance(x, torch.Tensor)), None)
        wanted = given.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
        if wanted == self.dtype:
            return func(*args, **given)
        return func(*args, **{**given, "dtype": self.dtype}).to(wanted)


@dataclass(frozen=True)
class Drawn:
    """Where torch's own generators stood before a step.

    Attributes:
        cpu: the state of the CPU's. devices: of each CUDA device's.
    """

    cpu: torch.Tensor
    devices: tuple[torch.Tensor, ...]

    @classmethod
    def now(cls) -> Drawn:
        """Where they stand."""
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        return cls(torch.get_rng_state(), tuple(torch.cuda.get_rng_state_all()) if cuda else ())

    @contextlib.contextmanager
    def again(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Within it, a run draws what the script's step drew; after it, the generators stand where they did.

        Args:
            dtype: of the script's latents; None where the run computes in the dtypes of the script.
        """
        before = Drawn.now()
        self._put()
        try:
            with _InDtype(dtype) if dtype is not None else contextlib.nullcontext():
                yield
        finally:
            before._put()

    def _put(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.devices:
            torch.cuda.set_rng_state_all(list(self.devices))


def same_draws(x: Any) -> Any:
    """A generator that draws what the script's drew; anything else as it is."""
    if not isinstance(x, torch.Generator):
        return x
    again = torch.Generator(x.device)
    again.set_state(x.get_state())
    return again
