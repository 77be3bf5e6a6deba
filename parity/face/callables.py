"""Somebody's function or module as a port, as it is: which library runs it, what is observed of it, how it is called.

Nothing of the caller's is changed: of a module a copy is run, whose parameters share their memory until it is cast.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import inspect
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.face.arguments import Nest, is_array, leaves
from parity.face.functions import Function, JaxFunction
from parity.hooks.objects import objects_of
from parity.hooks.tap import single_output
from parity.hooks.torchtools import named_tensors, on_jax, parts_of, to_torch, uncompiled
from parity.models.generic import padding_of
from parity.models.generic_inputs import LATENT
from parity.models.patches import DTYPES
from parity.paths.port.load import Entry, runs_of
from parity.paths.port.ported import moved
from parity.port import Case, Port, Runs, tap
from parity.settings import BITS

IN = "in."
"""Before a caller's argument names, so that none is taken for the loop's own."""

Invoke = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_JAX, _TORCH = {"jax", "jaxlib", "flax", "equinox", "haiku"}, {"torch", "diffusers", "transformers"}


def arranged(output: object, names: Sequence[str]) -> object:
    """A dict or dataclass with just these names as a tuple in their order, as the reference's; any other as it is."""
    named = _named(output)
    if [*named] == names or named.keys() != set(names):
        return output
    return tuple(named[name] for name in names)


def _named(output: object) -> dict[str, object]:
    """What an output holds by names, as its parts are numbered (`parity.hooks.tap.single_output`)."""
    if isinstance(output, (tuple, list)):
        return dict(zip(getattr(output, "_fields", ()), output, strict=False))
    parts = dict(parts_of(output) or ())
    return dict(sorted(parts.items())) if type(output) is dict else parts


@dataclass(frozen=True, kw_only=True)
class Callee:
    """One side's code.

    Attributes:
        port: as it was given, or made of what was given. invoke: (weights, args, kwargs) -> output; None for a torch
            module that is called as it is. runs: the library that runs it. name: for people.
        nest: of the arguments. tensors: by name, as they were given. file: that it is written in.
        fields: the names in what the reference returns first, in its order. may_trace: whether JAX may trace it
            beforehand, which leaves arrays of that trace in what the code keeps between calls. beside_16_bits: whether
            the reference works in 16 bits.
    """

    port: Port
    invoke: Invoke | None
    runs: Runs
    name: str
    nest: Nest
    tensors: Mapping[str, torch.Tensor]
    file: str
    fields: list[str] = field(default_factory=list)
    may_trace: bool = False
    beside_16_bits: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What it works in: the 16 bits in which it computes whatever it is given; else the floating dtype of most of
        its weights, some of which may stay in float32; else that of its arguments."""
        if self._narrow:
            return getattr(torch, self._narrow)
        weights = [x for m in self._held.values() for _, x in named_tensors(m)]
        if self.runs == "jax" and self.port.weights is not None:
            import jax

            weights = jax.tree.leaves(self.port.weights)
        for held in (weights, self.tensors.values()):
            sizes = Counter[str]()
            for x in held:
                name = str(getattr(x, "dtype", "")).removeprefix("torch.")
                sizes[name] += math.prod(x.shape) if name in BITS else 0
            if sizes.total():
                return DTYPES[sizes.most_common(1)[0][0]]
        return torch.float32

    @functools.cached_property
    def holds_16_bits(self) -> bool:
        """Whether it computes in 16 bits whatever it is given, or most of what a function of JAX's closes over is of 16
        bits: nobody casts that."""
        program = self._program if self.closes_over else None
        held = [x for x in _constants(program) if str(x.dtype) in BITS] if program is not None else []
        return self._narrow != "" or 2 * sum(x.size for x in held if is_16_bits(x)) > sum(x.size for x in held)

    @property
    def closes_over(self) -> bool:
        """Whether it is a function alone, which closes over its weights if it has any."""
        return self.port.module is None and self.port.weights is None

    @functools.cached_property
    def _narrow(self) -> str:
        """The 16 bits in which most modules of Flax NNX are declared to compute that have parameters, or beside a
        reference in 16 bits those in which it multiplies most of its weights though they and its arguments are in
        float32; else empty. Beside a reference in float32 a cast in its code is a fault."""
        held = objects_of(self.port.module) if self.runs == "jax" and self.port.module is not None else {}
        objects = (getattr(x, "__dict__", {}) for x in held.values())
        given = [own.get("dtype") for own in objects if any(hasattr(x, "shape") for x in own.values())]
        narrow = [str(np.dtype(x)) for x in given if _is_narrow(x)]
        declared = narrow[0] if 2 * len(narrow) > len(given) else ""
        if declared or not self.beside_16_bits:
            return declared
        sizes = Counter[str]()
        for size, dtype in _products(self._program.jaxpr) if self._program is not None else ():
            sizes[dtype] += size
        wide = sizes.pop("", 0)
        return sizes.most_common(1)[0][0] if sizes.total() > wide else ""

    @functools.cached_property
    def _program(self) -> Any:
        """See `_traced`; of Flax NNX a copy is called."""
        if self.runs != "jax" or self.invoke is None or not (self.may_trace or self.port.call is None):
            return None
        return _traced(self.invoke, self.port, self.nest, self.tensors)

    @functools.cached_property
    def padding(self) -> np.ndarray | None:
        """See `parity.models.generic.padding_of`."""
        return padding_of(self.tensors)

    @property
    def _held(self) -> dict[str, torch.nn.Module]:
        module = self.port.module
        if isinstance(module, torch.nn.Module):
            return {"model": module}
        return {} if self.runs == "jax" else held_modules(self.port.call)

    def entry(self, role: str) -> Entry:
        """As a port of this role."""
        function = self._reference if role == "reference" else self._candidate
        # What a JAX function is given decides what it computes in; torch's are cast by whoever loads them.
        own = {"dtype": str(self.dtype).removeprefix("torch.")} if self.runs == "jax" else {}
        return Entry(option=role, text=self.name, file=self.file, settings=own, digest="", function=function)

    # --- as either side

    def _reference(self, case: Case) -> Port:
        if self.runs == "jax":
            invoke, weights = self._invoked(), self.port.weights
            module: torch.nn.Module = JaxFunction(lambda *a, **k: invoke(weights, a, k))
        else:
            module = self._in_torch(plain=True, copied=case.latent_shape is not None)
        return replace(self._as_torch(module), runs="torch", inputs=self._inputs(), rename={}, weights=None)

    def _candidate(self, case: Case) -> Port:
        if self.runs == "jax":
            return self._in_jax(case.settings["dtype"])
        module = self._in_torch(plain=False)
        module.register_forward_hook(lambda module, args, output: arranged(output, self.fields))  # before any tap's
        return replace(self._as_torch(module), runs=self.runs)

    def _as_torch(self, module: torch.nn.Module) -> Port:
        def call(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
            args, kwargs = self.nest.fill(_own(given))
            out = module(*args, **kwargs)
            self.fields[:] = self.fields or _named(out)  # a candidate's are in the reference's order by now
            return _prediction(self, out, given[LATENT].ndim)

        return replace(self.port, module=module, call=call, padded=self._padded())

    def _in_jax(self, dtype: str) -> Port:
        """Its weights are cast as a torch module's are, where it is to compute in float32."""
        import jax

        port, invoke, own = self.port, self._invoked(), self._padded()
        bare = self.invoke is not None and port.call is None and _is_nnx(port.module)  # see `_of_nnx`
        if dtype == "float32" and bare and self.dtype.itemsize == 2:
            made, invoke = _of_nnx(_widened(port.module))
            port = replace(port, module=made.module, weights=made.weights)
        elif dtype == "float32":
            port = replace(port, weights=jax.tree.map(_wide, port.weights))

        def call(*passed: Any) -> Any:
            weights, given = passed if self.port.weights is not None else (None, passed[0])
            args, kwargs = self.nest.fill(_own(given))
            out = arranged(invoke(weights, args, kwargs), self.fields)
            made = single_output(out)
            if self.port.module is None or isinstance(made, (tuple, list)):  # observed as a module's output would be
                tap(":out", made)
            return _prediction(self, out, given[LATENT].ndim)

        def admitted(given: Mapping[str, Any]) -> Mapping[str, Any]:
            whole = {} if self.padding is None else {"": jax.numpy.asarray(~self.padding)}
            return whole if own is None else {**whole, **own(given)}

        return replace(port, call=call, runs="jax", padded=admitted)

    def _padded(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any]] | None:
        """The port's own, which is given arguments as its `call` is."""
        padded = self.port.padded
        return None if padded is None else lambda given: padded(_own(given))

    def _invoked(self) -> Invoke:
        module = self.port.module
        return self.invoke or (lambda weights, args, kwargs: module(*args, **kwargs))

    def _in_torch(self, *, plain: bool, copied: bool = True) -> torch.nn.Module:
        """A copy of a module, or a function as one: of a module that it holds it would not call a copy.

        Args:
            copied: whether it is to be called, not only asked for its inputs.
        """
        if self.invoke is None and self.port.module is not None:
            return _copied(self.port.module, plain=plain).eval() if copied else self.port.module
        held, invoke = self._held, self._invoked()
        given = next(iter(self.tensors.values())).device
        where = next((x.device for m in held.values() for _, x in named_tensors(m)), given)
        return Function(lambda *a, **k: invoke(None, a, k), held, self.dtype, where)

    def _inputs(self) -> dict[str, torch.Tensor]:
        rank = max([3, *(x.ndim for x in self.tensors.values())])
        given = {f"{IN}{name}": x for name, x in self.tensors.items()}
        return {LATENT: torch.zeros([1] * rank), **given}  # no loop goes round a function: nothing reads them


def callee(
    given: object, nest: Nest, tensors: Mapping[str, torch.Tensor], library: Runs, runs: Runs | None, role: str
) -> Callee:
    """What the caller gave as a side.

    Args:
        given: a function, a module of torch's, torchax's or Flax NNX', or a `parity.port.Port`. library: of the
            caller's arrays. runs: that runs it; None to find it out.

    Raises:
        UsageError: it cannot be called, or not copied, or is no module of the library that runs it.
    """
    invoke: Invoke | None = None
    if isinstance(given, Port):
        port, invoke = given, _of_port(given)
    elif isinstance(given, torch.jit.ScriptModule):
        raise UsageError(f"the {role} is a script of torch.jit's, which cannot be copied: give what it was made of")
    elif isinstance(given, torch.nn.Module):
        port = Port(module=uncompiled(given))
    elif not callable(given):
        raise UsageError(
            f"the {role} is of type {type(given).__name__}: give a function, a module or a parity.port.Port"
        )
    elif _is_nnx(given):
        port, invoke = _of_nnx(given)
    else:
        port, invoke = Port(call=given), _renewed(given, lambda weights, args, kwargs: given(*args, **kwargs))
    own = given.call or given.module if isinstance(given, Port) else given
    while isinstance(own, functools.partial):
        own = own.func
    kind = runs or port.runs or _runs(port, invoke, nest, tensors, library)
    if kind != "jax" and port.module is not None and not isinstance(port.module, torch.nn.Module):
        raise UsageError(f"the {role} runs in {kind} and its module is of type {type(port.module).__name__}")
    if kind == "torch" and isinstance(port.module, torch.nn.Module) and runs_of(port.module) == "torchax":
        raise UsageError(f"the {role} runs in torch and the tensors of its module are torchax's: leave `runs` out")
    return Callee(port=port, invoke=invoke, runs=kind, name=_name(own), nest=nest, tensors=tensors, file=_file(own))


def is_16_bits(x: Any) -> bool:
    """Whether it is an array of 16-bit floats, with values."""
    return hasattr(x, "astype") and _is_narrow(x.dtype)


def _is_narrow(dtype: Any) -> bool:
    """Whether it is a dtype of 16-bit floats; an attribute by that name may be anything."""
    try:
        return BITS.get(str(np.dtype(dtype)), 24) < BITS["float32"]
    except (TypeError, ValueError):
        return False


def _wide(x: Any) -> Any:
    """An array of 16-bit floats in float32; anything else as it is."""
    return x.astype("float32") if is_16_bits(x) else x


def _traced(invoke: Invoke, port: Port, nest: Nest, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What JAX traces of a function on its weights and these arguments, in its layout, those of 16 bits in float32;
    None if it cannot. Nothing is computed."""
    import jax

    from parity.paths.jax.tracing import to_jax  # jax, for a function that has it

    def called(weights: Any, given: Mapping[str, Any]) -> list[Any]:
        args, kwargs = nest.fill(given)
        return [x for _, x in leaves(invoke(weights, args, kwargs))]

    def shaped(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, "float32" if _is_narrow(x.dtype) else x.dtype) if is_array(x) else x

    rank = max(x.ndim for x in tensors.values())
    try:
        given = {name: to_jax(moved(x, port, rank, 1, -1)) for name, x in tensors.items()}
        return jax.make_jaxpr(called)(*jax.tree.map(shaped, (port.weights, given)))
    except Exception:  # the comparison says what is wrong with it
        return None


def _products(jaxpr: Any) -> Iterator[tuple[int, str]]:
    """The products with weights in a traced program: the elements of the smaller operand, and the 16 bits of an operand
    or of the result, empty if none has. Both operands of an attention's products have a batch, a kernel's are tiles."""
    for equation in jaxpr.eqns:
        kind, params = equation.primitive.name, equation.params
        if kind == "conv_general_dilated" or (kind == "dot_general" and not any(params["dimension_numbers"][1])):
            dtypes = [str(x.aval.dtype) for x in (*equation.invars, *equation.outvars)]
            yield min(x.aval.size for x in equation.invars), next(filter(_is_narrow, dtypes), "")
        for x in params.values() if kind != "pallas_call" else ():
            for inner in x if isinstance(x, tuple) else (x,):  # the branches of a condition
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from ((params.get("length", 1) * size, dtype) for size, dtype in _products(inner))


def _constants(closed: Any) -> Iterator[Any]:
    """The arrays that a traced function closes over, those of the functions that it calls among them."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for inner in equation.params.values():
            if hasattr(inner, "consts") and hasattr(inner, "jaxpr"):
                yield from _constants(inner)


# --- how it is called


def _of_port(port: Port) -> Invoke | None:
    call = port.call
    if call is None:
        return None
    if port.weights is None:
        return _renewed(call, lambda weights, args, kwargs: call(kwargs))
    return _renewed(call, lambda weights, args, kwargs: call(weights, kwargs))


def _of_nnx(module: Any) -> tuple[Port, Invoke]:
    """A Flax NNX module: its state is an argument of the compiled program, its modules are observed."""
    from flax import nnx

    graph, state = nnx.split(module)

    def invoke(weights: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return nnx.merge(graph, weights)(*args, **kwargs)

    return Port(module=module, weights=state), invoke


def _renewed(function: Any, invoke: Invoke) -> Invoke:
    """Calls of a function during which the Flax NNX modules that it names hold copies of their variables: `nnx.jit`
    writes to a module, and leaves one empty that was made outside of the trace."""
    held = [x for _, x in _reached(inspect.unwrap(function)) if _is_nnx(x)]
    if not held:
        return invoke
    from flax import nnx

    def modules(of: Any) -> list[Any]:
        return [node for _, node in nnx.iter_graph(of) if _is_nnx(node)]

    def put(of: Iterable[Any], attributes: Iterable[Mapping[str, Any]]) -> None:
        for module, own in zip(of, attributes, strict=True):
            vars(module).clear()
            vars(module).update(own)

    def renewed(*given: Any) -> Any:
        own, copies = modules(held), modules(nnx.clone(held))
        before, same = [dict(vars(x)) for x in own], {id(y): x for x, y in zip(own, copies, strict=True)}
        try:
            put(own, ({name: same.get(id(x), x) for name, x in vars(y).items()} for y in copies))
            return invoke(*given)
        finally:
            put(own, before)

    return renewed


def _widened(module: Any) -> Any:
    """A copy of a Flax NNX module with its 16 bits in float32: parameters, and each `dtype` that asks for
    their 16 bits, in a parameter's metadata or of a module around it."""
    import jax
    from flax import nnx

    graph, state = nnx.split(module)
    made = nnx.merge(graph, jax.tree.map(_wide, state))
    cast = dict(nnx.iter_graph(made))
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            asked, held, keep = node.get_metadata().get("dtype"), jax.tree.leaves(node), cast[path].set_metadata
        elif isinstance(node, nnx.Module):
            keep = functools.partial(setattr, cast[path])
            asked, held = vars(node).get("dtype"), jax.tree.leaves(nnx.state(node))
        else:
            continue
        if _is_narrow(asked) and any(map(is_16_bits, held)):
            keep("dtype", jax.numpy.dtype("float32"))
    return made


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(IN): x for name, x in given.items() if name.startswith(IN)}


def _prediction(side: Callee, output: Any, rank: int) -> Any:
    """The output that is compared as the prediction, as one item of a batch: the first array, of any shape."""
    first = next((x for _, x in leaves(single_output(output))), None)
    if first is None:
        raise UsageError(f"{side.name} returned {type(output).__name__}, which holds no array to compare")
    if isinstance(first, np.ndarray):
        raise UsageError(f"{side.name} returned a numpy array; return an array of {side.runs}'s")
    first = _without_padding(side, first)
    first = moved(first, side.port, rank, -1, 1)
    if "float" not in str(first.dtype):
        first = first.float() if isinstance(first, torch.Tensor) else first.astype("float32")
    return first[None] if first.ndim + 1 != rank else first[None, None]  # whose layout is the port's no more


def _without_padding(side: Callee, x: Any) -> Any:
    """An output with zeros for the padding of its text; what is not finite stays, and decides."""
    left = side.padding
    if left is None or x.ndim < 3 or tuple(x.shape[:2]) != left.shape:
        return x
    left = left.reshape(*left.shape, *[1] * (x.ndim - 2))
    if isinstance(x, torch.Tensor):
        return x.masked_fill(torch.as_tensor(left, device=x.device) & torch.isfinite(x), 0)
    import jax

    return jax.numpy.where(left & jax.numpy.isfinite(x), 0, x)


def _copied(module: torch.nn.Module, *, plain: bool) -> torch.nn.Module:
    """A copy that can be cast and hooked without a trace on the caller's; parameters share their memory.

    Args:
        plain: torchax's tensors become torch's.
    """
    memo: dict[int, Any] = {}
    for name, x in named_tensors(module):
        if hasattr(x, "jax"):
            memo[id(x)] = torch.nn.Parameter(to_torch(x) if plain else x.detach(), requires_grad=False)
        elif x.is_meta:
            raise UsageError(f"'{name}' of {type(module).__name__} has no values (it is on the meta device): load it")
        elif isinstance(x, torch.nn.Parameter):
            memo[id(x)] = torch.nn.Parameter(x.detach(), requires_grad=False)
        else:
            memo[id(x)] = x.detach().clone()
    held = (x for own in module.modules() for x in vars(own).values() if isinstance(x, torch.Tensor))
    memo |= {id(x): x.detach() for x in held if not x.is_leaf}  # as `weight_norm` computes a weight: none has a copy
    try:
        made: torch.nn.Module = copy.deepcopy(module, memo)
    except Exception as error:
        raise UsageError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}); give a function that calls it"
        ) from error
    return made


# --- what it is


def held_modules(function: Any) -> dict[str, torch.nn.Module]:
    """The torch modules that a function calls: in its closure, its globals, its `partial`, or whose method it is."""
    found: dict[str, torch.nn.Module] = {}
    for name, x in _reached(function):
        plain = isinstance(x, torch.nn.Module) and not isinstance(x, torch.jit.ScriptModule)
        if plain and not any(x is other for other in found.values()):
            found[name.replace(".", "_")] = uncompiled(x)
    return found


def _reached(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function's code can name: its closure, its defaults and globals, of a method its object, of a partial its
    arguments."""
    if isinstance(function, functools.partial):
        yield from _reached(function.func)
        yield from function.keywords.items()
        yield from ((f"argument{i}", x) for i, x in enumerate(function.args))
        return
    if inspect.ismethod(function):
        yield "model", function.__self__
        yield from vars(function.__self__).items() if hasattr(function.__self__, "__dict__") else ()
        function = function.__func__
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no value yet
                yield name, cell.cell_contents
        yield from ((f"default{i}", x) for i, x in enumerate(function.__defaults__ or ()))
        yield from (function.__kwdefaults__ or {}).items()
        steps = (i for code in _codes(function.__code__) for i in dis.get_instructions(code))
        loaded = {i.argval for i in steps if i.opname == "LOAD_GLOBAL"}  # no attributes
        yield from ((name, function.__globals__[name]) for name in sorted(loaded & function.__globals__.keys()))
    elif hasattr(function, "__dict__") and not isinstance(function, type):
        yield from vars(function).items()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions in it."""
    yield code
    for inner in filter(inspect.iscode, code.co_consts):
        yield from _codes(inner)


def _runs(port: Port, invoke: Invoke | None, nest: Nest, tensors: Mapping[str, torch.Tensor], library: Runs) -> Runs:
    """The library whose arrays it takes: of a function the one that its code names, or else that of the caller's."""
    if isinstance(port.module, torch.nn.Module):
        return runs_of(port.module)
    if port.module is not None or port.weights is not None:
        return "jax"
    function = port.call
    if _library(type(function)) in ("jax", "jaxlib", "flax"):  # jax.jit's and nnx.jit's
        return "jax"
    held = held_modules(function)  # of which it may only read a config
    if any(map(on_jax, held.values())):
        return "torchax"
    named = _libraries(function, DEPTH) | ({"torch"} if held else set())
    if named & _JAX and named & _TORCH:
        return "torch" if invoke is None or _traced(invoke, port, nest, tensors) is None else "jax"
    return "jax" if named & _JAX else "torch" if named & _TORCH else library


DEPTH = 3
"""Functions that call each other, up to the one that names a library."""


def _libraries(function: Any, depth: int) -> set[str]:
    """The top packages of what a function's code can name, and of what the functions among that can."""
    reached = [x for _, x in _reached(function)]
    inner = [x for x in reached if callable(x) and not isinstance(x, type) and _library(x) not in _JAX | _TORCH]
    further = (_libraries(x, depth - 1) for x in inner) if depth else ()
    items = (item for x in reached for item in (x, *(y for _, y in leaves(x))))
    return {"flax" if _is_nnx(item) else _library(item) for item in items}.union(*further)


def library_of(inputs: object) -> Runs:
    """The library of arrays: JAX's own, else torch's, as which any others come."""
    return "jax" if any(_library(x) in _JAX for _, x in leaves(inputs)) else "torch"


def _library(x: object) -> str:
    """The top package of a module, or of a class, a function or an array; empty where there is none."""
    if inspect.ismodule(x):
        return x.__name__.partition(".")[0]
    own = x if isinstance(x, type) or inspect.isfunction(x) else type(x)
    return str(getattr(own, "__module__", "")).partition(".")[0]


def _is_nnx(x: object) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, nnx.Module)


def _name(x: object) -> str:
    named = x if inspect.isroutine(x) or hasattr(x, "__wrapped__") else type(x)
    return str(getattr(named, "__name__", type(x).__name__)).strip("<>") or type(x).__name__


def _file(x: object) -> str:
    """The file that it is written in, so that an error names a line of it; the working folder where nobody knows."""
    try:
        return str(Path(inspect.getsourcefile(x if inspect.isroutine(x) else type(x)) or "").resolve())
    except (TypeError, OSError):
        return str(Path.cwd() / "script.py")
