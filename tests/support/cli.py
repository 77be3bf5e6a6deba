"""`cli("diff", a, b, code=1)`: a command in this process, with the exit code and the messages of `python -m parity`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from parity.__main__ import main


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, and what it wrote to stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """The last line on stderr: the error, where there is one."""
        return self.err.splitlines()[-1] if self.err else ""


def cli(*words: object, code: int | None = None, cwd: Path | None = None) -> Ran:
    """Run `parity WORDS...`.

    Args:
        code: the exit code that it must end with; None for any. cwd: folder to run it in.
    """
    with _process(["parity", *map(str, words)]) as (out, err), contextlib.chdir(cwd or Path.cwd()):
        try:
            main()
            ended = 0
        except SystemExit as exit_:
            ended = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    ran = Ran(ended, _text(out), _text(err))
    told = f"parity {' '.join(map(str, words))}: exit code {ran.code}\n{ran.out}\n{ran.err}"
    assert code is None or ran.code == code, told
    return ran


@contextlib.contextmanager
def _process(argv: list[str]) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """A process's own things in place of this one's: argv, environment, an empty stdin, no terminal; stdout, stderr."""
    stdin, out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)
        for errors in ("strict", "strict", "backslashreplace")
    )
    program = mock.patch.object(sys.modules["__main__"], "__package__", "")  # click would name pytest in its usage
    with program, mock.patch.multiple(sys, argv=argv, stdin=stdin, stdout=out, stderr=err), mock.patch.dict(os.environ):
        yield out, err


def _text(stream: io.TextIOWrapper) -> str:
    held: io.BytesIO = stream.buffer  # type: ignore[assignment]
    return held.getvalue().decode()
