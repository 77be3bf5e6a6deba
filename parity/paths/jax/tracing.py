"""What a traced call of a model needs: its arrays, its signature, pinned attention, and names for its operations.

Observed tensors end with what they are of. A reduction has no consumer but the program's end: a TPU's compiler
schedules such operations late, and every tensor that they read stays in memory until then, gigabytes for each block of
a large model. So what comes next waits for their reductions (`bounded`): where a block begins, where a module follows
the last of them, and where a module is called while the four of an attention are pending, what it is given and the
reductions that were begun before it pass one optimization barrier, so that it cannot start before they are done.
Nothing is computed by it. The barrier is put on a small argument where there is one, the time embedding that a block is
modulated by: on the activations it would keep apart what the compiler fuses across two blocks, and each of them would
be read once more. Small tensors are reduced together at the end (`BatchingReducer`): they wait for nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.extend.core
import jax.numpy as jnp
import torch
import torchax
from torch.utils import _pytree as pytree
from torchax import interop
from torchax.ops import mappings

from parity.errors import PassingError, UsageError
from parity.hooks.methods import all_of, replaced, using
from parity.hooks.reduce.on_jax import SMALL, BatchingReducer, array_of
from parity.hooks.sites import is_block
from parity.hooks.tap import Tap
from parity.hooks.torchtools import callable_modules, nearest
from parity.models.attention import SETTLE


def scoped(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Within it, what a module computes under a trace carries its name: a compiled program says whose an operation is.
    Names are metadata; they change no program."""
    modules = callable_modules(model)

    def named(path: str) -> contextlib.AbstractContextManager[None]:
        module, above = modules[path], nearest(path, modules)
        name = path.removeprefix(f"{above}.") if above else path
        return replaced(module, "forward", jax.named_scope(name)(module.forward))

    return all_of(map(named, filter(None, modules)))


def pinned_attention() -> contextlib.AbstractContextManager[None]:
    """Within it, query, key and value are computed before they are used, whether they are observed or not.

    Otherwise XLA fuses the rotary embedding into what reads it, and compiles it again, with other fused
    multiply-adds, where a reduction reads it too: observing would move the result by an ulp.
    """

    def pin(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pinned: tuple[torch.Tensor, ...] = interop.torch_view(
            jax.lax.optimization_barrier(tuple(map(array_of, tensors)))
        )
        return pinned

    return using(SETTLE, pin)


def signature_of(tree: Any) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return (structure, tuple((x.shape, str(x.dtype)) for x in leaves))


def trace_state() -> object:
    """What JAX is tracing at this moment: equal at two places of one trace, whatever values are at hand there."""
    name = "get_opaque_trace_state"  # before jax 0.10 in another place
    state: Callable[..., object] = getattr(jax.extend.core, name, None) or getattr(jax.core, name)
    return state(convention="flax")


class InsideJitError(PassingError):
    """Something to be observed was met inside a trace of the port's own, where the program's outputs cannot take it."""


@contextlib.contextmanager
def inlining() -> Iterator[None]:
    """Within it, inner jits are inlined, scans unrolled and checkpoints left out."""

    def plain(call: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        return call

    with replaced(jax, "checkpoint", plain), replaced(jax, "remat", plain), jax.disable_jit():
        yield


@dataclass
class TracedTap(Tap):
    """A tap of one trace: what it sees becomes outputs of that program.

    Attributes:
        state: of the trace. may_inline: whether inner traces may be inlined still.
    """

    reducer: BatchingReducer
    state: object = field(default_factory=trace_state)
    may_inline: bool = True

    def masked(self, module: str, named: Mapping[str, Any]) -> None:
        if self.masks is not None:
            self._require_here(module)
            super().masked(module, named)

    def see(self, module: str, call: int, port: str, value: Any) -> None:
        self._require_here(module)
        super().see(module, call, port, value)

    def is_here(self) -> bool:
        """Whether what is at hand belongs to the program itself, and to no transformation inside it, whatever it was
        made of: a scan of linen's traces its layer once more, before it runs it.

        Raises:
            InsideJitError: it does not, and may once inner jits are inlined.
        """
        here = trace_state() == self.state
        if not here and self.may_inline:
            raise InsideJitError
        return here

    def _require_here(self, module: str) -> None:
        if not self.is_here():
            raise UsageError(
                f"'{module}' is called inside a jax transformation (vmap, grad, while), where it cannot be observed; "
                "call it outside of it for the comparison"
            )


def to_jax(x: torch.Tensor) -> jax.Array:
    """A CPU tensor as a jax array, bfloat16 included; float64 and int64 become 32 bits wide, as JAX has them. One of
    torchax's is an array already; one on torch's meta device has a shape and a dtype and no more, as what stands for
    it in JAX."""
    if not isinstance(x, torchax.tensor.Tensor) and x.is_meta:
        dtype = jax.dtypes.canonicalize_dtype(mappings.t2j_dtype(x.dtype))
        return cast(jax.Array, jax.ShapeDtypeStruct(tuple(x.shape), dtype))
    return array_of(x)


MANY = 4
"""Reductions that are pending when a module below a block waits too: an attention's query, key, value and output."""


def bounded(model: torch.nn.Module, reducer: BatchingReducer) -> contextlib.AbstractContextManager[None]:
    """Within it, under a trace, modules wait for the reductions of large tensors that were begun before them.

    Entered after the observers are attached, so that they see what a block is given before it waits: a tensor that is
    one block's output and the next one's input is reduced once.
    """

    def wait(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        at = [i for i, x in enumerate(leaves) if _floats(x) and 0 < array_of(x).size <= SMALL]
        at = at[:1] or [i for i, x in enumerate(leaves) if _floats(x) and array_of(x).ndim >= 3]
        if not at:
            return None
        for i, x in zip(at, reducer.settled([array_of(leaves[i]) for i in at]), strict=True):
            leaves[i] = interop.torch_view(x)
        return pytree.tree_unflatten(leaves, structure)

    def wait_for_many(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return wait(module, args, kwargs) if len(reducer.pending) >= MANY else None

    modules = {path: module for path, module in callable_modules(model).items() if path}
    outer = {path for path in modules if "." not in path or is_block(path)}
    hooks = ((module, wait if path in outer else wait_for_many) for path, module in modules.items())
    return all_of(module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in hooks)


def _floats(x: Any) -> bool:
    """Whether it is a floating-point tensor inside a trace."""
    if not hasattr(x, "jax"):  # a torchax tensor, or a view of one
        return False
    array = array_of(x)
    return jnp.issubdtype(array.dtype, jnp.floating) and isinstance(array, jax.core.Tracer)
