"""What a port's code may change for the whole process: seen, said, and put back, so that the next side runs clean."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Switch = tuple[Callable[[], Any], Callable[[Any], Any]]
"""What reads a setting of the process, and what sets it."""
Pile = tuple[Callable[[], int], Callable[[], object]]
"""What counts things that are added one after the other, and what takes the last one away."""


@contextlib.contextmanager
def kept(said: list[str]) -> Iterator[None]:
    """Within it, code of a port runs; on leaving, what it changed is put back and named in `said`."""
    before = {name: read() for name, (read, _) in _switches().items()}
    counts, torchax = {name: count() for name, (count, _) in _piles().items()}, _torchax_on()
    try:
        yield
    finally:
        if _torchax_on() and not torchax:  # before torch's modes, of which it has some
            said.append("turned torchax on for the process (torchax.enable_globally)")
            sys.modules["torchax"].disable_globally()
        for name, (read, write) in _switches().items():
            now, old = read(), before.get(name, _JAX.get(name))
            if now != old:
                said.append(f"changed {name} from {old} to {now}")
                write(old)
        for name, (count, drop) in _piles().items():
            if more := max(count() - counts[name], 0):
                said.append(f"left {more} of {name}")
                for _ in range(more):
                    drop()


def _switches() -> dict[str, Switch]:
    """By name: torch's, and JAX's where it is imported."""
    if "jax" not in sys.modules:
        return _SWITCHES
    config = sys.modules["jax"].config
    return _SWITCHES | {name: (partial(getattr, config, name), partial(config.update, name)) for name in _JAX}


def _piles() -> dict[str, Pile]:
    """By name: torch's modes, and its hooks on all modules."""
    hooks = {name: x for name, x in vars(modules).items() if name.startswith("_global_") and isinstance(x, dict)}
    return _MODES | {f"torch's {name}": (x.__len__, x.popitem) for name, x in hooks.items()}


def _torchax_on() -> bool:
    return "torchax" in sys.modules and bool(sys.modules["torchax"].default_env().enabled)


_JAX = {
    "jax_enable_x64": False, "jax_default_matmul_precision": None, "jax_numpy_dtype_promotion": "standard",
    "jax_disable_jit": False, "jax_debug_nans": False, "jax_default_device": None, "jax_numpy_rank_promotion": "allow",
}  # fmt: skip
"""JAX's, and what a new process has, for a port that imports JAX itself."""

_SWITCHES: dict[str, Switch] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    # None: setting the CPU explicitly would leave a mode on.
    "torch's default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    **{
        f"torch's autocast on {device}": (
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
        )
        for device in ("cpu", "cuda")
    },
    "the working folder": (os.getcwd, os.chdir),
}

_MODES: dict[str, Pile] = {
    "torch's function modes": (lambda: len(_get_current_function_mode_stack()), torch.overrides._pop_mode),
    "torch's dispatch modes": (lambda: len(_get_current_dispatch_mode_stack()), torch.utils._python_dispatch._pop_mode),
}
