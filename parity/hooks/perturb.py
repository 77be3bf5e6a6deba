"""Monte Carlo rounding: what another correct implementation's rounding could do, sampled on the reference.

Every module's inputs, outputs, parameters and own tables move by one unit in the last place, up or down at random. The
tensors that the model itself is given stay: nobody computes them here, both sides hold the same bits, and a large
frequency may multiply the ulp of a coordinate (LTX-2's rotary tables). Its timestep alone moves, by what is rounded in
its schedule, which each side computes. In modules without parameters or children (rotary and time embeddings,
activations) the results of elementary functions move too, and sums of products: IEEE 754 rounds a sum and a product
alike everywhere, but not sin, exp or pow, and says no order; rotary tables come from constants, where nothing at the
module's boundary could show that another library's differ. (Measured on HunyuanVideo-1.5's rotary table of 111,600
tokens: XLA is 4.9e-7 from torch, where boundaries alone sample 7e-8.) In any other module those of vectors move:
frequencies that its own forward makes, whose ulp a timestep of 1000 multiplies. (Z-Image's time embedding is no module:
torch and XLA are 2.1e-6 apart, and 3.1e-6 from the exact one.)

float64 that a model computes by itself (frequencies of a time embedding) is narrowed to float32, which is all that JAX
has unless told otherwise.

The results of products (linear layers, convolutions) move besides by what adding their K terms one after the other
rounds, which grows with K where an ulp does not: see `SUM`. So do a norm's mean and mean square, one number for all
that is normed, of which ulps of each element leave nothing: see `MEAN`.

What is in 16 bits can be computed in float32 (`wide`): what that gives is as far from the model's own as its rounding
is large, element by element, where whole ulps of 16 bits would be far more than two implementations differ by.
Another's rounding is sampled there by up to half an ulp of 16 bits around modules whose weights have these.

Where the other implementation runs on a TPU, elementary functions move in every module, within what
its own may be off (`reach`). `parity.settings.chips` has the bounds of each function of XLA; a torch function is one of
them, or is made of some (a softmax of exp and a division), whose bounds add up. What is added up by the million
(attention, norms) errs less than the sum of its parts; a floor that holds this bound holds that too. float32 alone:
16-bit results are rounded by more.

The idea is Monte Carlo arithmetic (Parker 1997) at module boundaries. Cost: an elementwise pass over each value and,
one module at a time, a copy of its parameters.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from parity.floors import SCHEDULE_ROUNDING, TIMES, UNIT, is_timestep
from parity.hooks.torchtools import Intercept, callable_modules, device_of, mapped, named_arguments, widest
from parity.settings.chips import CHIPS, EPS, NO_CHIP, Bounds

SUM = 0.45 * 2.0**-24 / math.sqrt(2.0)
"""What adding K terms in float32 rounds, in the root mean square, over sqrt(K) and the root mean square of the sums.

Partial sums of terms without a trend grow as sqrt(k / K), and each is rounded by 0.42 half ulps (uniform within one,
the mantissa's logarithm uniform): 0.42 * 2^-24 * sqrt(K / 2), the random walk of Higham & Mary (A New Approach to
Probabilistic Rounding Error Analysis, 2019). Measured, torch's MKL against one term after the other: 0.45 for
K = 1024 and 2048 (6.1e-7, 8.5e-7); XLA on the same CPU is as far (6.0e-7, 8.4e-7), where one ulp of inputs, weights and
outputs samples 2.6e-7 whatever K is (`tests/hooks/test_perturb.py`).
"""

MEAN = 2.0**-23
"""What a norm's mean and its mean square round, relatively: one unit in the last place, whatever their width. Measured,
Flax's `LayerNorm` on XLA's CPU: 1.0e-7, half of which times mean square / variance is in its output (5.8e-8 without a
mean, 4.9e-6 for one of ten deviations; widths from 16 to 5,120), where ulps at its boundaries leave nothing of it."""
IN_A_ROW = 4096
"""Numbers that a mean over pixels may add one after the other, each of which rounds 0.42 half ulps of sums that grow as
k / K: 0.42 * 2^-24 * sqrt(K / 3). XLA on a CPU is off by 8.8e-7 at most (K = 8,192; 64 to a million, 177 shapes of
a group norm); for 4,096 that is 9.2e-7."""

MOST = 1e-5
"""Relative to what is normed, the most that counts as rounding. For means of over a dozen deviations one pass rounds
more, but no floor may be so wide that it hides another eps where the variance is small."""

_PRODUCTS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


@contextlib.contextmanager
def perturbed(model: torch.nn.Module, seed: int, chip: str = NO_CHIP, *, wide: bool = False) -> Iterator[None]:
    """Within it, calls of `model` round as drawn from `seed`. Parameters and hooks are as before on leaving.

    Args:
        chip: the TPU whose elementary functions another implementation may have.
        wide: whether it computes in float32 what it has in 16 bits; what it gives is in 16 bits again.
    """
    run = _Run(model, seed, CHIPS[chip], wide)
    with contextlib.ExitStack() as stack:
        stack.callback(run.restore_all)
        for module in callable_modules(model).values():
            leaf = next(module.children(), None) is None
            own = leaf and next(module.parameters(recurse=False), None) is None
            begin = functools.partial(run.begin, own)
            stack.enter_context(module.register_forward_pre_hook(begin, with_kwargs=True))
            # First of its hooks: an observer that began before sees what rounding made of the output.
            after = module.register_forward_hook(run.end, prepend=True, with_kwargs=True, always_call=True)
            stack.enter_context(after)
        if run.bounds:
            # Around whatever looks at functions within: that is to see what the chip gives.
            stack.enter_context(Intercept(run.of_the_chip))
        yield


Move = Callable[[torch.Tensor], torch.Tensor]
HALF, WIDE = (torch.bfloat16, torch.float16), (torch.float32, torch.float64)


def _is(x: Any, *dtypes: torch.dtype) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in dtypes


def _narrow(module: torch.nn.Module) -> torch.dtype | None:
    """The 16-bit dtype of most of a module's parameters; what has none (a rotary table) gives what it gives."""
    dtypes = [x.dtype for x in module.parameters() if x.is_floating_point()]
    most = max(set(dtypes), key=dtypes.count, default=None)
    return most if most in HALF else None


def _version(x: torch.Tensor) -> int:
    """How often a tensor was written to; a tensor of inference mode does not know."""
    return 0 if x.is_inference() else x._version


def _storage(x: torch.Tensor) -> int:
    """Where a tensor's memory begins; a view has that of what it is a view of."""
    return x.untyped_storage().data_ptr()


def _is_mask(x: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones alone; of most others the first element tells."""
    x = x.detach()
    first = float(x[(0,) * x.ndim]) if x.numel() else 0.0
    return first in (0.0, 1.0) and bool(((x == 0) | (x == 1)).all())


def _written(own: torch.Tensor, moved: torch.Tensor, version: int) -> None:
    """Write into a tensor what was written into the one that stood for it, such as a cache.

    Args:
        version: that this had before.
    """
    if _version(moved) > version:
        with torch.no_grad():
            own.copy_(moved)


def _put_back(holder: dict[str, Any], name: str, own: torch.Tensor, moved: torch.Tensor, version: int) -> None:
    """What a module held stands again where it did; what the module has put there itself stays."""
    if holder.get(name) is moved:
        holder[name] = own
        _written(own, moved, version)


def _is_table(x: Any) -> bool:
    return _is(x, *HALF, *WIDE, torch.complex64, torch.complex128) and x.layout == torch.strided and not x.is_meta


def _is_whole(x: torch.Tensor) -> bool:
    """Whether a tensor holds whole numbers alone: positions, ones and zeros."""
    return bool((x.detach() == x.detach().round()).all())


class _Run:
    """The draw in use, the parameters set aside while their module is called, and what the model was given."""

    def __init__(self, model: torch.nn.Module, seed: int, bounds: Bounds, wide: bool) -> None:
        self.model, self.seed, self.bounds, self.wide = model, seed, bounds, wide
        self.narrow: torch.dtype | None = None  # of the call that is going on, where it is in 16 bits
        self.generators: dict[tuple[torch.device, int], torch.Generator] = {}
        self.given: dict[int, torch.Tensor] = {}  # by the storage that a view of it has too
        self.aside: list[tuple[torch.nn.Module, contextlib.ExitStack]] = []  # what is put back as each call ends
        self.around = contextlib.ExitStack()  # a call of the model
        self.owns: list[bool] = []  # of the calls that are going on, the innermost last

    def generator(self, device: torch.device, stream: int = 0) -> torch.Generator:
        """What draws on a device: a model may move from one to another.

        Args:
            stream: 1 for what norms draw, so that all else draws what it would without them.
        """
        at = device, stream
        if at not in self.generators:
            self.generators[at] = torch.Generator(device).manual_seed((stream << 32) + self.seed)
        return self.generators[at]

    def begin(self, own: bool, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Hook of a module that is about to be called: its arguments, moved; those of the model's own call stay, and so
        wherever it hands them on. Function modes see nothing of it, nor of `end`.

        Args:
            own: whether all of its elementary functions move, not those of vectors alone.
        """
        self.aside.append((module, contextlib.ExitStack()))
        with torch._C.DisableTorchFunction():
            args, kwargs = self.each(args, self.widened), self.each(kwargs, self.widened)
            if not self.owns:
                self.narrow = _narrow(module) if self.wide else None
                named = named_arguments(module, args, kwargs)
                times = [x for name, x in named.items() if is_timestep(name) and _is(x, *WIDE)]
                timed = functools.partial(self.timed, times)
                args, kwargs = self.each(args, timed), self.each(kwargs, timed)
                tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
                self.given = {_storage(x): x for x in tensors}
            move = functools.partial(self.move, move=self.of(module))
            moved = self.each(args, move), self.each(kwargs, move)
            self.swap(module)
        self.enter(own)
        return moved

    def each(self, x: Any, change: Callable[[Any], Any]) -> Any:
        """Arguments, each changed. Lists and dicts stay the very ones, as a module may write into them: Wan's VAE keeps
        its frames in a list, a cache of keys and values is a dict. What is written into a changed tensor `end` gives
        back."""
        if type(x) is tuple:
            return tuple(self.each(item, change) for item in x)
        if type(x) is dict:
            return {k: item if type(item) in (dict, list) else self.each(item, change) for k, item in x.items()}
        if type(x) is list:
            return x
        changed = change(x)
        if isinstance(x, torch.Tensor) and changed is not x:
            self.aside[-1][1].callback(_written, x, changed, _version(changed))
        return changed

    def of(self, module: torch.nn.Module) -> Move:
        """How what a module is given and gives moves: where it works in 16 bits, by up to half an ulp of these."""
        halves = self.narrow is not None and any(_is(x, *HALF) for x in module._parameters.values())
        return self.rounded if halves else self.ulp

    def end(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Hook of a module that was called: its output, moved; that of the model itself in its own dtype again."""
        with torch._C.DisableTorchFunction():
            self.restore(module)
            moved = self.move(self.summed(module, output), self.of(module))
            if self.narrow is None or self.owns:
                return moved
            return mapped(lambda x: x.to(self.narrow) if _is(x, torch.float32) else x, moved)

    def timed(self, times: Sequence[torch.Tensor], x: Any) -> Any:
        """A timestep moved by what its schedule is rounded by; whole ones up, as a model may cut them to these."""
        if not any(x is time for time in times):
            return x
        up = torch.randint(0, 2, x.shape, generator=self.generator(x.device), device=x.device) > 0
        far = torch.where(x > UNIT, TIMES, 1.0) * SCHEDULE_ROUNDING
        return x + torch.where(up | (x == x.round()), far, -far)

    def widened(self, x: Any) -> Any:
        """A tensor in 16 bits, and a 16-bit dtype among the arguments, as float32; in a wide run alone."""
        if self.wide and _is(x, *HALF):
            return x.float()
        return torch.float32 if self.wide and isinstance(x, torch.dtype) and x in HALF else x

    def move(self, x: Any, move: Move) -> Any:
        """Floating tensors inside a nest moved; everything else as it is.

        Vectors stay too: a timestep per batch element is handed on exactly by every implementation. So do masks of
        zeros and ones: they are no results, and what counts them by a cast to integers (the text of HunyuanVideo's
        Framepack) would count none of those that lie an ulp below one. What stands in two places stays one tensor: a
        caller may write into it (an adapter's features, added to a UNet's skip connection too).
        """
        once: dict[int, torch.Tensor] = {}

        def one(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point() or x.ndim < 2 or _storage(x) in self.given or x.itemsize == 1:
                return x  # nothing is computed in 8 bits
            if id(x) not in once:
                moved = move(x)  # drawn for a mask too: what is drawn for all others stays the same
                once[id(x)] = x if _is_mask(x) else moved
            return once[id(x)]

        return mapped(one, x)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """`x` moved evenly by up to half a unit in the last place of the 16-bit dtype that it would be rounded to."""
        assert self.narrow is not None
        draw = torch.rand(x.shape, generator=self.generator(x.device), device=x.device) - 0.5
        ulps = torch.ldexp(draw * torch.finfo(self.narrow).eps / 2, torch.frexp(x.detach()).exponent)
        return torch.where(x == 0, x, x + ulps).to(x.dtype)

    def ulp(self, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            if x.itemsize < 4 and self.wide:
                return x  # what a wide run rounds to 16 bits is rounded so by everybody
            up = torch.randint(0, 2, x.shape, generator=self.generator(x.device), device=x.device, dtype=torch.int8)
            # Towards 4 |x| or -4 |x|, in few passes: this is half of what a perturbed run costs. Zeros stay, as nothing
            # is between them: a padded row or an absent input is exact in every implementation.
            held = x.detach()
            towards = up.to(x.dtype).sub_(0.5).mul_(held.abs().mul_(8))
            moved = torch.nextafter(held, towards, out=towards)
            return x + (moved - held) if x.requires_grad and torch.is_grad_enabled() else moved

    def of_the_chip(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Moves what a model's calls make of elementary functions within what the chip's may be off."""
        out = func(*args, **kwargs)
        return self.err(getattr(func, "__name__", ""), out, args, kwargs) if self.owns else out

    def err(self, name: str, out: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function's result moved within what the chip's may be off, evenly; of several the first (attention's)."""
        if isinstance(out, tuple) and out:
            return (self.err(name, out[0], args, kwargs), *out[1:])
        far = reach(name, out, args, kwargs, self.bounds) if isinstance(out, torch.Tensor) else None
        if far is None:
            return out
        with torch._C.DisableTorchFunction():
            draw = torch.rand(out.shape, generator=self.generator(out.device), device=out.device) * 2 - 1
            return torch.where(out.isfinite(), out + draw * far, out)

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """float64 as it is where there is none: JAX computes it in float32 unless told otherwise."""
        with torch._C.DisableTorchFunction():
            return self.ulp(x.float()).double()

    def summed(self, module: torch.nn.Module, out: Any) -> Any:
        """A product's output moved by what its sums could round; accumulators of 16-bit products are in float32."""
        if not isinstance(module, _PRODUCTS) or not isinstance(out, torch.Tensor) or out.dtype == torch.float64:
            return out
        terms = module.weight[0].numel()
        channels = -1 if isinstance(module, torch.nn.Linear) else -1 - len(module.kernel_size)
        size = out.float().square().mean(dim=channels, keepdim=True).sqrt()
        draw = torch.randn(out.shape, generator=self.generator(out.device), device=out.device)
        return (out + SUM * math.sqrt(terms) * size * draw).to(out.dtype)

    def normed(self, of: str, out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """A norm's output moved by what its mean and its mean square could round, from which one pass over the input,
        as Flax makes it, takes the variance. `of`: torch's name of what is normed, a shape or a number of groups."""
        held: dict[str, Any] = {**dict(zip(("input", of, "weight", "bias", "eps"), args, strict=False)), **kwargs}
        given, weight, grouped = held["input"], held.get("weight"), of == "num_groups"
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(given)  # by vmap, which draws nothing
        if given.dtype != torch.float32 or not given.numel() or wrapped:
            return out  # in 16 bits the output is rounded by more
        x = given.unflatten(1, (held[of], -1)) if grouped else given
        dims = tuple(range(2, x.ndim)) if grouped else tuple(range(-len(held[of]), 0))
        mean, var = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
        terms = min(x.numel() // mean.numel(), IN_A_ROW) if grouped else 0
        rounds = max(MEAN, 0.42 * 2.0**-24 * math.sqrt(terms / 3))
        # All of a group moves at once: a size drawn near zero would leave it no floor.
        signs = 2 * torch.randint(0, 2, (2, *mean.shape), generator=self.generator(x.device, 1), device=x.device) - 1
        scale = (var + held.get("eps", 1e-5)).rsqrt()
        by, shift = ((mean.square() + var) * scale.square() / 2, mean.abs() * scale)
        by, shift = (sign * (rounds * size).clamp(max=MOST) for sign, size in zip(signs, (by, shift), strict=True))
        far = (x - mean).mul_(by * scale).add_(shift).nan_to_num_(0.0, 0.0, 0.0)
        far = far.flatten(1, 2) if grouped else far
        if weight is not None:
            far *= weight.reshape(-1, *(1,) * (far.ndim - 2)) if grouped else weight
        return out + far

    def swap(self, module: torch.nn.Module) -> None:
        before, tables, undo = dict(module._parameters), [*self.tables(module)], self.aside[-1][1]
        undo.callback(module._parameters.update, before)
        for holder, name, own, moved in tables:
            holder[name] = moved
            undo.callback(_put_back, holder, name, own, moved, _version(moved))
        for name, parameter in before.items():
            there = parameter is not None and not parameter.is_meta  # or its own hook brings it, and takes it away
            if parameter is not None and there and _is(parameter, *HALF, *WIDE):
                moved = self.ulp(self.widened(parameter.data))
                module._parameters[name] = torch.nn.Parameter(moved, requires_grad=False)

    def tables(self, module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]]:
        """What a module holds beside its parameters: where, its name, itself, and what stands there instead.

        Tables that no checkpoint gives are made by each implementation, as rotary ones in `__init__`: they move, but
        for whole numbers, which are exact.
        """
        given = module._buffers.keys() - module._non_persistent_buffers_set
        holders: tuple[tuple[dict[str, Any], set[str]], ...] = (module._buffers, given), (vars(module), set())
        held = [(holder, n, x, n in exact) for holder, exact in holders for n, x in holder.items() if _is_table(x)]
        places = [_storage(x) for _, _, x, _ in held]
        for (holder, name, x, exact), place in zip(held, places, strict=True):
            if place in self.given or places.count(place) > 1:  # the model's own input; views of one another
                continue
            with torch.inference_mode(False), torch.no_grad():  # whose tensors know when they are written to
                real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
                wide = self.widened(real)
                moved = wide if exact or _is_whole(real) else self.ulp(wide)
                moved = x if moved is real else torch.view_as_complex(moved) if x.is_complex() else moved
            if moved is not x:
                yield holder, name, x, moved

    def enter(self, own: bool) -> None:
        """The begin of a module's call, within which elementary functions move."""
        if self.wide and not self.owns:
            self.around.enter_context(widest())
            device = device_of(self.model).type  # meta: its weights are elsewhere between two calls
            there = torch.accelerator.current_accelerator() if device == "meta" else None
            device = "cpu" if device == "meta" else device
            self.around.enter_context(torch.autocast(there.type if there else device, enabled=False))
        if not self.owns:
            self.around.enter_context(Intercept(self.elementary))
        self.owns.append(own)
        self.aside[-1][1].callback(self.leave)

    def leave(self) -> None:
        """The end of a call that `enter` began."""
        self.owns.pop()
        if not self.owns:
            self.given = {}
            self.around.close()

    def elementary(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Moves the results of norms, and of elementary functions, which no standard rounds: in a module of its own
        all, else those of vectors."""
        out, own = func(*args, **kwargs), self.owns[-1]
        name = getattr(func, "__name__", "")
        if name in _NORMS:
            with torch._C.DisableTorchFunction():
                out = self.normed(_NORMS[name], out, args, kwargs)
        if not isinstance(out, torch.Tensor) or not (own or out.ndim == 1):
            return out
        elementary = name in _ELEMENTARY or (own and _adds_up(name, args))
        if not (own or elementary):
            return out
        if out.dtype == torch.float64:
            return out if func in _GRIDS else self.narrowed(out)
        return self.ulp(out) if elementary else out

    def restore(self, module: torch.nn.Module) -> None:
        if self.aside and self.aside[-1][0] is module:
            self.aside.pop()[1].close()

    def restore_all(self) -> None:
        with torch._C.DisableTorchFunction():
            while self.aside:
                self.restore(self.aside[-1][0])
        self.around.close()


_ELEMENTARY = frozenset(
    {"sin", "cos", "exp", "pow", "__pow__", "__rpow__", "log", "tanh", "sigmoid", "erf", "gelu", "silu", "rsqrt"}
)
_NORMS = {"layer_norm": "normalized_shape", "group_norm": "num_groups"}
"""Norms that subtract a mean, and torch's argument that says what is normed."""


def _adds_up(name: str, args: Sequence[Any]) -> bool:
    """Whether a function adds up products, in whichever order: a phase of Mochi's rotary table is the sum of three."""
    if name == "einsum" and isinstance(args[0], str):
        given, _, kept = args[0].partition("->")
        return bool(set(re.findall(r"\w", given)) - set(kept))
    return name in ("matmul", "__matmul__", "mm", "bmm") and args[0].shape[-1] > 1


_GRIDS = (torch.arange, torch.linspace)
"""What float64 constants begin with. A power multiplies their ulp: of LTX-2's frequencies, up to 10^4, by ten."""


def reach(
    name: str, out: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], bounds: Bounds
) -> torch.Tensor | None:
    """How far from its exact value a result may be, of its shape; None for what every chip computes alike.

    Args:
        name: of the torch function. out: what it gave. args, kwargs: what it was given. bounds: of the chip.
    """
    if name not in _MADE_OF or out.dtype not in (torch.float32, torch.float64):
        return None
    if name in _BY_A_NUMBER and len(args) > 1 and isinstance(args[1], int | float):
        return None  # which XLA multiplies by: that is rounded as anywhere
    with torch._C.DisableTorchFunction():
        made_of, given = _MADE_OF[name], args[0] if args else kwargs.get("input", out)
        if name == "silu":  # x times the logistic function
            return given.abs() * bounds["logistic"].absolute
        if name == "gelu":  # x / 2 times (1 + tanh), or (1 + erf), which JAX computes as erfc
            half = given.abs() * 0.5
            if kwargs.get("approximate") == "tanh":
                return half * (bounds["tanh"].absolute + bounds["tanh"].relative * EPS)
            return half * bounds["erf"].relative * EPS + out.abs() * bounds["erfc"].relative * EPS
        relative = sum(bounds[part].relative for part in made_of) * EPS
        return out.abs() * relative + sum(bounds[part].absolute for part in made_of)


_BY_A_NUMBER = frozenset({"div", "true_divide", "divide", "pow", "__pow__", "float_power"})
"""Quotients and powers, whose second argument may be a number."""

_MADE_OF: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "erf", "erfc", "tanh")},
    **{name: (name,) for name in ("cos", "sin", "tan", "sinh", "cosh", "acos", "asin", "atan", "atan2")},
    **dict.fromkeys(("div", "true_divide", "divide", "reciprocal", "__rdiv__"), ("div",)),
    **dict.fromkeys(("pow", "__pow__", "float_power", "__rpow__"), ("pow",)),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"), ("rsqrt",)),
    "normalize": ("sqrt", "div"),
    **dict.fromkeys(("softmax", "_softmax", "scaled_dot_product_attention", "flex_attention"), ("exp", "div")),
    "log_softmax": ("log", "exp"),
    "sigmoid": ("logistic",),
    "silu": ("logistic",),
    "gelu": ("tanh", "erf", "erfc"),
    "softplus": ("log1p", "exp"),
    "elu": ("expm1",),
}
"""Torch function -> XLA's functions that it is made of, each of which errs relatively to the whole."""
