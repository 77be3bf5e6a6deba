"""`parity.record`: the context in which a script's own generation is recorded."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from parity.errors import ParityError, UsageError
from parity.golden import Provenance, fingerprint
from parity.golden.disk.read import read_manifest
from parity.golden.disk.store import open_store
from parity.golden.records import PORT
from parity.golden.versions import versions
from parity.hooks.modules import module_tree, named_tensors
from parity.port import Layout
from parity.recorder.branches import Branches
from parity.recorder.floors import KINDS, TRUTH, Carried, variants_of
from parity.recorder.loop import Loop
from parity.recorder.processes import one_of
from parity.recorder.steps import Steps
from parity.recorder.torch_calls import Calls, Eager, Kind

TRANSFORMERS = ("transformer", "transformer_2", "unet")


class _StoppedError(BaseException):
    """Leaves the script's loop once `stop_after` steps are recorded; not an Exception, so that nothing takes it."""


@dataclass
class Recording:
    """A recording that is under way; what `parity.record` yields.

    Attributes:
        where: of the golden. failed: what ended it before the script's end; empty for nothing.
    """

    where: str
    stop_after: int | None = None
    failed: str = ""
    stopped: bool = False
    kind: Kind = field(default_factory=Eager)
    steps: Steps = field(init=False)

    def wanted(self) -> bool:
        """Whether anything is still recorded."""
        return not self.failed and not self.stopped

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Parity's own work: what it raises ends the recording, never the script."""
        try:
            with torch.no_grad(), self.kind.scope():
                yield
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"recording to {self.where} ended in step {self.steps.number}: {self.failed}; the script goes on")
            if os.environ.get("PARITY_DEBUG") == "1":
                raise

    def ended(self) -> None:
        """A step is written: leave the loop where that was the last that is wanted."""
        if self.stop_after is not None and self.steps.number >= self.stop_after and self.wanted():
            self.stopped = True
            raise _StoppedError


@contextlib.contextmanager
def record(
    where: str | os.PathLike[str],
    pipe: Any = None,
    *,
    transformer: Any = None,
    vae: Any = None,
    scheduler: Any = None,
    like: str | os.PathLike[str] | None = None,
    sites: str = "blocks",
    values: Sequence[str] = (),
    floors: Sequence[str] | None = None,
    branches: Sequence[str] = (),
    layout: Layout = "channels_first",
    stop_after: int | None = None,
    overwrite: bool = False,
) -> Iterator[Recording]:
    """Record what a diffusers pipeline, a loop of one's own, or a script that decodes alone computes within the block.

    Args:
        where: folder or URL of the golden. pipe: a diffusers pipeline; its transformers, scheduler, VAE and processors
            are found by themselves.
        transformer, vae, scheduler: of one's own loop, or in place of the pipeline's. The VAE may be anything with a
            `decode` of tensors or arrays, and may come alone.
        like: the golden that this one is going to be compared with, which has the floors; named at the end.
        sites: `blocks`, `all`, `none`, or a glob over `module` or `module:port`. values: globs of sites kept whole.
        floors: `fp64`, `rounding`; empty for none. Default: both in torch; none with `like`, where tensors are JAX's,
            or in one of several processes.
        branches: names of the guidance branches in a batch, in order; default: as diffusers' pipelines have them.
        layout: of what the VAE is given and gives: `channels_last` is recorded with the channels in their usual place.
        stop_after: leave the block once so many steps are recorded. overwrite: replace a golden that is there.

    Raises:
        UsageError: nothing to record, a golden is there already, no module matches, or one of several processes is
            asked for what it cannot give (`parity.recorder.processes`). What the script raises.
    """
    models = _transformers(pipe, transformer)
    scheduler, vae = scheduler or getattr(pipe, "scheduler", None), vae or getattr(pipe, "vae", None)
    if not models and not hasattr(vae, "decode"):
        raise UsageError("parity.record: give a diffusers pipeline, transformer= of your own loop, or a vae= to decode")
    wanted = Recording(os.fspath(where), stop_after)
    rank, count = one_of(models, bool(floors), stop_after)
    if rank:
        say(f"process {rank} of {count} does not record: the first one does")
        yield wanted
        return
    if not overwrite and read_manifest(open_store(where)) is not None:
        raise UsageError(
            f"{wanted.where}: there is a golden here already; choose another place, or give overwrite=True"
        )
    observed = models or {"vae": vae}
    kind = wanted.kind = _kind(observed)
    in_torch = isinstance(kind, Eager) and isinstance(next(iter(observed.values())), torch.nn.Module)
    alone = like is None and in_torch and count == 1
    kinds = tuple(floors) if floors is not None else KINDS if alone else ()
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise UsageError(f"floors takes {', '.join(KINDS)}; found '{unknown[0]}'")
    parts = {"transformer": transformer, "vae": vae, "scheduler": scheduler}
    configs = _configs(pipe, {**parts, **models})

    def provenance() -> Provenance:
        return _provenance(observed, configs, kind, kinds, scheduler, pipe)

    wanted.steps = Steps(wanted.where, provenance, overwrite)
    names = [Branches(lambda: _guided(pipe), tuple(branches)) for _ in models]
    carried = Carried(variants_of(next(iter(models.values())), kinds), say) if kinds and models else None
    if carried is not None and any(v.name == TRUTH for v in carried.variants):
        wanted.steps.truth = TRUTH
    watchers = []
    for (prefix, model), own in zip(models.items(), names, strict=True):
        name = "" if prefix == next(iter(models)) else prefix
        watchers.append(
            _watcher(model)(
                model, name, kind, (sites, tuple(values)), own, wanted.steps, carried, wanted.guard, wanted.wanted, say
            )
        )
    loop = Loop(
        steps=wanted.steps,
        kind=kind,
        branches=names,
        carried=carried,
        rounds="rounding" in kinds,
        layout=layout,
        guard=wanted.guard,
        wanted=wanted.wanted,
        ended=wanted.ended,
    )
    with contextlib.ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher.watching())
        if scheduler is not None:
            stack.enter_context(loop.stepping(scheduler))
        if vae is not None:
            stack.enter_context(loop.decoding(vae))
        for name in ("video_processor", "image_processor"):
            if getattr(pipe, name, None) is not None:
                stack.enter_context(loop.finishing(getattr(pipe, name)))
        stack.enter_context(loop.naming())
        try:
            yield wanted
        except _StoppedError:
            pass
        except BaseException:
            _finish(wanted, False, like)
            raise
    _finish(wanted, True, like)


def _finish(recording: Recording, complete: bool, like: str | os.PathLike[str] | None) -> None:
    """Write what is left, and say what there is."""
    try:
        recording.steps.finish(complete and not recording.failed)
    except ParityError as error:
        say(f"recording to {recording.where} could not be finished: {error}")
        return
    count = recording.steps.number
    if recording.steps.empty:
        say(f"nothing was recorded to {recording.where}: no step of the scheduler was seen, and nothing was decoded")
        return
    state = "" if complete and not recording.failed else ", marked incomplete"
    other = os.fspath(like) if like is not None else "OTHER"
    both = f"{other} {recording.where}" if like is not None else f"{recording.where} {other}"
    what = f"{count} step{'s' if count > 1 else ''}" if count else "what was decoded is"
    say(f"{what} recorded to {recording.where}{state}; compare: parity diff {both}")


def say(text: str) -> None:
    """A line on stderr: stdout is the script's."""
    print(f"parity: {text}", file=sys.stderr, flush=True)


def _transformers(pipe: Any, transformer: Any) -> dict[str, Any]:
    """The modules to observe by their names in a pipeline; none where a script decodes alone.

    Raises:
        UsageError: one cannot be observed.
    """
    found = {"transformer": transformer} if transformer is not None else {}
    for name in TRANSFORMERS if pipe is not None and not found else ():
        model = getattr(pipe, name, None)
        if model is not None:
            found[name] = model
    for name, model in found.items():
        if type(model).__name__ == "OptimizedModule":
            raise UsageError(
                f"parity.record: {name} is compiled by torch.compile, which calls no hooks: record the module "
                "before it is compiled"
            )
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"parity.record: {name} is a {type(model).__name__}; it must be a torch.nn.Module")
    return found


def _kind(models: Mapping[str, Any]) -> Kind:
    """Where the tensors lie; jax is looked at only where the script has imported torchax."""
    if "torchax" in sys.modules:
        from parity.recorder.torchax_calls import InTorchax, is_torchax

        if any(isinstance(model, torch.nn.Module) and is_torchax(model) for model in models.values()):
            return InTorchax()
    return Eager()


def _watcher(model: Any) -> type[Calls]:
    if "torchax" in sys.modules:
        from parity.recorder.torchax_calls import CompiledCalls, is_compiled

        if is_compiled(model):
            return CompiledCalls
    return Calls


def _guided(pipe: Any) -> bool | None:
    """Whether a pipeline's batches hold both guidance branches; None where nobody says."""
    try:
        return bool(pipe.do_classifier_free_guidance)
    except Exception:  # it is known once the pipeline is called, or never
        return None


def _configs(pipe: Any, parts: Mapping[str, Any]) -> dict[str, str]:
    """The components' configs, flat, as text: what two recordings differ in is listed, and judged by what it does."""
    components = dict(getattr(pipe, "components", {}) or {}) if pipe is not None else {}
    components |= {name: part for name, part in parts.items() if part is not None}
    found: dict[str, str] = {}
    for component, part in components.items():
        config = getattr(part, "config", None)
        items = config.items() if isinstance(config, Mapping) else ()
        for name, value in items:
            if not str(name).startswith("_") and isinstance(value, (bool, int, float, str)):
                found[f"{component}.{name}"] = str(value)
    return found


def _narrow(x: np.ndarray) -> np.ndarray:
    """64 bits as 32: JAX has none, and tables that torch makes in float64 are the same there when rounded."""
    return x.astype({"float64": np.float32, "int64": np.int32}.get(x.dtype.name, x.dtype))


def _provenance(
    models: Mapping[str, Any], configs: Mapping[str, str], kind: Kind, kinds: Sequence[str], scheduler: Any, pipe: Any
) -> Provenance:
    models = {name: vars(model).get("_modules", {}).get("_model", model) for name, model in models.items()}
    recorded = type(pipe if pipe is not None else next(iter(models.values()))).__name__
    models = {name: model for name, model in models.items() if isinstance(model, torch.nn.Module)}
    timesteps = getattr(scheduler, "timesteps", None)
    weights: dict[str, str] = {}
    modules: dict[str, str] = {}
    for i, (prefix, model) in enumerate(models.items()):
        before = f"{prefix}." if i else ""
        weights |= {before + name: fingerprint(_narrow(kind.host(x))) for name, x in named_tensors(model)}
        modules |= {before + name: before + above if above else "" for name, above in module_tree(model).items()}
    tensors = list(next(iter(models.values())).parameters()) if models else []
    dtypes = [str(x.dtype).removeprefix("torch.") for x in tensors]
    return Provenance(
        side="reference" if kinds else "candidate",
        backend="torch" if kinds else PORT,  # a candidate of somebody's own
        model=recorded,
        settings={"dtype": max(set(dtypes), key=dtypes.count), **configs} if dtypes else configs,
        seed=0,
        steps=int(timesteps.numel()) if isinstance(timesteps, torch.Tensor) else 0,
        weights=weights,
        versions=versions(),
        devices=tuple(x.device.type for x in tensors[:1]),
        modules=modules,
    )
