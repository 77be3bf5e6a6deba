"""Faults of the kinds that ports have, planted into a reference that nobody wrote a line for.

Problem. A comparison can only show what its model and inputs exercise: without padding a dropped mask changes nothing,
without guidance embeddings a lost guidance does not either. Which kinds those are depends on weights and inputs, and
is seen by trying.

How. Each kind changes one thing wherever the reference's calls have it: an argument of the top module, an argument of
the modules inside, torch's own attention or activation, a number that norms keep. All by hooks and a torch function
mode around single calls, so that nothing is left behind. What was changed is counted: a kind that changed nothing is
none of this model's. To add a kind, add it to `KINDS`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Named = Mapping[str, Any]
Arguments = Callable[[Named], Named]
"""What of a call of the top module's is changed, of all its arguments by name."""

Argument = Callable[[Any], Any]
"""An argument of a module inside in place of the one that was given; the same object where it is no such thing."""

_sdpa, _gelu = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.gelu


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault; what is None is left as it is.

    Attributes:
        name: for reports. meaning: what a port does that has it.
        top: changes arguments of the top module. rotary: changes rotary tables among arguments of the modules inside.
        function, options: one of torch's, and what of its arguments is changed. eps: of norms, in place of theirs.
    """

    name: str
    meaning: str
    top: Arguments | None = None
    rotary: Argument | None = None
    function: Callable[..., Any] | None = None
    options: Arguments | None = None
    eps: Callable[[float], float] | None = None


def _no_masks(named: Named) -> Named:
    masks = {n: x for n, x in named.items() if _is_mask(n, x) and not bool((x > 0).all())}
    return {n: torch.ones_like(x) for n, x in masks.items()}


def _is_mask(name: str, x: Any) -> bool:
    return "mask" in name and isinstance(x, torch.Tensor) and x.ndim == 2


def _flipped(named: Named) -> Named:
    """Text tokens in reverse, those that a mask of as many lets through."""
    found = {}
    for name, x in named.items():
        if name.startswith("encoder_hidden_states") and isinstance(x, torch.Tensor) and x.ndim == 3:
            masks = (m for n, m in named.items() if _is_mask(n, m) and m.shape[1] == x.shape[1])
            mask = next(masks, None)
            at = torch.arange(x.shape[1]) if mask is None else (mask[0] > 0).cpu().nonzero()[:, 0]
            order = torch.arange(x.shape[1])
            order[at] = at.flip(0)
            found[name] = x[:, order.to(x.device)]
    return found


def _times(name: str, factor: float) -> Arguments:
    def changed(named: Named) -> Named:
        x = named.get(name)
        return {name: x * factor} if isinstance(x, torch.Tensor) else {}

    return changed


def _of_pairs(pair: Callable[[Any, Any], tuple[Any, Any]], table: Argument) -> Argument:
    """Of a rotary table: (cos, sin) of one shape, complex numbers, or several of these."""

    def changed(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return table(x) if x.is_complex() else x
        if not isinstance(x, (tuple, list)):
            return x
        real = [isinstance(item, torch.Tensor) and item.is_floating_point() for item in x]
        if len(x) == 2 and all(real) and x[0].shape == x[1].shape:
            return tuple(pair(*x))
        items = tuple(changed(item) for item in x)
        return x if all(new is old for new, old in zip(items, x, strict=True)) else items

    return changed


def _unmasked(named: Named) -> Named:
    return {} if named.get("attn_mask") is None else {"attn_mask": None}


def _unscaled(named: Named) -> Named:
    return {"scale": 1.0}


def _other_gelu(named: Named) -> Named:
    return {"approximate": "none" if named.get("approximate", "none") == "tanh" else "tanh"}


KINDS: tuple[Kind, ...] = (
    Kind(name="text mask", meaning="the model is given a mask of ones", top=_no_masks),
    Kind(name="attention mask", meaning="attention drops its mask", function=_sdpa, options=_unmasked),
    Kind(name="attention scale", meaning="logits are not divided", function=_sdpa, options=_unscaled),
    Kind(name="text order", meaning="text tokens come in reverse", top=_flipped),
    Kind(
        name="rotary dropped",
        meaning="queries and keys are not turned",
        rotary=_of_pairs(lambda cos, sin: (torch.ones_like(cos), torch.zeros_like(sin)), torch.ones_like),
    ),
    Kind(
        name="rotary reversed",
        meaning="queries and keys are turned the other way",
        rotary=_of_pairs(lambda cos, sin: (cos, -sin), torch.conj_physical),
    ),
    Kind(name="timestep scale", meaning="timesteps are a thousandth", top=_times("timestep", 1e-3)),
    Kind(name="guidance", meaning="the guidance embedding is of zero", top=_times("guidance", 0.0)),
    Kind(name="pooled text", meaning="the pooled text is zero", top=_times("pooled_projections", 0.0)),
    Kind(name="activation", meaning="the other form of GELU", function=_gelu, options=_other_gelu),
    Kind(name="norm epsilon", meaning="1e-5 for 1e-6, or the other way", eps=lambda eps: 1e-5 if eps < 5e-6 else 1e-6),
)
"""The kinds, in the order in which they are told."""

_ROTARY = re.compile(r"rope|rotary|freqs")


@dataclass
class Planted:
    """What a kind changed.

    Attributes:
        count: how often. made: tables that it made, which a module hands on to those inside it: none is changed twice.
    """

    count: int = 0
    made: list[torch.Tensor] = field(default_factory=list)

    def knows(self, x: Any) -> bool:
        """Whether a table is one of these."""
        if isinstance(x, torch.Tensor):
            return any(x is own for own in self.made)
        return isinstance(x, (tuple, list)) and any(self.knows(item) for item in x)

    def keep(self, x: Any) -> None:
        """Take note of a table that was made."""
        if isinstance(x, torch.Tensor):
            self.made.append(x)
        for item in x if isinstance(x, tuple) else ():
            self.keep(item)


@contextlib.contextmanager
def planted(model: torch.nn.Module, kind: Kind) -> Iterator[Planted]:
    """Within it, calls of the model have a fault of this kind."""
    done = Planted()
    with contextlib.ExitStack() as stack:
        if kind.top is not None:
            stack.callback(model.register_forward_pre_hook(_top(kind.top, done), with_kwargs=True).remove)
        if kind.rotary is not None:
            for module in list(model.modules())[1:]:
                hook = _inside(kind.rotary, done)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if kind.function is not None and kind.options is not None:
            stack.enter_context(_Function(kind.function, kind.options, done))
        if kind.eps is not None:
            for module in model.modules():
                own = vars(module).get("eps")
                if isinstance(own, float):
                    stack.callback(setattr, module, "eps", own)
                    setattr(module, "eps", kind.eps(own))  # noqa: B010  # a Module's attributes are typed as modules
                    done.count += 1
        yield done


Hook = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _top(change: Arguments, done: Planted) -> Hook:
    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = _names(module, args)
        changed = change({**dict(zip(names, args, strict=False)), **kwargs})
        done.count += len(changed)
        given = tuple(changed.get(n, x) for n, x in zip(names, args, strict=False)) + args[len(names) :]
        return given, {n: changed.get(n, x) for n, x in kwargs.items()}

    return hook


def _inside(change: Argument, done: Planted) -> Hook:
    def one(name: str, x: Any) -> Any:
        new = x if not _ROTARY.search(name) or done.knows(x) else change(x)
        if new is not x:
            done.count += 1
            done.keep(new)
        return new

    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = _names(module, args)
        given = tuple(one(n, x) for n, x in zip(names, args, strict=False)) + args[len(names) :]
        return given, {n: one(n, x) for n, x in kwargs.items()}

    return hook


def _names(module: torch.nn.Module, args: tuple[Any, ...]) -> list[str]:
    """The names of the positional arguments, as far as the signature has some."""
    known = inspect.signature(module.forward).parameters.values()
    return [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(args)]


class _Function(TorchFunctionMode):
    """Within it one of torch's functions is given other options, by keyword."""

    def __init__(self, function: Callable[..., Any], options: Arguments, done: Planted) -> None:
        super().__init__()
        self.function, self.options, self.done = function, options, done

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Named | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is self.function:
            if func is _sdpa and len(args) > 3:  # the mask by position
                args, given["attn_mask"] = args[:3], args[3]
            changed = self.options(given)
            self.done.count += bool(changed)
            given |= changed
        return func(*args, **given)
