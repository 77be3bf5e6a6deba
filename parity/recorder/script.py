"""Recording a script without an edit: the first whole call of a diffusers pipeline that it builds, of a candidate the
first with as many steps as the reference's first generation, since the ones before it compile.

Every pipeline registers its components when it is made; from then on the calls of its class are watched. The script
runs in this process as it would by itself: its arguments, its folder on the path. What it prints is its own; how it
ends is reported in a sentence, as exit codes are parity's.

For the floors it is started before that in processes of their own, whose models round differently from the moment a
pipeline has them, and which end with the pipeline's call: what the script does after it, it does once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from parity.errors import ParityError, Terminated, UsageError, line_of, summary
from parity.golden.disk.read import Golden, read_manifest
from parity.golden.disk.store import open_store
from parity.hooks.methods import all_of, replaced, watched
from parity.recorder.parts import Parts, place, say
from parity.recorder.record import Asked, Recording, absolute, in_torch, recorded, refuse_taken, unharmed
from parity.recorder.rerun import components_of, modules_in, modules_of, rounding, write_floors
from parity.signals import own_process

ROUNDING = "PARITY_ROUNDING"
"""Environment variable: which perturbed run this process is."""
_PARITY = "from parity.__main__ import main; main()"
"""The command line, in a process of its own."""


@dataclass(frozen=True)
class Script:
    """A script of somebody's own.

    Attributes:
        asked: how it is recorded. `like`: golden that this one is compared with, which has the floors; the script keeps
            its own inputs. None for a reference.
    """

    file: Path
    arguments: Sequence[str]
    asked: Asked


def run_script(where: str, script: Script) -> None:
    """Run a script and record the first pipeline that it calls.

    Args:
        where: of the golden.

    Raises:
        UsageError: there is no such script, it called no pipeline, it ended with an error, or what it computed could
            not be recorded whole.
    """
    if not script.file.is_file():
        raise UsageError(f"--script: there is no file '{script.file}'")
    if script.asked.like is not None:
        Golden.open(script.asked.like)  # or what is recorded could not be compared
    run = os.environ.pop(ROUNDING, "")  # what the script itself starts is no such run
    if run.isdigit():
        _watched(where, script, int(run))
        return
    refuse_taken(where, script.asked.overwrite, "replace it with --overwrite")
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        alone = place()[1] == 1 and script.asked.like is None
        _watched(where, script, None, _rounded(script, Path(scratch)) if alone else ())


def _rounded(script: Script, scratch: Path) -> list[str]:
    """Start the script in processes of its own that round differently: where they recorded; empty where one did not."""
    asked, runs = script.asked, script.asked.runs
    folders = [str(scratch / str(run)) for run in range(runs)]
    for run, folder in enumerate(folders):
        say(f"run {run + 1} of {runs} with perturbed rounding, up to its pipeline's call")
        values = [word for glob in asked.values for word in ("--values", glob)]
        floors = ["--floors", asked.chip] if asked.chip else []
        options = ["--script", str(script.file), "--sites", asked.sites, *values, *floors]
        command = [*own_process(_PARITY), "record", folder, *options, "--", *script.arguments]
        done = subprocess.run(
            command, env={**os.environ, ROUNDING: str(run)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        manifest = read_manifest(open_store(folder))
        if done.returncode or manifest is None or not manifest.complete:
            say("no floors: this run was not recorded whole; the script itself runs now")
            return []
    return folders


def _watched(where: str, script: Script, run: int | None, made: Sequence[str] = ()) -> None:
    """Run the script here, and record it.

    Args:
        run: which perturbed one this is; None for the script as it is. made: where the perturbed ones were recorded.
    """
    from diffusers import DiffusionPipeline, ModularPipeline

    watch = _Watch(where, script.asked, run, made)

    def registered(held: object, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> None:
        watch.see(args[0])

    registers = ((DiffusionPipeline, "register_modules"), (ModularPipeline, "register_components"))
    before = sys.argv, list(sys.path)
    folder = str(script.file.resolve().parent)
    sys.argv, sys.path[:] = [str(script.file), *script.arguments], [folder, *sys.path]
    try:
        with (
            all_of(watched(kind, name, lambda args, kwargs: None, registered) for kind, name in registers),
            contextlib.nullcontext() if run is not None else _exits(script.file, watch),
        ):
            _run(script.file, watch)
    finally:
        watch.end()
        sys.argv, sys.path[:] = before
    if not watch.called:
        raise UsageError(
            f"'{script.file}' called no diffusers pipeline: record its loop with `for _ in parity.record(...)`"
        )
    if watch.more:
        warm = "" if script.asked.like else "; if it only warms up, run the script without that"
        say(f"{watch.more} later call{'s' * (watch.more > 1)} of a pipeline not recorded: an earlier one is{warm}")
    found = watch.recording
    if found is not None and found.process.writes and found.steps.empty:
        raise UsageError(f"'{script.file}' called a diffusers pipeline of which nothing was recorded")
    if found is not None and found.process.writes and not found.whole:
        why = found.failed or "the pipeline's call raised"
        raise UsageError(f"the recording to {where} is not whole: {why}")


def _run(script: Path, watch: _Watch) -> None:
    """Run it as Python would. What parity itself does meanwhile raises nothing: an error is the script's own.

    Raises:
        UsageError: it ended with an error; 1 and the like mean something else in an exit code of parity's.
    """
    process = os.getpid()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except (ParityError, KeyboardInterrupt, Terminated):
        raise
    except SystemExit as end:
        if os.getpid() != process:
            raise
        if end.code not in (None, 0):
            raise UsageError(f"'{script}' ended with sys.exit({end.code!r}); {watch.kept}") from end
    except BaseException as error:  # a task that was cancelled, say, is no Exception
        if os.environ.get("PARITY_DEBUG") == "1" or os.getpid() != process:
            traceback.print_exc()
        if os.getpid() != process:
            raise SystemExit(1) from None
        said = f"'{script}' raised at {line_of(error, script.resolve())}: {summary(error)}; {watch.kept}"
        raise UsageError(f"{said} (PARITY_DEBUG=1: traceback)") from error
    if os.getpid() != process:  # a process that the script forked has come to its end
        raise SystemExit(0)


@contextlib.contextmanager
def _exits(script: Path, watch: _Watch) -> Iterator[None]:
    """Within it, `os._exit` of this process, which ends it at once, has a sentence and an exit code of parity's, unless
    it ends well and what was recorded is whole."""
    leave, process = os._exit, os.getpid()

    def said(status: int) -> NoReturn:
        whole = watch.recording is not None and watch.recording.whole
        if os.getpid() == process and (status or not whole):
            say(f"'{script}' ended with os._exit({status}); {watch.kept}")
            sys.stdout.flush()
            leave(UsageError.exit_code)
        leave(status)

    with replaced(os, "_exit", said):
        yield


def _leave(code: int) -> NoReturn:
    """End a perturbed run, whatever the script would do next, or catch."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Watch:
    """Watches the classes of the pipelines that a script makes; its arguments are those of `_watched`, of whose script
    it has `asked`.

    Attributes:
        wanted: steps of the golden that it is compared with; 0 for none. called: whether a pipeline was called.
        recording: of that call. more: calls that came after it.
    """

    def __init__(self, where: str, asked: Asked, run: int | None, made: Sequence[str]) -> None:
        self.where, self.asked, self.run, self.made = where, asked, run, made
        self.wanted = 0 if asked.like is None else next(iter(Golden.open(asked.like).generations), 0)
        self.called, self.more = False, 0
        self.recording: Recording | None = None
        self._begun, self._place = os.stat("."), absolute(where)
        self._inside, self._done, self._process = False, False, os.getpid()
        self._classes = contextlib.ExitStack()
        self._seen: set[type[Any]] = set()
        self._rounding = contextlib.ExitStack()
        self._rounds: set[int] = set()

    @property
    def kept(self) -> str:
        """What there is of a script that ended too early."""
        nothing = self.recording is None or self.recording.steps.empty
        return "nothing was recorded" if nothing else "what was recorded until then is kept"

    def see(self, pipe: Any) -> None:
        """Watch a pipeline's calls from now on; what it has rounds differently already where it encodes before one."""
        if self.run is not None and not self.called:
            modules = [m for m in modules_in(components_of(pipe)) if id(m) not in self._rounds]
            self._rounds.update(map(id, modules))
            self._rounding.enter_context(rounding(modules, self.run, self.asked.chip))
        kind = type(pipe)
        if kind in self._seen:
            return
        self._seen.add(kind)
        own = kind.__call__

        @functools.wraps(own)
        def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._done or os.getpid() != self._process:
                self.more += not self._inside
                return own(pipe, *args, **kwargs)
            self.called = self._inside = True
            self._rounding.close()
            try:
                return self._recorded(pipe, args, kwargs)
            finally:
                self._inside = False
                self._done = self.recording is None or self._counts(self.recording)

        self._classes.enter_context(replaced(kind, "__call__", call))

    def _recorded(self, pipe: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = Parts.found(pipe)
        if self.run is None:
            with self._recording(parts) as self.recording:
                out = pipe(*args, **kwargs)
            if self.made and self.recording.whole:
                with unharmed(lambda why: say(f"no floors: {why}; {self.where} keeps the recording")):
                    write_floors(self._place, self.made, self.asked.chip, say)
            return out
        if not in_torch(parts):
            say("floors are measured where torch computes: this pipeline's transformer is in JAX")
            _leave(2)
        try:
            with self._recording(parts), rounding(modules_of(parts), self.run, self.asked.chip):
                pipe(*args, **kwargs)
        except Exception as error:
            say(f"the pipeline's call raised {summary(error)}")
            _leave(2)
        _leave(0)

    def _recording(self, parts: Parts) -> contextlib.AbstractContextManager[Recording]:
        """Records a call, in place of one that was recorded before it."""
        asked = replace(self.asked, overwrite=self.asked.overwrite or self.recording is not None)
        here = os.path.samestat(os.stat("."), self._begun)  # the script may have gone elsewhere
        return recorded(self.where if here else self._place, parts, asked, first=self.run is None)

    def _counts(self, recording: Recording) -> bool:
        """Whether a call is the one that is compared. Where it failed, or has other steps than the golden that it is
        compared with, the next one is recorded in its place, if there is one."""
        made = recording.steps.number
        fits = self.wanted in (0, made)
        if not recording.process.writes:  # it observes what another one records, or nothing
            return fits or made == 0
        if recording.whole and not fits:
            say(f"a call of {made} of the golden's {self.wanted} steps is taken for one to compile: the next counts")
        return recording.whole and fits

    def end(self) -> None:
        """Leave the classes and the models as they were."""
        self._rounding.close()
        self._classes.close()
