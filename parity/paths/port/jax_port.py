"""A port written in JAX: a plain function with taps, or a tree of callable modules (Flax NNX), compiled by parity.

What is tapped is reduced inside the compiled program and returned as extra outputs, as hooks' reductions are. A tap
inside a function that the port itself jits would leak out of its trace: the call is then traced again with inner jits
inlined (`jax.disable_jit`), which also unrolls `lax.scan`, and `jax.checkpoint`, which changes no value, is left out. A
tap inside `vmap` is an error; a module there is not observed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree
from torchax import interop

from parity.errors import UsageError
from parity.hooks.objects import objects_of, watched
from parity.hooks.reduce.on_jax import on_host
from parity.hooks.rows import RowRule
from parity.hooks.sites import SitePlan
from parity.hooks.tap import single_output
from parity.hooks.torchtools import mapped, nearest, prediction_of, same
from parity.models.feature_cache import Kept, calling
from parity.models.generic_inputs import LATENT
from parity.paths.jax.candidate import Forward, TorchaxBackend
from parity.paths.jax.mesh import port_devices, use_compilation_cache
from parity.paths.jax.tracing import InsideJitError, TracedTap, to_jax
from parity.paths.loaded import Inputs, Loaded, StepCalls
from parity.paths.port.ported import Ported, guarded, moved, wrong_output
from parity.port import Port, listening
from parity.records import is_attention
from parity.settings import Reached, Settings


class JaxPort(TorchaxBackend):
    """Calls a port's function, compiled or (jit=false) eagerly; see `parity.paths.reference.TorchBackend`.

    Attributes:
        heard: the names it was observed under, as renamed. own: the same as the port has them.
    """

    network: Ported

    def __init__(self, port: Port, network: Ported, inputs: Inputs, reached: Reached) -> None:
        self.port, array = port, functools.partial(_array, network.entry.named)
        weights = jax.tree_util.tree_map_with_path(array, port.weights)
        super().__init__(torch.nn.Module(), network, inputs, reached, port_devices(reached.settings), weights)
        self.heard: set[str] = set()
        self.own: set[str] = set()
        self.stacked = _are_stacked(self.params)

    def hear(self, calls: StepCalls) -> None:
        group = self.groups[0]
        names, frames = self.batch(group)
        forward = self.forward(names, self.rules[group[0]], SitePlan("none", (), frozenset()))
        given = self.params, self.placed(calls.of(group)), frames, None
        if self.jit:
            jax.eval_shape(lambda *given: forward(*given)[0][0], *given)
        else:  # a trace would leave its arrays in what the port keeps
            forward(*given)

    def weights(self) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        for path, x in jax.tree_util.tree_leaves_with_path(self.params):
            if _is_key(x):
                continue
            module, dot, parameter = _name(path).removeprefix("params.").rpartition(".")
            own = "weight" if parameter in ("kernel", "embedding") else parameter  # as torch has it
            for layer, at in self._layers(module, x):
                read = functools.partial(_parameter, x, at, is_kernel=parameter == "kernel")
                yield self.network.parameter(f"{layer}{dot}{own}"), str(x.dtype), read

    def _layers(self, module: str, x: jax.Array) -> Iterator[tuple[str, int | None]]:
        """A module, with None; where its parameters are a stack each layer with its place in it: a scan names layers by
        a number that the module's own path has not."""
        names = module.split(".")
        count = x.shape[0] if self.stacked and x.ndim else 0
        ends = range(1, len(names) + 1) if count else ()
        # A tap may have the reference's names, and a rule those of what is below a layer alone.
        ways: tuple[tuple[Callable[[str], str], set[str]], ...] = (str, self.own), (self.network.named, self.heard)
        for (named, known), end in itertools.product(ways, ends):
            around, inside = names[:end], names[end:]
            layers = (named(".".join([*around, str(i)])) for i in (0, count - 1, count))
            heard = [any(name == layer or name.startswith(f"{layer}.") for name in known) for layer in layers]
            numbered = inside[:1] and inside[0].isdigit()
            if not numbered and heard == [True, True, False]:
                yield from ((".".join([*around, str(i), *inside]), i) for i in range(count))
                return
        yield module, None

    def forward(self, names: tuple[str, ...], rule: RowRule, plan: SitePlan | None) -> Forward:
        forward = super().forward(names, rule, plan)
        return lambda *given: self.network.retried(forward, *given)

    def _predicted(
        self, params: Any, arguments: Mapping[str, Any], kept: Kept | None, tap: TracedTap | None = None
    ) -> tuple[jax.Array, Kept]:
        heard = None if tap is None else _Heard(self, tap, arguments)
        with calling(kept) as cached:
            out = self._call(params, arguments, heard)
        if heard is not None and not heard.count and heard.tap.may_inline:
            # A jitted function that the port called before is not traced again, and its taps stay silent.
            raise InsideJitError
        return out, cached.kept

    def _call(self, params: Any, arguments: Mapping[str, Any], heard: _Heard | None) -> jax.Array:
        port, entry, rank = self.port, self.network.entry, arguments[LATENT].ndim
        given = {
            k: moved(x, port, rank, self.network.family.channels, -1) for k, x in arguments.items() if x is not None
        }
        given |= pytree.tree_map_only(torch.Tensor, to_jax, dict(self.network.from_pipeline))
        call: Callable[..., Any] = port.call or (lambda inputs: port.module(**inputs))
        with contextlib.ExitStack() as stack:
            stack.enter_context(guarded(entry))
            if heard is not None:
                stack.enter_context(listening(heard.named))
                if port.module is not None:
                    stack.enter_context(watched(port.module, heard, lambda _: heard.tap.is_here()))
                for module, mask in (port.padded(given) if port.padded is not None else {}).items():
                    heard.tap.masked(module, {"mask": interop.torch_view(mask)})
            passed = (given,) if port.weights is None else (_filled(params, port.weights), given)
            out = prediction_of(self.network.called(call, *passed))
        if not isinstance(out, jax.Array):
            raise wrong_output(entry, out, "a jax array")
        taken: jax.Array = self.network.taken(out, port, arguments)
        if heard is not None:
            heard.returned(taken)
        return taken


LAYER = "*"
"""In a name that is tapped inside a scan, the number of the layer."""


class _Heard:
    """Hands what a port names, and what its modules are given and return, to a tap.

    Attributes:
        count: of all it heard, wanted or not. top: what the port's module returned, which may not be all that its
            `call` makes: it is handed over when that has returned, unless the port names an output of its own.
    """

    def __init__(self, backend: JaxPort, tap: TracedTap, arguments: Mapping[str, Any]) -> None:
        self.backend, self.tap = backend, tap
        self.rank, self.channels = arguments[LATENT].ndim, backend.network.family.channels
        given = (tuple(x.shape) for x in arguments.values() if getattr(x, "ndim", 0) == self.rank)
        sizes = ((shape, shape[1 : self.channels] + shape[self.channels + 1 :]) for shape in given)
        self.pictures = {pixels for shape, pixels in sizes if max(shape) > 1}  # a function has no latents
        self.calls: Counter[tuple[str, str]] = Counter()
        self.layers: Counter[str] = Counter()
        self.last: dict[str, Any] = {}
        self.top: list[Any] = []
        self.count = 0

    def named(self, name: str, value: Any) -> None:
        site = name.removesuffix(":out")
        if isinstance(value, jax.Array) and self.last.get(site) is value:
            return  # a function and its caller both name what it returns
        self.last[site] = value
        if LAYER in name:
            self.layers[name] += 1
            name = name.replace(LAYER, str(self.layers[name] - 1))
        module, _, port = name.partition(":")
        if port.startswith("in."):
            self.given(module, {port.removeprefix("in."): value})
        self._see(module, port or "out", value)

    def given(self, module: str, named: Mapping[str, Any]) -> None:
        if self.tap.is_here():
            with self.backend.env:
                arrays = {name: mapped(same, x, self._viewed) for name, x in named.items()}
                self.tap.masked(self.tap.named(module), arrays)

    def see(self, module: str, port: str, value: Any) -> None:
        if (module, port) == ("", "out"):
            self.top.append(value)
        else:
            self._see(module, port, value)

    def _see(self, module: str, port: str, value: Any) -> None:
        self.count += 1
        if not self.tap.is_here():
            raise UsageError(
                f"{self.backend.network.entry.named}: tap('{module}') is inside a jax transformation (vmap, grad, "
                "cond, while_loop, shard_map, or a checkpoint that was made before the call); tap its result outside"
            )
        path = self.tap.named(module)
        self.backend.heard.add(path)
        self.backend.own.add(module)
        call = self.calls[path, port]
        self.calls[path, port] += 1
        if not path and port == "out" and isinstance(value, Mapping):  # in its own order, as a reference's tuple
            value = tuple(value.values())
        value = single_output(value) if port == "out" else value
        arrays = mapped(same, value, functools.partial(self._viewed, has_heads=is_attention(path)))
        with self.backend.env:
            if self.tap.plan.wants_module(path):
                self.tap.see(path, call, port, arrays)
            self.tap.hold(path, call, port, arrays)

    def returned(self, prediction: jax.Array) -> None:
        """Hand out what the port returns, where it names no output of its own: what it does behind its last tap."""
        for value in self.top if ("", "out") not in self.calls else ():
            self._see("", "out", value)
        if ("", "out") not in self.calls:
            with self.backend.env:
                self.tap.hold("", 0, "out", interop.torch_view(prediction))

    def _viewed(self, x: Any, *, has_heads: bool = False) -> Any:
        """An array as torch's, of pixels with its channels where parity has them; what has heads has no pixels."""
        x = jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x
        if not isinstance(x, jax.Array) or _is_key(x):
            return x
        if not has_heads and any(_are_pixels(x.shape[1:-1], sizes) for sizes in self.pictures):
            x = moved(x, self.backend.port, self.rank, -1, self.channels)
        return interop.torch_view(x)


def _are_pixels(sizes: Sequence[int], given: Sequence[int]) -> bool:
    """Whether sizes are those of a picture, in the proportions of one that the model is given, but for rounding."""
    if len(sizes) != len(given) or len(sizes) < 2:
        return False
    (high, wide), (height, width) = sizes[-2:], given[-2:]
    return abs(high * width - wide * height) < max(height, width)


def _are_stacked(parameters: Any) -> bool:
    """Whether some are of several layers: a bias or a scale of one has one axis."""
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    return any(_name(path).endswith(("bias", "scale")) and not _is_key(x) and x.ndim > 1 for path, x in leaves)


def _name(path: Any) -> str:
    """The path of a leaf in a nest of parameters."""
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")


def _array(port: str, path: Any, x: Any) -> jax.Array | None:
    """A leaf of a port's weights as an array; None for one without values, as Flax's counters after `jax.eval_shape`.

    Raises:
        UsageError: it has none, and is a weight.
    """
    if isinstance(x, jax.ShapeDtypeStruct) and jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        raise UsageError(f"{port}: the weight '{_name(path)}' has no values (it is abstract): load it")
    return None if isinstance(x, jax.ShapeDtypeStruct) else jax.numpy.asarray(x)


def _parameter(stack: jax.Array, layer: int | None, *, is_kernel: bool) -> np.ndarray:
    """A parameter on the host, or a layer's of a stack; a kernel [..., in, out] as torch has it, [out, in, ...]."""
    x = on_host(stack if layer is None else stack[layer])
    return x.transpose(-1, -2, *range(x.ndim - 2)) if is_kernel and x.ndim > 1 else x


def _filled(arrays: Any, weights: Any) -> Any:
    """A port's weights, with these arrays in place of those that have values."""
    return jax.tree.map(lambda x, own: own if x is None else x, arrays, weights, is_leaf=lambda x: x is None)


def _is_key(x: jax.Array) -> bool:
    """Whether it is keys of random numbers, as a Flax module's state holds among its weights."""
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def load_jax_port(network: Ported, settings: Settings, inputs: Inputs, port: Port) -> Loaded:
    """Load a candidate that is a port in JAX."""
    use_compilation_cache()
    reached = network.reached(settings)
    backend = JaxPort(port, network, inputs, reached)
    paths = {} if port.module is None else {network.named(p): "" for p in objects_of(port.module)}
    modules = {p: nearest(p, paths) for p in paths if p}
    return Loaded(network, inputs, backend, modules)
