"""Monte Carlo rounding: what another correct implementation's rounding could do, sampled on the reference.

Every module's inputs, outputs and parameters, and so the run's inputs, move by one unit in the last place, up or
down at random. In modules without parameters or children (rotary and time embeddings, activations) the results of
elementary functions move too: IEEE 754 rounds sums and products alike everywhere, but not sin, exp or pow, and rotary
tables come from constants, where nothing at the module's boundary could show that another library's differ.
(Measured on HunyuanVideo-1.5's rotary table of 111,600 tokens: XLA is 4.9e-7 from torch, where boundaries alone
sample 7e-8.) In any other module those of vectors move: frequencies that its own forward makes, whose ulp a timestep of
1000 multiplies. (Z-Image's time embedding is no module: torch and XLA are 2.1e-6 apart, and 3.1e-6 from the exact one.)

float64 that a model computes by itself (frequencies of a time embedding) is narrowed to float32, which is all that JAX
has unless told otherwise.

The results of products (linear layers, convolutions) move besides by what adding their K terms one after the other
rounds, which grows with K where an ulp does not: see `SUM`.

Where the other implementation runs on a TPU (the setting `tpu`), elementary functions move in every module, within what
its own may be off (`parity.hooks.elementary`).

The idea is Monte Carlo arithmetic (Parker 1997) at module boundaries. Cost: an elementwise pass over each value and,
one module at a time, a copy of its parameters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from parity.hooks.attach import callable_modules
from parity.hooks.elementary import reach
from parity.settings.elementary import CHIPS, NO_CHIP, Bounds

SUM = 0.45 * 2.0**-24 / math.sqrt(2.0)
"""What adding K terms in float32 rounds, in the root mean square, over sqrt(K) and the root mean square of the sums.

Partial sums of terms without a trend grow as sqrt(k / K), and each is rounded by 0.42 half ulps (uniform within one,
the mantissa's logarithm uniform): 0.42 * 2^-24 * sqrt(K / 2), the random walk of Higham & Mary (A New Approach to
Probabilistic Rounding Error Analysis, 2019). Measured, torch's MKL against one term after the other: 0.45 for
K = 1024 and 2048 (6.1e-7, 8.5e-7); XLA on the same CPU is as far (6.0e-7, 8.4e-7), where one ulp of inputs, weights and
outputs samples 2.6e-7 whatever K is (`tests/hooks/test_perturb.py`).
"""

_PRODUCTS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


@contextlib.contextmanager
def perturbed(
    model: torch.nn.Module, seed: int, device: torch.device | None = None, chip: str = NO_CHIP
) -> Iterator[None]:
    """Within it, calls of `model` round as drawn from `seed`. Parameters and hooks are as before on leaving.

    Args:
        device: where its tensors are; needed for a module without parameters.
        chip: the TPU whose elementary functions another implementation may have, by the setting `tpu`.
    """
    run = _Run(device or next(model.parameters()).device, seed, CHIPS[chip])
    handles = []
    try:
        for module in callable_modules(model).values():
            leaf = next(module.children(), None) is None
            own = leaf and next(module.parameters(recurse=False), None) is None
            handles.append(module.register_forward_pre_hook(_before(run, own), with_kwargs=True))
            handles.append(module.register_forward_hook(_after(run, own), with_kwargs=True, always_call=True))
        # Around whatever looks at functions within: that is to see what the chip gives.
        with _OfTheChip(run) if run.bounds else contextlib.nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()
        run.restore_all()


def _is_mask(x: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones alone; of most others the first element tells."""
    with torch._C.DisableTorchFunction():
        first = float(x[(0,) * x.ndim]) if x.numel() else 0.0
        return first in (0.0, 1.0) and bool(((x == 0) | (x == 1)).all())


class _Run:
    """The draw in use and the parameters set aside while their module is called."""

    def __init__(self, device: torch.device, seed: int, bounds: Bounds) -> None:
        self.bounds = bounds
        self.generator = torch.Generator(device).manual_seed(seed)
        self.aside: list[tuple[torch.nn.Module, dict[str, torch.nn.Parameter | None]]] = []
        self.modes: list[_ElementaryFunctions] = []
        self.calls = 0

    def move(self, x: Any) -> Any:
        """Floating tensors inside a nest of tuples, lists and dicts moved by one ulp; everything else as it is.

        Vectors stay too: a timestep per batch element is handed on exactly by every implementation (preflight
        compares it), and one ulp of 1000 is a phase of 6e-5 in its sinusoids, ten times what libraries differ by.
        So do masks of zeros and ones: they are no results, and what counts them by a cast to integers (the text of
        HunyuanVideo's Framepack) would count none of those that lie an ulp below one.
        """
        if isinstance(x, torch.Tensor):
            if not x.is_floating_point() or x.ndim < 2:
                return x
            moved = self.ulp(x)  # drawn for a mask too: what is drawn for all others stays the same
            return x if _is_mask(x) else moved
        if type(x) in (tuple, list):
            return type(x)(self.move(item) for item in x)
        if type(x) is dict:
            return {k: self.move(v) for k, v in x.items()}
        return x

    def given(self, x: Any) -> Any:
        """Arguments moved; a list stays the very one: what a module writes into it (Wan's VAE keeps its frames and its
        place in one) would be lost in a copy."""
        if type(x) is tuple:
            return tuple(self.given(item) for item in x)
        if type(x) is dict:
            return {k: self.given(v) for k, v in x.items()}
        return x if type(x) is list else self.move(x)

    def ulp(self, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            up = torch.randint(0, 2, x.shape, generator=self.generator, device=x.device, dtype=torch.int8)
            # Towards 4 |x| or -4 |x|, in few passes: this is half of what a perturbed run costs. Zeros stay, as nothing
            # is between them: a padded row or an absent input is exact in every implementation.
            towards = up.to(x.dtype).sub_(0.5).mul_(x.abs().mul_(8))
            return torch.nextafter(x, towards, out=towards)

    def err(self, name: str, out: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function's result moved within what the chip's may be off, evenly; of several the first (attention's)."""
        if isinstance(out, tuple) and out:
            return (self.err(name, out[0], args, kwargs), *out[1:])
        far = reach(name, out, args, kwargs, self.bounds) if isinstance(out, torch.Tensor) else None
        if far is None:
            return out
        with torch._C.DisableTorchFunction():
            draw = torch.rand(out.shape, generator=self.generator, device=out.device) * 2 - 1
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
        with torch._C.DisableTorchFunction():
            channels = -1 if isinstance(module, torch.nn.Linear) else -1 - len(module.kernel_size)
            size = out.float().square().mean(dim=channels, keepdim=True).sqrt()
            draw = torch.randn(out.shape, generator=self.generator, device=out.device)
            return (out + SUM * math.sqrt(terms) * size * draw).to(out.dtype)

    def swap(self, module: torch.nn.Module) -> None:
        before = dict(module._parameters)
        self.aside.append((module, before))
        for name, parameter in before.items():
            if parameter is not None and parameter.is_floating_point():
                module._parameters[name] = torch.nn.Parameter(self.ulp(parameter.data), requires_grad=False)

    def enter(self, own: bool) -> None:
        """Have elementary functions move within the call of a module: all in one of its own, else those of vectors."""
        self.calls += 1
        if own or self.calls == 1:
            self.modes.append(_ElementaryFunctions(self, of_vectors=not own))
            self.modes[-1].__enter__()

    def leave(self, own: bool) -> None:
        """The end of a call that `enter` began."""
        if self.calls == 0:  # another hook failed before this call began
            return
        self.calls -= 1
        if self.modes and (own or self.calls == 0):
            self.modes.pop().__exit__(None, None, None)

    def restore(self, module: torch.nn.Module) -> None:
        if self.aside and self.aside[-1][0] is module:
            module._parameters.update(self.aside.pop()[1])

    def restore_all(self) -> None:
        while self.aside:
            module, before = self.aside.pop()
            module._parameters.update(before)
        while self.modes:
            self.modes.pop().__exit__(None, None, None)


def _before(run: _Run, own: bool) -> Callable[..., Any]:
    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        moved = run.given(args), run.given(kwargs)
        run.swap(module)
        run.enter(own)
        return moved

    return hook


def _after(run: _Run, own: bool) -> Callable[..., Any]:
    def hook(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        run.leave(own)
        run.restore(module)
        return run.move(run.summed(module, output))

    return hook


_ELEMENTARY = frozenset(
    {"sin", "cos", "exp", "pow", "__pow__", "__rpow__", "log", "tanh", "sigmoid", "erf", "gelu", "silu", "rsqrt"}
)


class _ElementaryFunctions(TorchFunctionMode):
    """Moves the results of elementary functions, which no standard rounds.

    Args:
        of_vectors: whether those of vectors alone, and nothing within a mode that began inside this one.
    """

    def __init__(self, run: _Run, *, of_vectors: bool) -> None:
        super().__init__()
        self.run, self.of_vectors = run, of_vectors

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        elementary = getattr(func, "__name__", "") in _ELEMENTARY
        if not isinstance(out, torch.Tensor) or self.run.modes[-1] is not self:
            return out
        if self.of_vectors and not (elementary and out.ndim == 1):
            return out
        if out.dtype == torch.float64:
            return self.run.narrowed(out)
        return self.run.ulp(out) if elementary else out


class _OfTheChip(TorchFunctionMode):
    """Moves what a model's calls make of elementary functions within what the chip's may be off."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return self.run.err(getattr(func, "__name__", ""), out, args, kwargs or {}) if self.run.calls else out
