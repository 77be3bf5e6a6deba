"""`parity.record`: the context in which a script's own generation is recorded."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar, get_args

import torch

from parity.errors import ParityError, UsageError, summary
from parity.golden.disk.read import read_manifest
from parity.golden.disk.shards import folder_of
from parity.golden.disk.store import open_store
from parity.golden.disk.write import refuse_others
from parity.hooks.methods import all_of
from parity.hooks.torchtools import is_compiled, on_jax, uncompiled
from parity.port import Layout
from parity.recorder.loop import NOT_CALLED, Loop
from parity.recorder.parts import Parts, Process, one_of, provenance_of, say
from parity.recorder.rerun import RUNS, Again, memory, modules_of, rounding, write_floors
from parity.recorder.steps import Steps
from parity.recorder.torch_calls import Calls, Kind, TorchCompiledCalls
from parity.redact import typed_command
from parity.settings.chips import CHIPS, NO_CHIP

P = ParamSpec("P")
T = TypeVar("T")


class _StoppedError(BaseException):
    """Leaves the script's loop once `stop_after` steps are recorded; not an Exception, so that nothing takes it."""


@contextlib.contextmanager
def unharmed(told: Callable[[str], None]) -> Iterator[None]:
    """Within it parity works inside somebody's script: what it raises is one sentence, and ends nothing."""
    try:
        yield
    except Exception as error:
        told(str(error) if isinstance(error, ParityError) else summary(error))
        if os.environ.get("PARITY_DEBUG") == "1":
            raise


@dataclass
class Recording:
    """A recording that is under way; what `parity.record` yields.

    Attributes:
        where: of the golden. parts: what is recorded. asked: how. process: this one among the script's: where others
            observe the same their collectives are never left, though nothing is written.
        first: whether this is the script's own run. One that rounds otherwise shows the user nothing.
        failed: what ended it before the script's end; empty for nothing. whole: whether it is written, to its end.
        calls: of the pipeline, so that they can be made again; None where they are not. met: globs of `values` that
            named something. kind: where the tensors lie.
        steps: what is recorded so far.
    """

    where: str
    parts: Parts
    asked: Asked
    process: Process
    first: bool = True
    failed: str = ""
    stopped: bool = False
    whole: bool = False
    calls: list[Again] | None = None
    met: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        parts, self._one_at_a_time, self._process = self.parts, threading.RLock(), os.getpid()
        self.kind = _kind(parts.observed)
        self.steps = Steps(
            absolute(self.where),
            lambda: replace(
                provenance_of(parts.now, self.kind, self.process, self.steps.part, weighed=self.first),
                sites=self.asked.sites,
            ),
            self.asked.overwrite,
            writes=self.process.writes,
            stepped=None if parts.scheduler is None else False,
        )

    def tell(self, text: str) -> None:
        """Say a line to the user."""
        if self.first:
            say(text)

    def wanted(self) -> bool:
        """Whether anything is still recorded."""
        going_on = self.is_here and (self.process.together or not self.failed)
        return going_on and not self.stopped and (not self.first or not _REPEATED)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that began it, and none that the script forked."""
        return os.getpid() == self._process

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Parity's own work: what it raises ends the recording, never the script."""
        with unharmed(self._end), self._one_at_a_time, torch.no_grad(), self.kind.scope():
            yield

    def _end(self, why: str) -> None:
        if not self.failed:
            self.failed = why
            say(f"recording to {self.where} ended in step {self.steps.number}: {why}; the script goes on")
        if self.process.together:
            self.steps.writes = False

    def seeing(self, work: Callable[P, T]) -> Callable[P, T | None]:
        """What is to be done where the script does something: in a `guard`, while anything is still recorded."""

        @functools.wraps(work)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if self.wanted():
                with self.guard():
                    return work(*args, **kwargs)
            return None

        return guarded

    def ended(self) -> None:
        """A step is written: leave the loop where that was the last that is wanted."""
        last = self.asked.stop_after
        if last is not None and self.steps.number >= last and self.wanted():
            self.stopped = True
            raise _StoppedError


def record(
    where: str | os.PathLike[str],
    pipe: Any = None,
    *,
    transformer: Any = None,
    vae: Any = None,
    scheduler: Any = None,
    like: str | os.PathLike[str] | None = None,
    sites: str | None = None,
    values: Sequence[str] = (),
    runs: int = RUNS,
    chip: str = NO_CHIP,
    branches: Sequence[str] = (),
    layout: Layout = "channels_first",
    stop_after: int | None = None,
    overwrite: bool = False,
) -> Recorder:
    """Record what a diffusers pipeline, a loop of one's own, or a script that decodes alone computes.

        with parity.record("gpu", pipe):
            video = pipe(prompt, num_inference_steps=2)
        # then, where both folders are: parity diff gpu tpu

    `for _ in parity.record(...)` runs its body 1 + `runs` times: the first run is recorded as it is, the others round
    differently and measure the floors, which a reference needs. What has none (`like`, JAX's tensors, one of several
    processes) runs once. `with parity.record(...)` records its block once; where that calls a diffusers pipeline, the
    call is made again for the floors once the block has its result.

    Args:
        where: folder or URL of the golden. pipe: a diffusers pipeline; its transformers, scheduler, VAE and processors
            are found by themselves.
        transformer, vae, scheduler: of one's own loop, or in place of the pipeline's; of several transformers by name,
            as the pipeline has them: `{"transformer": a, "transformer_2": b}`. The VAE may be anything with a `decode`
            of tensors or arrays, and may come alone.
        like: the golden that this one is going to be compared with, which has the floors: none are measured here.
        sites: `blocks`, `all`, `none`, or a glob over `module` or `module:port`; default: those of `like`, where it can
            be read here, else `blocks`. values: globs of sites, and of what `parity.tap` names, kept whole.
        runs: with perturbed rounding, for the floors; 0 for none. chip: the TPU (`v6e`) whose elementary functions
            the floors allow for.
        branches: names of the guidance branches in a batch, in order; default: as diffusers' pipelines have them.
        layout: of what the VAE is given and gives: `channels_last` is recorded with the channels in their usual place.
        stop_after: leave the `with` block once so many steps are recorded. overwrite: replace a golden that is there.

    Raises:
        UsageError: nothing to record, a golden is there already, no module matches, or one of several processes is
            asked for what it cannot give (`parity.recorder.parts`). What the script raises.
    """
    parts = Parts.found(pipe, transformer=transformer, vae=vae, scheduler=scheduler)
    asked = Asked(like, sites or sites_of(like), values, runs, chip, branches, layout, stop_after, overwrite)
    asked.refuse(parts)
    return Recorder(os.fspath(where), parts, asked)


def sites_of(like: str | os.PathLike[str] | None) -> str:
    """The sites that a golden was recorded at, where it can be read here and they have names; else `blocks`."""
    manifest = None
    with contextlib.suppress(ParityError):
        manifest = read_manifest(open_store(os.fspath(like))) if like else None
    sites = "" if manifest is None else manifest.provenance.sites
    return sites if sites in ("all", "none") else "blocks"  # a glob is of the names of the other side


@dataclass(frozen=True)
class Asked:
    """How it is recorded: the arguments of `record`."""

    like: str | os.PathLike[str] | None = None
    sites: str = "blocks"
    values: Sequence[str] = ()
    runs: int = RUNS
    chip: str = NO_CHIP
    branches: Sequence[str] = ()
    layout: Layout = "channels_first"
    stop_after: int | None = None
    overwrite: bool = False

    def refuse(self, parts: Parts) -> None:
        """Refuse what cannot be meant, where these parts are recorded.

        Raises:
            UsageError: an argument, by its name.
        """
        runs, last, chip, branches, like = self.runs, self.stop_after, self.chip, self.branches, self.like
        steps = parts.scheduler is not None
        once = not isinstance(branches, str) and len(set(branches)) == len(branches)
        layouts, chips = get_args(Layout), [*filter(None, CHIPS)]
        for holds, text in (
            (isinstance(runs, int) and runs >= 0, f"runs must be at least 0, a whole number; found {runs!r}"),
            (last is None or (isinstance(last, int) and last >= 1), f"stop_after must be at least 1, found {last!r}"),
            (last is None or steps, "stop_after counts steps of a scheduler: give it (scheduler=)"),
            (isinstance(chip, str) and chip in CHIPS, f"chip must be one of {', '.join(chips)}; found {chip!r}"),
            (once, f"branches must be names, each once, as a list or a tuple; found {branches!r}"),
            (self.layout in layouts, f"layout must be one of {', '.join(layouts)}, found {self.layout!r}"),
            (like is None or chip == NO_CHIP, "chip is of floors, and with like (a candidate) none are measured"),
            (like is None or os.fspath(like), f"like must name a golden, found {like!r}"),
        ):
            if not holds:
                raise UsageError(f"parity.record: {text}")


def absolute(where: str) -> str:
    """A golden's place, wherever the script goes."""
    return where if "://" in where else os.path.abspath(where)


BARE = "without floors, which a reference needs: they are measured by `for _ in parity.record(...)`, in torch"


class Recorder(contextlib.AbstractContextManager[Recording]):
    """What `parity.record` gives: a `with` block records once, a `for` loop runs its body again for the floors.

    Args:
        where: of the golden.
    """

    def __init__(self, where: str, parts: Parts, asked: Asked) -> None:
        self._where, self._parts, self._asked, self._place = where, parts, asked, absolute(where)
        self._measures = asked.like is None and asked.runs > 0

    def __enter__(self) -> Recording:
        self._block = self._once()
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    @contextlib.contextmanager
    def _once(self) -> Iterator[Recording]:
        """Record a block; the calls of its pipeline are made again once it has its result."""
        pipe = self._parts.pipe if self._runs_again() else None
        begin = memory(() if pipe is None else modules_of(self._parts))
        with recorded(self._where, self._parts, self._asked) as recording:
            recording.calls = None if pipe is None else []
            yield recording
        if recording.whole and recording.calls:
            with unharmed(self._no_floors):  # the script has its result, and the golden is written
                for _ in self._runs(begin):
                    for call in recording.calls:
                        with contextlib.suppress(_StoppedError):
                            call()
        elif recording.whole and self._measures:
            say(BARE)

    def __iter__(self) -> Iterator[Recording]:
        if self._asked.stop_after is not None:
            raise UsageError("parity.record: stop_after leaves a block early, which a `for` cannot; use `with`")
        again = self._runs_again()
        begin = memory(modules_of(self._parts) if again else ())
        with recorded(self._where, self._parts, self._asked) as recording:
            yield recording
        if recording.whole and again:
            yield from self._runs(begin)
            say("what the body made last is of such a run: keep what the first makes (`for run in ...: if run.first`)")
        elif recording.whole and self._measures:
            say("without floors: they are measured where torch computes, in one process")

    def _runs_again(self) -> bool:
        """Whether this is a reference that is run again: it is asked for, in torch, and in one process alone."""
        parts, last = self._parts, self._asked.stop_after
        return self._measures and in_torch(parts) and one_of(parts.models, last).count == 1

    def _no_floors(self, why: str) -> None:
        say(f"no floors: the run could not be made again: {why}; {self._where} keeps the first")

    def _runs(self, anew: Callable[[], None]) -> Iterator[Recording]:
        """The runs after the first, one for each sample of rounding, and then the floors.

        What they draw and what models remember of them is taken back at the end. What parity itself raises in between
        ends them, and not the script.

        Args:
            anew: called before each.
        """
        asked, modules = self._asked, modules_of(self._parts)
        end = memory(modules)
        _REPEATED.append(self._where)
        try:
            with unharmed(self._no_floors), tempfile.TemporaryDirectory(prefix="parity-") as scratch:
                folders = [os.path.join(scratch, str(run)) for run in range(asked.runs)]
                for run, folder in enumerate(folders):
                    say(f"run {run + 1} of {asked.runs} with perturbed rounding, for the floors")
                    anew()
                    again = recorded(folder, self._parts, asked, first=False)
                    with again as recording, rounding(modules, run, asked.chip):
                        yield recording
                    if not recording.whole:
                        say("no floors: the perturbed run was not recorded whole; the golden is of the first")
                        return
                write_floors(self._place, folders, asked.chip, say)
        except GeneratorExit:
            say(f"no floors: the script left the loop before its last run; {self._where} keeps the first")
            raise
        finally:
            _REPEATED.pop()
            with unharmed(lambda why: say(f"what the models remembered could not be put back: {why}")):
                end()


_REPEATED: list[str] = []
"""Goldens whose script is being run again: nobody else records that."""


def refuse_taken(where: str, overwrite: bool, replace_it: str = "give overwrite=True") -> None:
    """Refuse a place that is taken.

    Args:
        overwrite: whether a golden there is replaced. replace_it: how that is asked for.

    Raises:
        UsageError: there is a golden, or a file of somebody's own that has the name of one of a golden's.
    """
    store = open_store(where)
    store.require_place()
    refuse_others(store)
    if not overwrite and read_manifest(store) is not None:
        raise UsageError(f"{where}: there is a golden here already; choose another place, or {replace_it}")


@contextlib.contextmanager
def recorded(where: str, parts: Parts, asked: Asked, *, first: bool = True) -> Iterator[Recording]:
    """Record a block; see `record`, and `Recording` for the others."""
    process = one_of(parts.models, asked.stop_after)
    wanted = Recording(folder_of(where, process.rank) if process.split else where, parts, asked, process, first)
    if process.rank and not process.split and not process.together:
        say(f"process {process.rank} of {process.count} does not record: the first one does")
        yield wanted
        return
    if process.writes:
        refuse_taken(wanted.where, asked.overwrite)
    else:
        say(f"process {process.rank} of {process.count} observes what the first one records")
    if process.split and read_manifest(open_store(where)) is not None:
        raise UsageError(f"{where}: there is a golden of one process here, which would hide the shards; delete it")
    with all_of(_watched(wanted)):
        try:
            yield wanted
        except _StoppedError:
            if not wanted.stopped:  # but one inside it
                _finish(wanted, False)
                raise
        except BaseException:
            _finish(wanted, False)
            raise
    _finish(wanted, True)
    if process.split and not process.rank and not wanted.failed:
        say(f"each of {process.count} processes recorded its share: {where} is the golden that they make up")


def in_torch(parts: Parts) -> bool:
    """Whether torch's own tensors are recorded, which can be computed with other rounding."""
    first = next(iter(parts.observed.values()))
    return type(_kind(parts.observed)) is Kind and isinstance(first, torch.nn.Module)


def _watched(recording: Recording) -> list[contextlib.AbstractContextManager[None]]:
    """The contexts in which the parts are watched.

    Raises:
        UsageError: no module matches.
    """
    parts = recording.parts.now
    found = []
    for i, (name, model) in enumerate(parts.models.items()):
        entry = parts.entries[name]
        calls = _calls(model, entry)(recording=recording, model=model, entry=entry, prefix=name if i else "")
        found.append(calls.watching())
    loop = Loop(recording)
    found += [] if parts.scheduler is None else [loop.stepping(parts.scheduler)]
    found += [] if parts.vae is None else [loop.decoding(parts.vae)]
    return [*found, *map(loop.finishing, parts.processors()), loop.naming(), loop.calling(parts)]


def _finish(recording: Recording, complete: bool) -> None:
    """Write what is left, and say what there is; nothing in a process that the script forked."""
    if not recording.is_here:
        return
    like, called = recording.asked.like, bool(recording.parts.models)
    unfinished: list[str] = []
    with unharmed(unfinished.append):
        recording.steps.finish(complete and not recording.failed)
    if unfinished:
        recording.failed = recording.failed or unfinished[0]
        say(f"recording to {recording.where} could not be finished: {unfinished[0]}")
        return
    recording.whole = complete and not recording.failed and not recording.steps.empty
    if not recording.first or (recording.process.together and not recording.steps.writes):
        return  # another process has written it, or what ended it was said
    count = recording.steps.number
    if recording.steps.empty:
        say(f"nothing was recorded to {recording.where}: no step of the scheduler was seen, and nothing was decoded")
        return
    state = "" if complete and not recording.failed else ", marked incomplete"
    where = recording.where.rpartition("/")[0] if recording.process.split else recording.where  # of all shards
    both = (where, "OTHER") if like is None else (os.fspath(like), where)
    what = f"{count} step{'s' if count > 1 else ''}" if count else "what was decoded is"
    what += ", the last one in part," if recording.steps.partial else ""
    if recording.steps.repeated:
        at = ", ".join(map(str, recording.steps.repeated))
        say(f"in step {at} a branch was called more than once: the last call of each is recorded")
    if recording.steps.stepped is False and count and not recording.failed:
        say(
            "the scheduler that was given made no step; steps end where the timestep changes. Give the one that the "
            "loop steps with, where there is one"
        )
    if called and not (recording.steps.called or recording.steps.traced):
        say(NOT_CALLED)
    if recording.steps.before:
        calls = f"{recording.steps.before} call{'s' if recording.steps.before > 1 else ''}"
        say(f"left out: {calls} before the first step's, on other latents")
    if unmet := [glob for glob in recording.asked.values if glob not in recording.met]:
        say(f"values: no module and no name of a parity.tap matches {', '.join(map(repr, unmet))}")
    if recording.steps.unlike:
        say("left out: a call whose rows are videos of one noise, and were taken for branches: seed them apart")
    say(f"{what} recorded to {recording.where}{state}; compare: {typed_command('parity', 'diff', *both)}")


def _kind(models: Mapping[str, Any]) -> Kind:
    """Where the tensors lie."""
    modules = [model for model in models.values() if isinstance(model, torch.nn.Module)]
    if any(uncompiled(model) is not model or on_jax(model) for model in modules):
        from parity.recorder.torchax_calls import InTorchax

        return InTorchax()
    return Kind()


def _calls(model: Any, entry: Any) -> type[Calls]:
    """What watches a model, by how it is compiled; `entry` is what the script calls."""
    if uncompiled(model) is not model:
        from parity.recorder.torchax_calls import CompiledCalls

        return CompiledCalls
    return TorchCompiledCalls if is_compiled(entry) else Calls
