"""One call of a module, which can be made again on the very same inputs, and the prediction in what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one module.

    Attributes:
        module: its path. number: how many times it had been called before in this call of the model.
        branches: the guidance branches in the batch, in order.
        args, kwargs: as it was given them. output: what it returned.
    """

    module: str
    number: int
    branches: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


def prediction_of(output: Any) -> Any:
    """The prediction in what a transformer returns: itself, the first of a tuple or list, or `sample` of an object."""
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    return output if isinstance(output, torch.Tensor) else getattr(output, "sample", output)
