"""Known faults of a script's model: what it would give with each, kept for `parity explain`.

In a run of its own the first step's calls of the transformer are repeated on their inputs with one fault of attention
at a time (`parity.hooks.faults`), and the decoder's with one of a decoder's. They are repeated on copies with
the same weights: what a model remembers of its calls (a cache, a counter) is not touched. Nothing of it goes into the
golden or its floors. What a fault does not change it is not kept of.

Cost: a forward for each fault and call of the first step, some ten to twenty; two decodes for each fault of a decoder.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from parity.golden.faults import NOT_DIVIDED, Faults, write_faults
from parity.hooks.attach import attached
from parity.hooks.faults import Fault, Faulty, Lengths, Video, faulty
from parity.hooks.reduce.on_torch import torch_records
from parity.hooks.tap import Tap
from parity.hooks.torchtools import prediction_of
from parity.recorder.rerun import Again
from parity.records import Record

STEP = 0
"""The step whose calls are repeated."""


def _scale(vae: Any) -> float:
    """What a decoder's input was divided by; 0 where its config does not say that, or says more."""
    config = getattr(vae, "config", None)
    found = dict(config) if isinstance(config, Mapping) else {}
    scale = found.get("scaling_factor")
    more = any(found.get(name) for name in ("shift_factor", "latents_mean", "latents_std"))
    return 0.0 if more or not isinstance(scale, (int, float)) or scale == 1.0 else float(scale)


def _latents(call: Again) -> tuple[Any, Callable[[torch.nn.Module, Any], Any]]:
    """The latents of a decode, and the same call of a VAE on others."""
    name, latents = latents_of(call.args, call.kwargs)

    def given(vae: torch.nn.Module, z: Any) -> Any:
        args = call.args if name else (z, *call.args[1:])
        kwargs = {**call.kwargs, name: z} if name else call.kwargs
        return replace(call, function=functools.partial(unobserved(vae), vae), args=args, kwargs=kwargs)()

    return latents, given


def unobserved(vae: Any) -> Callable[..., Any]:
    """The `decode` of its class, which nobody watches."""
    return type(vae).decode


def latents_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Any]:
    """What a decoder is given, and its name: it comes first (no name), or is called z or latents, or is the first
    tensor or array with a name."""
    if args:
        return "", args[0]
    name = next(n for n in ("z", "latents", *kwargs) if hasattr(kwargs.get(n), "shape"))
    return name, kwargs[name]


def copied(model: Any) -> torch.nn.Module:
    """A copy with the very same parameters, and with what it remembers of its calls as its own.

    The caches of diffusers hold that in functions, which no copy has of its own: the copy runs without them.
    """
    made: torch.nn.Module = copy.deepcopy(model, {id(x): x for x in model.parameters()})
    for module in made.modules():
        hooks = getattr(vars(module).get("_diffusers_hook"), "hooks", {})
        if any(hook._is_stateful for hook in hooks.values()):
            vars(module).pop("forward", None)
    return made


@dataclass
class Wrong:
    """What was recorded under known faults.

    Attributes:
        tell: says a line to the user.
    """

    tell: Callable[[str], None]
    _steps: dict[int, dict[Faults, list[Record]]] = field(default_factory=dict)
    _lengths: Lengths = field(default_factory=Lengths)
    _faults: tuple[tuple[Fault, ...], ...] | None = None

    def call(self, call: Again, tap: Callable[[], Tap]) -> Iterator[tuple[Faults, torch.Tensor]]:
        """Repeat a call of the first step with each fault: the faults, and the prediction.

        Args:
            call: of the transformer, or of a copy from before the call.
        """
        if self._faults is None:
            with torch.no_grad(), self._lengths.looking():
                replace(call, function=copied(call.function))()
            self._faults = tuple(self._lengths.faults())
            if not self._lengths.keys:
                self.tell("causes: this transformer calls no attention function of torch's: no fault of it is kept")
        for faults in self._faults if self._lengths.keys else ():
            changed: list[str] = []
            names, seen, model = frozenset(fault.name for fault in faults), tap(), copied(call.function)
            with torch.no_grad(), Faulty(faults, changed.append), attached(model, seen):
                made = prediction_of(replace(call, function=model)())
            if changed:
                self.keep(STEP, names, torch_records(seen.settled(), "transformer", STEP))
                yield names, made

    def decode(self, vae: torch.nn.Module, call: Again) -> Iterator[tuple[Faults, Any, Any]]:
        """Decode with each fault of a decoder, and with latents that were not divided beside it: the faults, the
        latents, and what they gave.

        Args:
            call: of `decode`.
        """
        scale, (z, given) = _scale(vae), _latents(call)
        for name in Video().faults():
            changed: list[str] = []
            again = copied(vae)
            with torch.no_grad(), faulty(again, z, name, changed.append):
                out = given(again, z)
                whole = given(again, z * scale) if changed and scale else None
            if changed:
                yield frozenset({name}), z, out
            if whole is not None:
                yield frozenset({name, NOT_DIVIDED}), z, whole
        if scale:
            with torch.no_grad():
                yield frozenset({NOT_DIVIDED}), z, given(copied(vae), z * scale)

    def keep(self, step: int, faults: Faults, records: Iterable[Record]) -> None:
        """Take what faults gave: of modules their outputs alone, of frames what is shown of them too."""
        apart = (r for r in records if not r.key.is_apart or (step != STEP and r.key.is_read))
        outputs = (r for r in apart if not r.key.is_input and r.sketch is not None)
        self._steps.setdefault(step, {}).setdefault(faults, []).extend(outputs)

    def finish(self, where: str) -> None:
        """Write it beside the golden, which is there."""
        if self._steps:
            write_faults(where, self._steps)
