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


@contextlib.contextmanager
def kept(said: list[str]) -> Iterator[None]:
    """Within it, code of a port runs; on leaving, what it changed is put back and named in `said`."""
    before = {name: read() for name, (read, _) in _switches().items()}
    hooks = {name: dict(live) for name, live in _hooks().items()}
    functions, dispatches = len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())
    torchax_before = _torchax_on()
    try:
        yield
    finally:
        if _torchax_on() and not torchax_before:
            said.append("turned torchax on for the process (torchax.enable_globally)")
            sys.modules["torchax"].disable_globally()
        for name, (read, write) in _switches().items():
            now = read()
            old = before.get(name, _NEW.get(name, now))
            if now != old:
                said.append(f"changed {name} from {old} to {now}")
                write(old)
        for name, live in _hooks().items():
            held = hooks[name]
            extra = [key for key in live if key not in held]
            if extra:
                said.append(f"left {len(extra)} in torch.nn.modules.module.{name}")
            live.clear()
            live.update(held)
        _unwind(said, functions, dispatches)


def _hooks() -> dict[str, dict[Any, Any]]:
    """torch's hooks on all modules, by name."""
    return {name: x for name, x in vars(modules).items() if name.startswith("_global_") and isinstance(x, dict)}


def _unwind(said: list[str], functions: int, dispatches: int) -> None:
    """Leave the modes that were entered and not left, in torch's own stacks."""
    left = 0
    while len(_get_current_function_mode_stack()) > functions:
        torch.overrides._pop_mode()
        left += 1
    while len(_get_current_dispatch_mode_stack()) > dispatches:
        torch.utils._python_dispatch._pop_mode()
        left += 1
    if left:
        said.append(f"left {left} torch function or dispatch modes on")


def _torchax_on() -> bool:
    return "torchax" in sys.modules and bool(sys.modules["torchax"].default_env().enabled)


def _switches() -> dict[str, Switch]:
    """By name: torch's, and JAX's where it is imported."""
    if "jax" not in sys.modules:
        return _SWITCHES
    config = sys.modules["jax"].config
    names = [name for name in _JAX if hasattr(config, name)]
    return _SWITCHES | {f"jax's {n}": (partial(getattr, config, n), partial(config.update, n)) for n in names}


_JAX = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_disable_jit", "jax_debug_nans",
    "jax_default_device", "jax_numpy_rank_promotion",
)  # fmt: skip
_NEW = {
    "jax's jax_default_matmul_precision": None, "jax's jax_default_device": None, "jax's jax_enable_x64": False,
    "jax's jax_disable_jit": False, "jax's jax_debug_nans": False,
}  # fmt: skip
"""What a new process has, for a port that imports JAX itself."""

_SWITCHES: dict[str, Switch] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's float32 matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    # None: setting the CPU explicitly would leave a mode on.
    "torch's default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "the working folder": (os.getcwd, os.chdir),
}
