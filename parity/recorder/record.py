"""`parity.record`: the context in which a script's own generation is recorded."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.errors import ParityError, UsageError, summary
from parity.golden.disk.read import read_manifest
from parity.golden.disk.store import open_store
from parity.port import Layout
from parity.recorder import compiled
from parity.recorder.branches import Branches
from parity.recorder.compiled_calls import TorchCompiledCalls
from parity.recorder.floors.carried import Carried
from parity.recorder.floors.prepared import Prepared
from parity.recorder.floors.runs import KINDS, TRUTH, variants_of
from parity.recorder.floors.texts import Texts, texts_of
from parity.recorder.loop import Loop
from parity.recorder.parts import Parts, provenance_of
from parity.recorder.processes import Process, one_of
from parity.recorder.steps import Steps
from parity.recorder.torch_calls import Calls, Eager, Kind
from parity.recorder.wrong import Wrong


class _StoppedError(BaseException):
    """Leaves the script's loop once `stop_after` steps are recorded; not an Exception, so that nothing takes it."""


@dataclass
class Recording:
    """A recording that is under way; what `parity.record` yields.

    Attributes:
        where: of the golden. failed: what ended it before the script's end; empty for nothing.
        together: whether other processes observe the same: their collectives are never left, though nothing is written.
    """

    where: str
    stop_after: int | None = None
    failed: str = ""
    stopped: bool = False
    together: bool = False
    kind: Kind = field(default_factory=Eager)
    steps: Steps = field(init=False)

    def wanted(self) -> bool:
        """Whether anything is still recorded."""
        return (self.together or not self.failed) and not self.stopped

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Parity's own work: what it raises ends the recording, never the script."""
        try:
            with torch.no_grad(), self.kind.scope():
                yield
        except Exception as error:
            if not self.failed:
                self.failed = _said(error)
                say(f"recording to {self.where} ended in step {self.steps.number}: {self.failed}; the script goes on")
            if self.together:
                self.steps.writes = False
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
    causes: bool = False,
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
        causes: whether the first step and the decoder are run under known faults too, for `parity explain` of this
            golden and another's: a forward for each of some ten to twenty. Of a reference, with floors.
        branches: names of the guidance branches in a batch, in order; default: as diffusers' pipelines have them.
        layout: of what the VAE is given and gives: `channels_last` is recorded with the channels in their usual place.
        stop_after: leave the block once so many steps are recorded. overwrite: replace a golden that is there.

    Raises:
        UsageError: nothing to record, a golden is there already, no module matches, or one of several processes is
            asked for what it cannot give (`parity.recorder.processes`). What the script raises.
    """
    parts = Parts.found(pipe, transformer=transformer, vae=vae, scheduler=scheduler)
    process = one_of(parts.models, bool(floors), stop_after)
    wanted = Recording(process.folder(os.fspath(where)), stop_after, together=process.together)
    folder = wanted.where if "://" in wanted.where else os.path.abspath(wanted.where)  # the script may go elsewhere
    if process.rank and not process.split and not process.together:
        say(f"process {process.rank} of {process.count} does not record: the first one does")
        yield wanted
        return
    if not process.writes:
        say(f"process {process.rank} of {process.count} observes what the first one records")
    if process.writes and not overwrite and read_manifest(open_store(wanted.where)) is not None:
        raise UsageError(
            f"{wanted.where}: there is a golden here already; choose another place, or give overwrite=True"
        )
    wanted.kind = _kind(parts.observed)
    kinds = _kinds(floors, parts, wanted.kind, alone=like is None and process.count == 1)
    if causes and not kinds:
        raise UsageError(
            "parity.record: causes=True is for the reference, in torch and with floors: leave it out here, or leave "
            "floors and like out"
        )
    wrong = Wrong(say) if causes else None
    wanted.steps = Steps(
        folder,
        lambda: provenance_of(parts, wanted.kind, kinds, process),
        overwrite,
        writes=process.writes,
    )
    texts = texts_of(pipe, kinds, say)
    watched = _watched(parts, wanted, (sites, tuple(values)), kinds, wrong, tuple(branches), layout, texts)
    with contextlib.ExitStack() as stack:
        for context in watched:
            stack.enter_context(context)
        try:
            yield wanted
        except _StoppedError:
            pass
        except BaseException:
            _finish(wanted, False, like, wrong)
            raise
    _finish(wanted, True, like, wrong)
    if process.split and not process.rank and not wanted.failed:
        shards = " ".join(Process(i, process.count, True).folder(os.fspath(where)) for i in range(process.count))
        say(f"each of {process.count} processes recorded its share; add them up: parity merge OUT {shards}")


def _kinds(floors: Sequence[str] | None, parts: Parts, kind: Kind, *, alone: bool) -> tuple[str, ...]:
    """The floors to measure; where nobody asked for any, both if torch's tensors are recorded by themselves.

    Raises:
        UsageError: one that is none.
    """
    if floors is None:
        in_torch = isinstance(kind, Eager) and isinstance(next(iter(parts.observed.values())), torch.nn.Module)
        return KINDS if alone and in_torch else ()
    if unknown := sorted(set(floors) - set(KINDS)):
        raise UsageError(f"floors takes {', '.join(KINDS)}; found '{unknown[0]}'")
    return tuple(floors)


def _watched(
    parts: Parts,
    wanted: Recording,
    choice: tuple[str, tuple[str, ...]],
    kinds: Sequence[str],
    wrong: Wrong | None,
    branches: tuple[str, ...],
    layout: Layout,
    texts: Texts,
) -> list[contextlib.AbstractContextManager[None]]:
    """The contexts in which the parts are watched; see `record` for the arguments.

    Raises:
        UsageError: no module matches.
    """
    models, kind, steps = parts.models, wanted.kind, wanted.steps
    names = [Branches(parts.guided, branches) for _ in models]
    beside = bool(kinds) and bool(models)
    runs = variants_of(next(iter(models.values())), kinds) if beside else []
    prepared = Prepared(runs, say, wanted.wanted)
    carried = Carried(runs, say, texts.moved, prepared) if beside else None
    if carried is not None and any(v.name == TRUTH for v in carried.variants):
        steps.truth = TRUTH
    found = []
    for (prefix, model), own in zip(models.items(), names, strict=True):
        name = "" if prefix == next(iter(models)) else prefix
        calls = _calls(model, parts.entries[prefix])(
            model=model,
            prefix=name,
            kind=kind,
            choice=choice,
            branches=own,
            steps=steps,
            carried=carried,
            wrong=wrong,
            guard=wanted.guard,
            wanted=wanted.wanted,
            tell=say,
        )
        found.append(calls.watching())
    loop = Loop(
        steps=steps,
        kind=kind,
        branches=names,
        carried=carried,
        rounds="rounding" in kinds,
        wrong=wrong,
        layout=layout,
        guard=wanted.guard,
        wanted=wanted.wanted,
        ended=wanted.ended,
    )
    found += [] if parts.scheduler is None else [loop.stepping(parts.scheduler)]
    found += [] if parts.vae is None else [loop.decoding(parts.vae)]
    if carried is not None:
        found.append(texts.watching(parts.pipe))
        found.append(prepared.watching(parts.pipe, parts.vae, list(models.values()), carried.moved))
    return [*found, *map(loop.finishing, parts.processors()), loop.naming()]


def _finish(
    recording: Recording, complete: bool, like: str | os.PathLike[str] | None, wrong: Wrong | None = None
) -> None:
    """Write what is left, and say what there is."""
    try:
        recording.steps.finish(complete and not recording.failed)
        if wrong is not None and not recording.steps.empty:
            wrong.finish(recording.steps.where)
    except Exception as error:
        what = _said(error)
        recording.failed = recording.failed or what
        say(f"recording to {recording.where} could not be finished: {what}")
        if os.environ.get("PARITY_DEBUG") == "1":
            raise
        return
    if recording.together and not recording.steps.writes:
        return  # another process has written it, or what ended it was said
    count = recording.steps.number
    if recording.steps.empty:
        say(f"nothing was recorded to {recording.where}: no step of the scheduler was seen, and nothing was decoded")
        return
    state = "" if complete and not recording.failed else ", marked incomplete"
    other = os.fspath(like) if like is not None else "OTHER"
    both = f"{other} {recording.where}" if like is not None else f"{recording.where} {other}"
    what = f"{count} step{'s' if count > 1 else ''}" if count else "what was decoded is"
    what += ", the last one in part," if recording.steps.partial else ""
    if recording.steps.repeated:
        at = ", ".join(map(str, recording.steps.repeated))
        say(f"in step {at} a branch was called more than once: the last call of each is recorded")
    say(f"{what} recorded to {recording.where}{state}; compare: parity diff {both}")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ParityError) else summary(error)


def say(text: str) -> None:
    """A line on stderr: stdout is the script's."""
    print(f"parity: {text}", file=sys.stderr, flush=True)


def _kind(models: Mapping[str, Any]) -> Kind:
    """Where the tensors lie; jax is looked at only where the script has imported torchax."""
    if "torchax" in sys.modules:
        from parity.recorder.torchax_calls import InTorchax, is_torchax

        if any(isinstance(model, torch.nn.Module) and is_torchax(model) for model in models.values()):
            return InTorchax()
    return Eager()


def _calls(model: Any, entry: Any) -> Callable[..., Calls]:
    """What watches a model, by how it is compiled; `entry` is what the script calls."""
    if "torchax" in sys.modules:
        from parity.recorder.torchax_calls import CompiledCalls, is_compiled

        if is_compiled(model):
            return CompiledCalls
    return functools.partial(TorchCompiledCalls, entry=entry) if compiled.is_compiled(entry) else Calls
