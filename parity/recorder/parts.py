"""What of a script is recorded: its transformers, scheduler and VAE, by which of its processes; and what a golden says
of where it came from.

Of several processes (torchrun, jax.distributed) the first one records, or each its share. Hooks see what a process
holds. Where the model is whole in each process, the first one's values are everybody's. Where its weights are split
over them (DTensor, as by `parallelize_module` or FSDP), each records what it holds, blocks of tensors that say which
block they are, and reading the golden adds them up. What parity would run beside the script in one process alone
(floors, an early end) would leave the others in a collective that never ends, and is refused before anything runs.

A program of JAX's over the devices of several processes runs in each of them, the one with the reductions too. So each
observes, what is spread over them is gathered, and the first one writes what is whole.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.golden.fingerprint import narrow, weight_prints
from parity.hooks.reduce.on_torch import is_split
from parity.hooks.torchtools import eagerly, module_tree, named_tensors, plain, uncompiled
from parity.recorder.torch_calls import Kind
from parity.records import LOOP, PORT, Provenance, Record
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
        given: names of those that the script gave in place of the pipeline's.
    """

    pipe: Any
    vae: Any
    scheduler: Any
    models: Mapping[str, Any]
    entries: Mapping[str, Any]
    given: frozenset[str] = frozenset()

    @property
    def now(self) -> Parts:
        """With the scheduler and the VAE that the pipeline has now: a script may have replaced them."""
        own = {name: getattr(self.pipe, name, None) for name in ("scheduler", "vae") if name not in self.given}
        return replace(self, **{name: plain(x) for name, x in own.items() if x is not None})

    @staticmethod
    def found(pipe: Any, *, transformer: Any = None, vae: Any = None, scheduler: Any = None) -> Parts:
        """The parts that a script gave, or else its pipeline has.

        Raises:
            UsageError: nothing that can be observed.
        """
        entries = {name: _inside(model) for name, model in _transformers(pipe, transformer).items()}
        models = {name: plain(model) for name, model in entries.items()}
        given = [name for name, x in (("scheduler", scheduler), ("vae", vae)) if x is not None]
        scheduler, vae = scheduler or getattr(pipe, "scheduler", None), plain(vae or getattr(pipe, "vae", None))
        if not models and not hasattr(vae, "decode"):
            known = f"give a diffusers pipeline that has a {', a '.join((*TRANSFORMERS, *OTHERS))} or a VAE"
            raise UsageError(f"parity.record: {known}, transformer= of your own loop, or a vae= to decode")
        return Parts(pipe=pipe, vae=vae, scheduler=scheduler, models=models, entries=entries, given=frozenset(given))

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
            items = dict(config) if isinstance(config, Mapping) else {}
            if hasattr(type(part), "register_to_config"):  # diffusers keeps what another class was made with
                made = [vars(kind)["__init__"] for kind in type(part).__mro__ if "__init__" in vars(kind)]
                read = {name for own in made for name in inspect.signature(own).parameters}
                items = {name: value for name, value in items.items() if name in read}
            if component == "scheduler" and items:  # two classes may have one config
                items["class"] = type(part).__name__
            for name, value in items.items():
                if not str(name).startswith("_") and _plain(value):
                    found[f"{component}.{name}"] = str(value)
        return found


def say(text: str) -> None:
    """A line on stderr: stdout is the script's."""
    print(f"parity: {text}", file=sys.stderr, flush=True)


def _weight(kind: Kind, x: torch.Tensor) -> np.ndarray | None:
    """A parameter's values; None of a tensor that only its model can read, as a quantiser's own are."""
    try:
        return narrow(kind.host(x))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def provenance_of(
    parts: Parts, kind: Kind, process: Process, first: Sequence[Record] = (), *, weighed: bool = True
) -> Provenance:
    """What the golden says of itself; asked for when its first step is written. It is a reference once it has floors.

    Args:
        kind: where the tensors lie. first: the records of that step: weights may be stored in another dtype than is
            computed in, as under autocast. process: this one; weights that are split or spread over several are not
            fingerprinted, as it holds a share of them. weighed: whether weights are at all: of billions it takes longer
            than to record a step of them.
    """
    pipe, configs = parts.pipe, parts.configs()
    models = {name: uncompiled(model) for name, model in parts.observed.items()}
    recorded = type(pipe if pipe is not None else next(iter(models.values()))).__name__
    models = {name: model for name, model in models.items() if isinstance(model, torch.nn.Module)}
    weights: dict[str, str] = {}
    modules: dict[str, str] = {}
    for i, (prefix, model) in enumerate(models.items()):
        before = f"{prefix}." if i else ""
        with eagerly(model):
            # What is offloaded is nowhere now; a fingerprint of some weights alone would say that others are missing.
            # Torchax's tensors say that they are meta too.
            there = not any(x.is_meta and not hasattr(x, "jax") for _, x in named_tensors(model))
            if weighed and there and not (process.split or process.together):
                if torch.cuda.is_initialized():  # they are read by threads, whose stream is not this one
                    torch.cuda.current_stream().synchronize()
                each = {before + n: functools.partial(_weight, kind, x) for n, x in named_tensors(model)}
                weights |= weight_prints(each.items())
                if unread := [name for name in each if name not in weights]:
                    say(f"{len(unread)} parameters cannot be read and are not compared, first {unread[0]}")
            top = prefix if i else ""
            modules |= {before + name: before + above if above else top for name, above in module_tree(model).items()}
            modules |= {prefix: ""} if i else {}
    tensors = list(next(iter(models.values())).parameters()) if models else []
    dtypes = [str(x.dtype).removeprefix("torch.") for x in tensors]
    made = [r.dtype for r in first if r.key.module not in ("", LOOP) and not r.key.is_input]
    working = [dtype for dtype in made if dtype in BITS] or [dtype for dtype in dtypes if dtype in BITS]
    return Provenance(
        side="candidate",
        backend=PORT,
        model=recorded,
        settings={"dtype": max(set(working), key=working.count), **configs} if working else configs,
        seed=0,
        steps=kind.numbers(getattr(parts.scheduler, "timesteps", None)).size,
        weights=weights,
        versions=versions(),
        devices=kind.devices(tensors[0]) if tensors else (),
        modules=modules,
        shard=(process.rank, process.count) if process.split else (0, 1),
    )


def _transformers(pipe: Any, transformer: Any) -> dict[str, Any]:
    """The modules to observe by their names in a pipeline; none where a script decodes alone.

    Raises:
        UsageError: one cannot be observed.
    """
    several = dict(transformer) if isinstance(transformer, Mapping) else {"transformer": transformer}
    found = {name: model for name, model in several.items() if model is not None}
    if pipe is not None and not found:
        named = {name: getattr(pipe, name, None) for name in (*TRANSFORMERS, *OTHERS)}
        others = {name: named[name] for name in OTHERS if isinstance(named[name], torch.nn.Module)}
        held = {name: named[name] for name in TRANSFORMERS if named[name] is not None} or others
        first = {id(model): name for name, model in reversed(held.items())}  # one may stand in two places
        found = {name: model for name, model in held.items() if first[id(model)] == name}
    for name, model in found.items():
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"parity.record: {name} is a {type(model).__name__}; it must be a torch.nn.Module. A model in JAX is a "
                "port: parity run --port FILE.py:FUNCTION (parity init writes one)"
            )
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


def place() -> tuple[int, int]:
    """(rank, number of processes) of this one; torchrun's own before the script has joined them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _of_jax() -> tuple[int, int]:
    """The same of JAX's processes; a script that has not joined them yet could not any more, were JAX asked."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if jax is None or not getattr(distributed, "is_initialized", bool)():
        return 0, 1
    return jax.process_index(), jax.process_count()


@dataclass(frozen=True, slots=True)
class Process:
    """This process among those of the script.

    Attributes:
        rank, count: of it. split: whether the model is split over them, so that each records its share.
        together: whether they are JAX's, whose programs run in all of them: each observes, and the first one writes.
    """

    rank: int = 0
    count: int = 1
    split: bool = False
    together: bool = False

    @property
    def writes(self) -> bool:
        """Whether it writes a golden."""
        return not self.rank or self.split


def one_of(models: Mapping[str, Any], stop_after: int | None) -> Process:
    """This process.

    Args:
        models: by name. stop_after: of `parity.record`.

    Raises:
        UsageError: several processes, and an early end.
    """
    rank, count = place()
    if count == 1:
        index, several = _of_jax()
        return Process(index, several, together=several > 1)
    if stop_after is not None:
        raise UsageError(f"parity.record: one of {count} processes cannot leave the loop early: leave stop_after out")
    modules = (model for model in models.values() if isinstance(model, torch.nn.Module))
    return Process(rank, count, any(is_split(x) for model in modules for x in model.parameters()))
