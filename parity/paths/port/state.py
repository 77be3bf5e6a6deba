"""What a port's code may change for the whole process: seen, said, and put back, so that the next side runs clean."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_JAX = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_disable_jit", "jax_debug_nans",
    "jax_default_device", "jax_numpy_rank_promotion",
)  # fmt: skip
_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
    "_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs", "_global_module_registration_hooks",
    "_global_parameter_registration_hooks", "_global_buffer_registration_hooks",
)  # fmt: skip


@contextlib.contextmanager
def kept(said: list[str]) -> Iterator[None]:
    """Within it, code of a port runs; on leaving, what it changed is put back and named in `said`."""
    before = {name: read() for name, (read, _) in _SWITCHES.items()}
    hooks = {name: dict(getattr(modules, name)) for name in _HOOKS if hasattr(modules, name)}
    functions, dispatches = len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())
    jax_before, torchax_before = _jax_config(), _torchax_on()
    try:
        yield
    finally:
        if _torchax_on() and not torchax_before:
            said.append("turned torchax on for the process (torchax.enable_globally)")
            sys.modules["torchax"].disable_globally()
        for name, (read, write) in _SWITCHES.items():
            now = read()
            if now != before[name]:
                said.append(f"changed {name} from {before[name]} to {now}")
                write(before[name])
        for name, held in hooks.items():
            live = getattr(modules, name)
            extra = [key for key in live if key not in held]
            if extra:
                said.append(f"left {len(extra)} in torch.nn.modules.module.{name}")
            live.clear()
            live.update(held)
        _unwind(said, functions, dispatches)
        _restore_jax(said, jax_before)


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


def _jax_config() -> dict[str, Any] | None:
    if "jax" not in sys.modules:
        return None
    config = sys.modules["jax"].config
    return {name: getattr(config, name) for name in _JAX if hasattr(config, name)}


def _restore_jax(said: list[str], before: dict[str, Any] | None) -> None:
    if "jax" not in sys.modules:
        return
    import jax

    if before is None:
        # The port itself imported jax: what it should be is what a new process has.
        before = {name: None if name in _NONE else False for name in _JAX if name in (*_NONE, *_FALSE)}
    for name, value in before.items():
        now = getattr(jax.config, name, value)
        if now != value:
            said.append(f"changed jax's {name} from {value} to {now}")
            jax.config.update(name, value)


_NONE = ("jax_default_matmul_precision", "jax_default_device")
_FALSE = ("jax_enable_x64", "jax_disable_jit", "jax_debug_nans")

_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
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
