"""What every command must end in, whatever it is given: an exit code that was meant, in bounded time and memory.

Memory is watched twice: a limit of address space, so that what asks for more fails and takes no machine with it, and
the largest resident set, which a command that survives the limit would show.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from parity import cli

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Of each test: few in CI; `make fuzz FUZZ_EXAMPLES=10000` for hours."""
SECONDS = 20
MEMORY = 1 << 30
"""Bytes that a command may take beyond what the test's process has."""
CORPUS = Path(__file__).with_name("corpus")

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


slow = settings(fuzzed, max_examples=max(5, EXAMPLES // 10))
"""For examples of a second and more, each of which runs both sides: a tenth as many."""


ODD = """
class Mute(BaseException):
    def __str__(self):
        raise Mute

class Odd:
    def __getattr__(self, name):
        raise Mute
    __str__ = __repr__ = __hash__ = __eq__ = __iter__ = __len__ = __getattr__
"""
"""What ports are made of that say nothing, and answer nothing."""


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    """A file's bytes cut short, or with one bit turned."""
    found = bytearray(raw)
    at = data.draw(st.integers(0, len(found) - 1))
    if data.draw(st.booleans()):
        del found[at:]
    else:
        found[at] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(found)


def corpus(name: str) -> list[Any]:
    """The seeds of `corpus/NAME.json`: each broke it once."""
    return list(json.loads((CORPUS / f"{name}.json").read_text()))


@contextlib.contextmanager
def bounded(seconds: int = SECONDS) -> Iterator[None]:
    """Within it, what takes longer than `seconds`, or more than MEMORY, fails."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"it did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        with _frugal():
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _frugal() -> Iterator[None]:
    if not os.access("/proc/self/clear_refs", os.W_OK):  # not Linux: only the time is watched
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident set is counted from here
    resident, limits = _memory("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + 2 * MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    taken = _memory("VmHWM") - resident
    assert taken <= MEMORY, f"it took {taken >> 20} MiB"


def _memory(name: str) -> int:
    """A line of Linux's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) << 10


def ends(arguments: Sequence[str], among: Sequence[int] = (0, 2, 125)) -> int:
    """The exit code of a command, which must be one of these, of no defect and without a terminal's escapes."""
    return ended(arguments, among)[0]


def ended(
    arguments: Sequence[str], among: Sequence[int], seconds: int = SECONDS, clean: bool = True
) -> tuple[int, str]:
    """As `ends`; with what the command printed to stdout. Not `clean`: it may say that parity has a defect."""
    with bounded(seconds):
        done = CliRunner().invoke(cli.app, list(arguments))
    trace = "".join(traceback.format_exception(done.exception)) if done.exception else ""
    said = f"{list(arguments)}: {done.exit_code}\n{done.output}\n{trace}"
    assert isinstance(done.exception, SystemExit | None), said
    assert done.exit_code in among, said
    assert "defect of parity" not in done.output or not clean, said
    assert "Traceback" not in done.output or not clean, said
    assert "\x1b" not in done.output, said
    return int(done.exit_code), done.stdout


def computed(arguments: Sequence[str], seconds: int = SECONDS, clean: bool = True) -> int:
    """As `ends`, of a command that takes `--json`: 0 and 1 only where its document holds what was computed."""
    code, out = ended([*arguments, "--json"], (0, 1, 2, 125), seconds, clean)
    if code in (0, 1):
        document = json.loads(out)
        verdicts = [site["verdict"] for site in document["sites"]]
        failed = [check for check in document["preflight"] if check["verdict"] == "fail"]
        assert document["verdict"] == ("pass", "fail")[code], document["reason"]
        if code == 0:
            assert "pass" in verdicts, "nothing was compared"
            assert "fail" not in verdicts, document["reason"]
            assert all(isinstance(s["rel_l2"], float | int) for s in document["sites"] if s["verdict"] == "pass")
        else:
            assert "fail" in verdicts or failed, document["reason"]
    return code
