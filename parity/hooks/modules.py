"""What a model is made of: its tensors by name, and its tree of modules."""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch

from parity.hooks.attach import callable_modules


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, tied ones under each name, and the buffers that state_dict leaves out."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's tensors are; the CPU for one that has none."""
    return next((x.device for _, x in named_tensors(model)), torch.device("cpu"))


def module_tree(model: torch.nn.Module) -> dict[str, str]:
    """Path of each callable module -> path of the nearest callable module above it."""
    paths = callable_modules(model)
    return {path: nearest(path, paths) for path in paths if path}


def nearest(path: str, paths: Container[str]) -> str:
    """The nearest path above one among others; empty for none."""
    above = path.rpartition(".")[0]
    while above and above not in paths:
        above = above.rpartition(".")[0]
    return above
