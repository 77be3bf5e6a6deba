"""Recording a script without an edit: the first call of a diffusers pipeline that it builds.

Every pipeline registers its components when it is made; from then on the calls of its class are watched. The script
runs in this process as it would by itself: its arguments, its folder on the path. What it prints is its own; how it
ends is told in a sentence, as exit codes are parity's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.errors import ParityError, UsageError, line_of, summary
from parity.recorder.floors.runs import KINDS
from parity.recorder.floors.texts import early
from parity.recorder.methods import replaced
from parity.recorder.record import Recording, record, say


def run_script(where: str, script: Path, arguments: Sequence[str], **options: Any) -> None:
    """Run a script and record the first pipeline that it calls.

    Args:
        where: of the golden. arguments: the script's. options: of `parity.record`.

    Raises:
        UsageError: there is no such script, it called no pipeline, it ended with an error, or what it computed could
            not be recorded whole.
    """
    from diffusers import DiffusionPipeline

    if not script.is_file():
        raise UsageError(f"--script: there is no file '{script}'")
    watch = _Watch(where, options)
    own = DiffusionPipeline.register_modules

    @functools.wraps(own)
    def registered(pipe: Any, **components: Any) -> None:
        own(pipe, **components)
        watch.see(pipe)

    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    try:
        with replaced(DiffusionPipeline, "register_modules", registered):
            _run(script)
    finally:
        watch.end()
        sys.argv, sys.path[:] = before
    if not watch.called:
        raise UsageError(f"'{script}' called no diffusers pipeline: record its loop with `with parity.record(...)`")
    if watch.recording is not None and watch.recording.failed:
        raise UsageError(f"the recording to {where} is not whole: {watch.recording.failed}")


def _run(script: Path) -> None:
    """Run it as Python would. What parity itself does meanwhile raises nothing: an error is the script's own.

    Raises:
        UsageError: it ended with an error; 1 and the like mean something else in an exit code of parity's.
    """
    kept = "what was recorded until then is kept"
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ParityError:
        raise
    except SystemExit as end:
        if end.code not in (None, 0):
            raise UsageError(f"'{script}' ended with sys.exit({end.code!r}); {kept}") from end
    except Exception as error:
        if os.environ.get("PARITY_DEBUG") == "1":
            traceback.print_exc()
        said = f"'{script}' raised at {line_of(error, script.resolve())}: {summary(error)}; {kept}"
        raise UsageError(f"{said} (PARITY_DEBUG=1: traceback)") from error


class _Watch:
    """Watches the classes of the pipelines that a script makes; `called` once one was, and its `recording`."""

    def __init__(self, where: str, options: dict[str, Any]) -> None:
        self.where, self.options, self.called = where, options, False
        self.recording: Recording | None = None
        self._own: dict[type[Any], Any] = {}
        self._early = contextlib.ExitStack()

    def _floors(self) -> Sequence[str]:
        """The floors that a recording is going to measure, as far as is known before its pipeline is called."""
        given = self.options.get("floors")
        unasked = self.options.get("like") is not None or "torchax" in sys.modules
        return given if given is not None else () if unasked else KINDS

    def see(self, pipe: Any) -> None:
        """Watch a pipeline's text encoders from now on, and the calls of its class."""
        if not self.called:
            self._early.enter_context(early(pipe, self._floors, say))
        kind = type(pipe)
        if kind in self._own or "__call__" not in vars(kind):
            return
        own = self._own[kind] = vars(kind)["__call__"]

        @functools.wraps(own)
        def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            if self.called:
                return own(pipe, *args, **kwargs)
            self.called = True
            self._early.close()
            with record(self.where, pipe, **self.options) as self.recording:
                return own(pipe, *args, **kwargs)

        kind.__call__ = call

    def end(self) -> None:
        """Leave the classes as they were."""
        self._early.close()
        for kind, own in self._own.items():
            kind.__call__ = own
