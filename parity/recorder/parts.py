"""What of a script is recorded: its transformers, scheduler and VAE, and what a golden says of where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parity.errors import UsageError
from parity.golden.fingerprint import narrow, weight_prints
from parity.hooks.compiled import eagerly, plain
from parity.hooks.modules import module_tree, named_tensors
from parity.recorder.processes import Process
from parity.recorder.torch_calls import Kind
from parity.records import PORT, Provenance
from parity.settings import BITS
from parity.versions import versions

TRANSFORMERS, OTHERS = ("transformer", "transformer_2", "unet"), ("prior",)
"""What denoises in a pipeline, by its names; and where none of these is there."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a script.

    Attributes:
        pipe: a diffusers pipeline, or None. vae, scheduler: its own or the script's; None for none.
        models: the transformers by their names in a pipeline; empty where a script decodes alone.
        entries: what the script calls of each: itself, or what `torch.compile` made of it.
    """

    pipe: Any
    vae: Any
    scheduler: Any
    models: Mapping[str, Any]
    entries: Mapping[str, Any]

    @staticmethod
    def found(pipe: Any, *, transformer: Any = None, vae: Any = None, scheduler: Any = None) -> Parts:
        """The parts that a script gave, or else its pipeline has.

        Raises:
            UsageError: nothing that can be observed.
        """
        entries = {name: _inside(model) for name, model in _transformers(pipe, transformer).items()}
        models = {name: plain(model) for name, model in entries.items()}
        scheduler, vae = scheduler or getattr(pipe, "scheduler", None), plain(vae or getattr(pipe, "vae", None))
        if not models and not hasattr(vae, "decode"):
            raise UsageError(
                "parity.record: give a diffusers pipeline, transformer= of your own loop, or a vae= to decode"
            )
        return Parts(pipe=pipe, vae=vae, scheduler=scheduler, models=models, entries=entries)

    @property
    def observed(self) -> Mapping[str, Any]:
        """What the recording is of."""
        return self.models or {"vae": self.vae}

    def processors(self) -> list[Any]:
        """What turns a pipeline's video into pictures."""
        found = (getattr(self.pipe, name, None) for name in ("video_processor", "image_processor"))
        return [processor for processor in found if processor is not None]

    def guided(self) -> bool | None:
        """Whether a pipeline's batches hold both guidance branches; None if unknown."""
        try:
            return bool(self.pipe.do_classifier_free_guidance)
        except Exception:  # it is known once the pipeline is called, or never
            return None

    def configs(self) -> dict[str, str]:
        """The components' configs, flat, as text: what two recordings differ in is listed, judged by what it does."""
        components = dict(getattr(self.pipe, "components", {}) or {})
        own = {"vae": self.vae, "scheduler": self.scheduler, **self.models}
        components |= {name: part for name, part in own.items() if part is not None}
        found: dict[str, str] = {}
        for component, part in components.items():
            config = getattr(part, "config", None)
            items = config.items() if isinstance(config, Mapping) else ()
            for name, value in items:
                if not str(name).startswith("_") and _plain(value):
                    found[f"{component}.{name}"] = str(value)
        return found


def provenance_of(parts: Parts, kind: Kind, process: Process) -> Provenance:
    """What the golden says of itself; asked for when its first step is written. It is a reference once it has floors.

    Args:
        kind: where the tensors lie. process: this one; weights that are split or spread over several are not
            fingerprinted, as it holds a share of them.
    """
    pipe, configs = parts.pipe, parts.configs()
    models = {
        name: getattr(model, "__dict__", {}).get("_modules", {}).get("_model", model)
        for name, model in parts.observed.items()
    }
    recorded = type(pipe if pipe is not None else next(iter(models.values()))).__name__
    models = {name: model for name, model in models.items() if isinstance(model, torch.nn.Module)}
    timesteps = getattr(parts.scheduler, "timesteps", None)
    weights: dict[str, str] = {}
    modules: dict[str, str] = {}
    for i, (prefix, model) in enumerate(models.items()):
        before = f"{prefix}." if i else ""
        with eagerly(model):
            # What is offloaded is nowhere now; a fingerprint of some weights alone would say that others are missing.
            there = not any(x.is_meta for _, x in named_tensors(model))
            if there and not (process.split or process.together):
                weights |= weight_prints((before + n, narrow(kind.host(x))) for n, x in named_tensors(model))
            top = prefix if i else ""
            modules |= {before + name: before + above if above else top for name, above in module_tree(model).items()}
            modules |= {prefix: ""} if i else {}
    tensors = list(next(iter(models.values())).parameters()) if models else []
    dtypes = [str(x.dtype).removeprefix("torch.") for x in tensors]
    working = [dtype for dtype in dtypes if dtype in BITS]  # weights in 8 bits are stored so, and computed wider
    return Provenance(
        side="candidate",
        backend=PORT,
        model=recorded,
        settings={"dtype": max(set(working), key=working.count), **configs} if working else configs,
        seed=0,
        steps=int(timesteps.numel()) if isinstance(timesteps, torch.Tensor) else 0,
        weights=weights,
        versions=versions(),
        devices=tuple(x.device.type for x in tensors[:1]),
        modules=modules,
        shard=process.shard,
    )


def _transformers(pipe: Any, transformer: Any) -> dict[str, Any]:
    """The modules to observe by their names in a pipeline; none where a script decodes alone.

    Raises:
        UsageError: one cannot be observed.
    """
    found = {"transformer": transformer} if transformer is not None else {}
    if pipe is not None and not found:
        named = {name: getattr(pipe, name, None) for name in (*TRANSFORMERS, *OTHERS)}
        others = {name: named[name] for name in OTHERS if isinstance(named[name], torch.nn.Module)}
        held = {name: named[name] for name in TRANSFORMERS if named[name] is not None} or others
        first = {id(model): name for name, model in reversed(held.items())}  # one may stand in two places
        found = {name: model for name, model in held.items() if first[id(model)] == name}
    for name, model in found.items():
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"parity.record: {name} is a {type(model).__name__}; it must be a torch.nn.Module")
    return found


MOST = 64
"""Length up to which a list in a config is held; a table of weights is none."""


def _inside(model: Any) -> Any:
    """The module that is spread over processes or devices by a wrapper, which calls it."""
    return model.module if type(model).__name__ in ("DataParallel", "DistributedDataParallel") else model


def _plain(value: object) -> bool:
    """Whether a config's value is a number, a word, or a short list of these."""
    if isinstance(value, (list, tuple)):
        return len(value) <= MOST and all(isinstance(x, (bool, int, float, str)) for x in value)
    return isinstance(value, (bool, int, float, str))
