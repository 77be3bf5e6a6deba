"""Module calls handed over while a model runs, so that each can be run again elsewhere on the very same inputs.

Only one call's tensors are alive at a time beyond what the model itself holds. Inputs are copied before the call,
since a module may write to them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from parity.hooks.torchtools import callable_modules, leaves, mapped, named_arguments


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


Handle = Callable[[Call], None]


@contextlib.contextmanager
def calls_of(
    model: torch.nn.Module, targets: Iterable[str], branches: tuple[str, ...], handle: Handle
) -> Iterator[None]:
    """Within it, each call of a target module is handed over as it ends.

    `handle` may call the modules itself: calls made within it are not handed over.
    """
    modules, wanted = callable_modules(model), set(targets)
    state = _State(handle, branches)
    handles = []
    try:
        for path in wanted:
            handles.append(modules[path].register_forward_pre_hook(state.before(path), with_kwargs=True))
            handles.append(modules[path].register_forward_hook(state.after(path), with_kwargs=True))
        yield
    finally:
        for registered in handles:
            registered.remove()


class _State:
    """Inputs of the target calls that are going on, innermost last."""

    def __init__(self, handle: Handle, branches: tuple[str, ...]) -> None:
        self.handle, self.branches = handle, branches
        self.given: list[tuple[Any, Any]] = []
        self.counts: Counter[str] = Counter()
        self.busy = False

    def before(self, path: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not self.busy:
                self.given.append((mapped(torch.clone, args), mapped(torch.clone, kwargs)))

        return hook

    def after(self, path: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self.busy:
                return
            given_args, given_kwargs = self.given.pop()
            number = self.counts[path]
            self.counts[path] += 1
            self.busy = True
            try:
                self.handle(Call(path, number, self.branches, given_args, given_kwargs, output))
            finally:
                self.busy = False

        return hook


def retyped(module: torch.nn.Module, call: Call, dtypes: Mapping[str, torch.dtype]) -> Call:
    """The call with its floating inputs in the dtypes that these sites have (`module:in.name`); others as they are."""
    named = leaves(named_arguments(module, call.args, call.kwargs), "in")
    wanted = {id(x): dtypes.get(f"{call.module}:{port}") for port, x in named if isinstance(x, torch.Tensor)}

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(wanted.get(id(x)) or x.dtype) if x.is_floating_point() else x

    return replace(call, args=mapped(cast, call.args), kwargs=mapped(cast, dict(call.kwargs)))


def prediction_of(output: Any) -> Any:
    """The prediction in what a transformer returns: itself, the first of a tuple or list, or `sample` of an object."""
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    return output if isinstance(output, torch.Tensor) else getattr(output, "sample", output)
