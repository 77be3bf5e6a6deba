"""Torch helpers: its functions intercepted, modules, tensors and arguments by name, nests walked, a model in a wider
dtype or without what `torch.compile` made of it."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from parity.hooks.methods import replaced
from parity.records import above

SDPA: Callable[..., torch.Tensor] = torch._C._nn.scaled_dot_product_attention
"""torch's own attention, whatever stands in `torch.nn.functional` by now."""
SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Of its arguments."""


Handle = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Takes a function of torch's, its args and its kwargs, and gives what is returned in place of what it does."""


class Intercept(TorchFunctionMode):
    """Within it, what torch's functions return is what a handler makes of the function and its arguments. Calls that
    torch.compile traces are left alone, as those within flex attention are.

    Args:
        handle: functions that it calls are not handed to it again.
        only: functions that it is asked about; None for all.
    """

    def __init__(self, handle: Handle, only: Container[Any] | None = None) -> None:
        super().__init__()
        self.handle, self.only = handle, only

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling() or (self.only is not None and func not in self.only):
            return func(*args, **kwargs) if kwargs else func(*args)
        return self.handle(func, args, dict(kwargs or {}))


def of_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `SDPA` by name."""
    return {**dict(zip(SDPA_NAMES, args, strict=False)), **kwargs}


# --- modules


def callable_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of a model that can be called, by path, the top one as `""`; lists and dicts of modules are not."""
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
    return {path: m for path, m in model.named_modules() if not isinstance(m, containers)}


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, tied ones under each name, and the buffers that state_dict leaves out."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's tensors are; the CPU for one that has none."""
    return next((x.device for _, x in named_tensors(model)), torch.device("cpu"))


def on_jax(model: torch.nn.Module) -> bool:
    """Whether any of a model's tensors is one of torchax's."""
    return any(hasattr(x, "jax") for _, x in named_tensors(model))


def to_torch(x: Any) -> torch.Tensor:
    """An array of numpy's, JAX's or torchax's as a torch tensor of its dtype, with memory of its own; one of torch's
    as it is, without a gradient."""
    if isinstance(x, torch.Tensor) and not hasattr(x, "jax"):
        return x.detach()
    values = np.array(x.jax() if hasattr(x, "jax") else x)
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def cast(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A model whose tensors are in a dtype, complex tables among them: torch's own `to` keeps only their real part."""
    wide = torch.complex128 if dtype is torch.float64 else torch.complex64

    def one(x: torch.Tensor) -> torch.Tensor:
        return x.to(wide) if x.is_complex() else x.to(dtype) if x.is_floating_point() else x

    return model._apply(one)


def cast_arguments(given: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Copies of a call's arguments, the floating ones in a dtype. A vector that is wider than others stays in float32,
    as a timestep beside latents in 16 bits: bfloat16 has no 999."""
    widths = [x.dtype.itemsize for x in given.values() if x.is_floating_point()]
    wider = torch.float64 if dtype is torch.float64 else torch.float32

    def one(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x.clone()
        wide = x.ndim < 2 and x.dtype.itemsize > min(widths)
        return x.to(wider if wide else dtype, copy=True)

    return {name: one(x) for name, x in given.items()}


def module_tree(model: torch.nn.Module) -> dict[str, str]:
    """Path of each callable module -> path of the nearest callable module above it."""
    paths = callable_modules(model)
    return {path: nearest(path, paths) for path in paths if path}


def nearest(path: str, paths: Container[str]) -> str:
    """The nearest path above one among others; empty for none."""
    return next((around for around in above(path) if around in paths), "")


@contextlib.contextmanager
def uncached(model: torch.nn.Module) -> Iterator[None]:
    """Within it, what the methods of a model's classes remember (`functools.lru_cache`) begins empty, and is forgotten
    after it: a rotary table that one trace made is a tracer of that one, which no other program may use."""
    with contextlib.ExitStack() as stack:
        for clear in _caches(model):
            clear()
            stack.callback(clear)
        yield


def _caches(model: torch.nn.Module) -> Iterator[Callable[[], object]]:
    """What empties each cache; diffusers wraps the cached function in one that decides whether to use it: it is what a
    cell of the other's closure refers to."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if kind is not torch.nn.Module}
    for kind in kinds:
        for method in vars(kind).values():
            # `cell_contents` raises where a cell is empty.
            for held in (method, *gc.get_referents(*(getattr(method, "__closure__", None) or ()))):
                clear = getattr(held, "cache_clear", None)
                if callable(clear) and callable(held):
                    yield clear


ORIGINAL = "_torchdynamo_orig_callable"
"""Attribute of a compiled function: the function."""


def plain(model: Any) -> Any:
    """The module that `torch.compile(module)` wraps; anything else as it is."""
    return model._orig_mod if type(model).__name__ == "OptimizedModule" else model


def uncompiled(model: Any) -> Any:
    """The module that `torchax.compile` or `torch.compile` wraps; anything else as it is."""
    return model._modules["_model"] if type(model).__name__ == "JittableModule" else plain(model)


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether a module, or one within it, is compiled by torch.compile: wrapped, in place, or its forward alone."""
    return any(
        plain(module) is not module or entry_of(module) != "forward" or hasattr(vars(module).get("forward"), ORIGINAL)
        for module in model.modules()
    )


def entry_of(module: torch.nn.Module) -> str:
    """The attribute of a module that a call of it ends in, outside of what is compiled."""
    return "forward" if vars(module).get("_compiled_call_impl") is None else "_compiled_call_impl"


@contextlib.contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Within it, a module and those within it run without the programs that they were compiled to.

    Args:
        model: as `plain` gives it.
    """
    with contextlib.ExitStack() as stack:
        for module in model.modules():  # its children are asked for once those here stand in their place
            for name, child in module._modules.items():
                if plain(child) is not child:
                    stack.callback(module._modules.__setitem__, name, child)
                    module._modules[name] = plain(child)
            if entry_of(module) != "forward":
                stack.enter_context(replaced(module, "_compiled_call_impl", None))
            original = getattr(vars(module).get("forward"), ORIGINAL, None)
            if original is not None:
                stack.enter_context(replaced(module, "forward", original))
        yield


# --- arguments


def named_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a module's forward; of the class's where a wrapper hides that behind `*args`."""
    signature = inspect.signature(module.forward)
    hidden = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values())
    return bound(type(module).forward.__get__(module) if hidden else module.forward, args, kwargs)


def bound(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call by parameter name, so that positional and keyword calls compare.

    Extra positional arguments are named `args.<i>`; a call that does not fit the signature falls back to `<i>`.
    """
    try:
        signature = inspect.signature(call)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    named: dict[str, Any] = {}
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            named[name] = value
    return named


# --- nests


def parts_of(x: Any) -> list[tuple[str, Any]] | None:
    """What a tuple, list, mapping or dataclass holds, by name; None for anything else.

    Of a dataclass, which may hold options of a backend, numbers and texts are left out.
    """
    if isinstance(x, Mapping):  # a ModelOutput among them
        return [(str(name), item) for name, item in x.items()]
    if isinstance(x, (tuple, list)):
        return [(str(i), item) for i, item in enumerate(x)]
    if is_dataclass(x) and not isinstance(x, type):
        held = ((f.name, getattr(x, f.name, None)) for f in fields(x))
        return [(name, item) for name, item in held if not isinstance(item, (int, float, str, NoneType))]
    return None


def leaves(x: Any, name: str = "", around: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What is in a nest and is none itself, with names such as `out.0.sample`; `around`: the nests that it is in, one
    of which it may hold again."""
    parts = None if isinstance(x, torch.Tensor) else parts_of(x)  # the check of most, and the cheapest
    if parts is None:
        yield name, x
        return
    for part, item in parts if id(x) not in around else ():
        yield from leaves(item, f"{name}.{part}" if name else part, (*around, id(x)))


def same(x: Any) -> Any:
    """What it is given."""
    return x


def mapped(change: Callable[[torch.Tensor], Any], x: Any, rest: Callable[[Any], Any] = same) -> Any:
    """`x` with `change` applied to each tensor in its nests, as torch's pytree knows them (a ModelOutput among them),
    and in its dataclasses, and `rest` to what else is in them."""

    def one(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return change(item)
        if not is_dataclass(item) or isinstance(item, type):
            return rest(item)
        new = copy.copy(item)
        for name, held in parts_of(item) or ():
            object.__setattr__(new, name, mapped(change, held, rest))
        return new

    return tree_map(one, x)


def real(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor's real view, [..., channels] as [..., 2 * channels]; any other as it is."""
    x = x.resolve_neg() if x.is_neg() else x
    if not x.is_complex():
        return x
    pairs = torch.view_as_real(x.resolve_conj() if x.is_conj() else x)
    return pairs.flatten(-2) if x.ndim else pairs


def prediction_of(output: Any) -> Any:
    """The prediction in what a transformer returns, torch's or JAX's: itself, the first of a tuple or list, or `sample`
    of a dict or an object."""
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    if isinstance(output, Mapping):
        return output.get("sample", output)
    return output if isinstance(output, torch.Tensor) else getattr(output, "sample", output)


def widest() -> Intercept:
    """Within it a model runs in a wider dtype than it was made for.

    torch refuses a norm that a model asks for in float32 where it would narrow its operand (Cosmos' positions): it is
    taken in the operand's dtype. And what it refuses for operands of two dtypes, as a product of what a model makes in
    one (Motif's sinusoids of a timestep) with weights in another: all are taken in the widest, or where that is written
    to in the first's.
    """

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.linalg.vector_norm and args and args[0].dtype == torch.float64:
            kwargs.pop("dtype", None)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            dtypes = {x.dtype for x in leaves}
            if len(dtypes) < 2:
                raise
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        wanted = args[0].dtype if in_place else max(dtypes, key=lambda dtype: dtype.itemsize)
        args, kwargs = mapped(lambda x: x.to(wanted) if x.is_floating_point() else x, (args, kwargs))
        return func(*args, **kwargs)

    return Intercept(handle)
