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
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, TypeVarTuple, cast

import jax
import torch
import torchax
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree
from torchax import interop

from parity.models import splash
from parity.paths.jax.mesh import Devices
from parity.paths.jax.tracing import pinned_attention, signature_of

K = TypeVar("K", bound=Hashable)
Weights = TypeVar("Weights")
Out = TypeVar("Out")
Rest = TypeVar("Rest")
Args = TypeVarTuple("Args")


PACKED: Mapping[str, str] = {
    "xla_tpu_buffer_assignment_algorithm": "BEST_OF_SPATIAL_TEMPORAL",
    "xla_tpu_buffer_assignment_enable_fast_merge_fallback": "false",
}
"""What a TPU's compiler is asked for where a program is observed. With its own choice the temporaries of
HunyuanVideo-1.5 at full size (two blocks, v6e:2x4, tp=8, libtpu 0.0.42.1) were 1.98 GiB where 1.45 GiB were alive at
once; with these two options together they are 1.48 GiB. They say where tensors lie, not what is computed."""


def compiled_packed(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """An observed program for a TPU; see `PACKED`."""
    try:
        return lowered.compile(compiler_options=dict(PACKED))
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # a compiler of another version: the program is the same, its memory as it comes


@dataclass(frozen=True, slots=True)
class Program(Generic[Rest]):
    """One compiled call.

    Attributes:
        compiled: takes arrays, gives arrays. rest: what else the call gave when it was traced.
    """

    compiled: jax.stages.Compiled
    rest: Rest


class Programs(Generic[K]):
    """The compiled calls of one owner.

    Attributes:
        jit: whether calls are compiled; false: each is made as it is. made: how many programs were compiled.
        kept: by key and the signature of the arguments that follow the weights.
    """

    def __init__(
        self,
        jit: bool,
        compiling: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        packed: Callable[[K], bool] = lambda key: False,
    ) -> None:
        """
        Args:
            compiling: the context to lower and compile in, which words what goes wrong there.
            packed: whether the program of a key is an observed one for a TPU; see `PACKED`.
        """
        self.jit, self.made = jit, 0
        self.kept: dict[tuple[K, tuple[object, ...]], Program[object]] = {}
        self._compiling, self._packed = compiling, packed

    def run(
        self, key: K, call: Callable[[Weights, *Args], tuple[Out, Rest]], weights: Weights, *arguments: *Args
    ) -> tuple[Out, Rest]:
        """What a call gives, by the program that is kept for it.

        Args:
            key: all that a program depends on besides the arguments' shapes and dtypes; of one shape of weights.
        """
        if not self.jit:
            return call(weights, *arguments)
        at = (key, signature_of(arguments))
        if at not in self.kept:
            self.kept[at] = cast(Program[object], self._compiled(key, call, weights, *arguments))
            self.made += 1
        program = self.kept[at]
        return cast(Out, program.compiled(weights, *arguments)), cast(Rest, program.rest)

    def _compiled(
        self, key: K, call: Callable[[Weights, *Args], tuple[Out, Rest]], weights: Weights, *arguments: *Args
    ) -> Program[Rest]:
        program, rest = self.lowered(call, weights, *arguments)
        with self._compiling():
            return Program(compiled_packed(program) if self._packed(key) else program.compile(), rest)

    def lowered(
        self, call: Callable[[Weights, *Args], tuple[Out, Rest]], weights: Weights, *arguments: *Args
    ) -> tuple[jax.stages.Lowered, Rest]:
        """A call's program, not compiled yet, and what else the call gave; arrays may be abstract."""
        left: list[Rest] = []

        def traced(weights: Weights, *arguments: *Args) -> Out:
            out, rest = call(weights, *arguments)
            left[:] = [rest]
            return out

        made = jax.jit(traced).trace(weights, *arguments)
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
