"""Recording a script without an edit: the first call of a diffusers pipeline that it builds.

Every pipeline registers its components when it is made; from then on the calls of its class are watched. The script
runs in this process as it would by itself: its arguments, its folder on the path, its exit. What it prints is its own.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.recorder.methods import replaced
from parity.recorder.record import record


def run_script(where: str, script: Path, arguments: Sequence[str], **options: Any) -> None:
    """Run a script and record the first pipeline that it calls.

    Args:
        where: of the golden. arguments: the script's. options: of `parity.record`.

    Raises:
        UsageError: there is no such script, or it called no pipeline. What the script raises, its `SystemExit` too.
    """
    from diffusers import DiffusionPipeline

    if not script.is_file():
        raise UsageError(f"--script: there is no file '{script}'")
    watch = _Watch(where, options)
    own = DiffusionPipeline.register_modules

    @functools.wraps(own)
    def registered(pipe: Any, **components: Any) -> None:
        own(pipe, **components)
        watch.see(type(pipe))

    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [str(script), *arguments], [str(script.resolve().parent), *sys.path]
    try:
        with replaced(DiffusionPipeline, "register_modules", registered):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        watch.end()
        sys.argv, sys.path[:] = before
    if not watch.called:
        raise UsageError(f"'{script}' called no diffusers pipeline: record its loop with `with parity.record(...)`")


class _Watch:
    """Watches the classes of the pipelines that a script makes; `called` once one was recorded."""

    def __init__(self, where: str, options: dict[str, Any]) -> None:
        self.where, self.options, self.called = where, options, False
        self._own: dict[type[Any], Any] = {}

    def see(self, kind: type[Any]) -> None:
        """Watch the calls of a class."""
        if kind in self._own or "__call__" not in vars(kind):
            return
        own = self._own[kind] = vars(kind)["__call__"]

        @functools.wraps(own)
        def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            if self.called:
                return own(pipe, *args, **kwargs)
            self.called = True
            with record(self.where, pipe, **self.options):
                return own(pipe, *args, **kwargs)

        kind.__call__ = call

    def end(self) -> None:
        """Leave the classes as they were."""
        for kind, own in self._own.items():
            kind.__call__ = own
