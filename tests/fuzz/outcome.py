"""What every command must end in, whatever it is given: an exit code that was meant, in one line, in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from typer.testing import CliRunner

from parity import cli

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Of each test: few in CI; `make fuzz FUZZ_EXAMPLES=10000` for hours."""
SECONDS = 20
CORPUS = Path(__file__).with_name("corpus")

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


def corpus(name: str) -> list[Any]:
    """The seeds of `corpus/NAME.json`: each broke it once."""
    return list(json.loads((CORPUS / f"{name}.json").read_text()))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within it, what takes longer than SECONDS fails."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"it did not end within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends(arguments: Sequence[str], among: Sequence[int] = (0, 2, 125)) -> int:
    """The exit code of a command, which must be one of these, of no defect and without a terminal's escapes."""
    with bounded():
        done = CliRunner().invoke(cli.app, list(arguments))
    trace = "".join(traceback.format_exception(done.exception)) if done.exception else ""
    said = f"{list(arguments)}: {done.exit_code}\n{done.output}\n{trace}"
    assert isinstance(done.exception, SystemExit | None), said
    assert done.exit_code in among, said
    assert "defect of parity" not in done.output, said
    assert "Traceback" not in done.output, said
    assert "\x1b" not in done.output, said
    return int(done.exit_code)
