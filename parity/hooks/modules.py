"""What a model is made of: its tensors by name, and its tree of modules."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from parity.hooks.attach import callable_modules


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, tied ones under each name, and the buffers that state_dict leaves out."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def module_tree(model: torch.nn.Module) -> dict[str, str]:
    """Path of each callable module -> path of the nearest callable module above it."""
    paths = callable_modules(model)
    tree: dict[str, str] = {}
    for path in paths:
        parent = path.rpartition(".")[0]
        while parent and parent not in paths:
            parent = parent.rpartition(".")[0]
        if path:
            tree[path] = parent
    return tree
