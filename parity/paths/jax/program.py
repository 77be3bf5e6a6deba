"""The one engine that compiles an observed call.

Problem. A call of the transformer, of one of its modules or of a stage's trunk becomes a program of arrays. What is
observed in it has a half that is no array (which site, which call, what to rebuild), known only once it is traced.

How. A call is a function from arrays to `(arrays, rest)`. It is traced once: the arrays are the program's outputs, the
rest is kept beside it as the trace left it. Without jit the function is called as it is, each time.

Cost. One compilation for each key and each signature of the arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch
import torchax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree
from torchax import interop

from parity.errors import UsageError
from parity.models import splash
from parity.paths.jax.mesh import Devices
from parity.paths.jax.tracing import pinned_attention, signature_of

Call = Callable[..., tuple[Any, Any]]
"""(weights, arguments) -> the arrays of a call, and the rest."""

AS_WRITTEN: Mapping[str, str | bool] = {"xla_allow_excess_precision": False}
"""What a compiler is asked for: that it rounds to 16 bits where the program does. Else XLA may give the next module the
value before that, which is not the one that was handed out."""

PACKED: Mapping[str, str | bool] = {
    **AS_WRITTEN,
    "xla_tpu_buffer_assignment_algorithm": "BEST_OF_SPATIAL_TEMPORAL",
    "xla_tpu_buffer_assignment_enable_fast_merge_fallback": "false",
}
"""What a TPU's compiler is asked for where a program is observed. With its own choice the temporaries of
HunyuanVideo-1.5 at full size (two blocks, v6e:2x4, tp=8, libtpu 0.0.42.1) were 1.98 GiB where 1.45 GiB were alive at
once; with these two options together they are 1.48 GiB. They say where tensors lie, not what is computed."""


TRACED = (
    "a call uses an array that an earlier trace of it made and kept (a table in a cache or an attribute): make it "
    "outside of `call`, with numpy, or under `jax.ensure_compile_time_eval()`"
)


def compiled_packed(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """An observed program for a TPU; see `PACKED`."""
    try:
        return lowered.compile(compiler_options=dict(PACKED))
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        # A compiler of another version: the program is the same, its memory as it comes.
        return lowered.compile(compiler_options=dict(AS_WRITTEN))


class Programs:
    """The compiled calls of one owner, by key and the signature of the arguments that follow the weights.

    Attributes:
        jit: whether calls are compiled; false: each is made as it is.
    """

    def __init__(
        self,
        jit: bool,
        compiling: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        packed: Callable[[Any], bool] = lambda key: False,
    ) -> None:
        """
        Args:
            compiling: the context to lower and compile in, which words what goes wrong there.
            packed: whether the program of a key is an observed one for a TPU; see `PACKED`.
        """
        self.jit, self._compiling, self._packed = jit, compiling, packed
        self._kept: dict[tuple[Hashable, tuple[object, ...]], tuple[jax.stages.Compiled, Any]] = {}

    def run(self, key: Hashable, call: Call, weights: Any, *arguments: Any) -> tuple[Any, Any]:
        """What a call gives, by the program that is kept for it.

        Args:
            key: all that a program depends on besides the arguments' shapes and dtypes; of one shape of weights.
        """
        if not self.jit:
            return call(weights, *arguments)
        at = (key, signature_of(arguments))
        if at not in self._kept:
            program, rest = self.lowered(call, weights, *arguments)
            with self._compiling():
                packed = self._packed(key)
                try:
                    made = compiled_packed(program) if packed else program.compile(compiler_options=dict(AS_WRITTEN))
                except Exception as error:
                    if "Indivisible" not in type(error).__name__:
                        raise
                    # Of a call with two meshes XLA may divide an output as the one that JAX takes for it cannot.
                    arrays = (x for x in jax.tree.leaves((weights, arguments)) if isinstance(x, jax.Array))
                    held = {device for x in arrays for device in x.devices()}
                    mesh = Mesh(np.array([*held] if len(held) > 1 else jax.devices()), ("every",))
                    try:
                        program, rest = self.lowered(
                            call, weights, *arguments, outputs=NamedSharding(mesh, PartitionSpec())
                        )
                        made = program.compile(compiler_options=dict(AS_WRITTEN))
                    except Exception:
                        raise error from None
                self._kept[at] = made, rest
        compiled, rest = self._kept[at]
        try:
            return compiled(weights, *arguments), rest
        except TypeError as error:
            if "compiled for" not in str(error):
                raise
            raise UsageError(TRACED) from error

    def lowered(
        self, call: Call, weights: Any, *arguments: Any, outputs: NamedSharding | None = None
    ) -> tuple[jax.stages.Lowered, Any]:
        """A call's program, not compiled yet, and what else the call gave; arrays may be abstract.

        Args:
            outputs: where they are to lie; None for what XLA chooses.
        """
        left: list[Any] = []

        def traced(weights: Any, *arguments: Any) -> Any:
            out, rest = call(weights, *arguments)
            left[:] = [rest]
            return out

        made = jax.jit(traced, out_shardings=outputs).trace(weights, *arguments)
        with self._compiling():
            return made.lower(), left[0]


class Shell:
    """What a torch module is called with or gives, but for its tensors.

    Attributes:
        key: what a program depends on besides the tensors' shapes.
    """

    def __init__(self, leaves: list[object], structure: pytree.TreeSpec) -> None:
        self._fixed = tuple(() if isinstance(x, torch.Tensor) else (x,) for x in leaves)
        self._structure = structure
        self.key: tuple[str, str] = (str(structure), repr(self._fixed))

    def filled(self, tensors: Iterable[torch.Tensor]) -> Any:
        """The whole, with these tensors in their places."""
        left = iter(tensors)
        return pytree.tree_unflatten([x[0] if x else next(left) for x in self._fixed], self._structure)


def apart(tree: object) -> tuple[list[torch.Tensor], Shell]:
    """The tensors of a call's arguments or outputs, in order, and all else."""
    leaves, structure = pytree.tree_flatten(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor)], Shell(leaves, structure)


@contextlib.contextmanager
def holding(
    module: torch.nn.Module, weights: object, env: torchax.tensor.Environment, devices: Devices
) -> Iterator[None]:
    """Within it a module has these weights (arrays by name), traced or not, in torchax's environment, and its
    attention runs on the devices' mesh with query, key and value pinned."""
    with (
        pinned_attention(),
        splash.on_mesh(devices.mesh),
        env,
        torch.no_grad(),
        stateless._reparametrize_module(module, interop.torch_view(weights)),
    ):
        yield
