"""What every command must end in, whatever it is given: an exit code that was meant, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

from tests.support.cli import Ran, cli

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Of each test: few in CI; `make fuzz FUZZ_EXAMPLES=10000` for hours."""
SECONDS = 20
MEMORY = 1 << 30
"""Bytes that a command may take beyond what the test's process has."""

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
slow = settings(fuzzed, max_examples=max(5, EXAMPLES // 10))
"""For examples of a second and more, each of which runs both sides: a tenth as many."""


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    """A file's bytes cut short, or with one bit turned."""
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        return raw[:at]
    return raw[:at] + bytes([raw[at] ^ 1 << data.draw(st.integers(0, 7))]) + raw[at + 1 :]


def corpus(name: str) -> list[Any]:
    """The seeds of `corpus/NAME.json`: each broke it once."""
    return list(json.loads((Path(__file__).with_name("corpus") / f"{name}.json").read_text()))


@contextlib.contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Within it, what takes longer than `seconds`, or asks for more than MEMORY, fails."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"it did not end within {seconds} s")

    before, limits = signal.signal(signal.SIGALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2 * MEMORY, limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def ends(*words: object, among: tuple[int, ...] = (0, 2, 125), seconds: int = SECONDS, clean: bool = True) -> Ran:
    """How a command ended: with one of these codes, no escapes and, where `clean`, no internal error."""
    with bounded(seconds):
        ran = cli(*words)
    assert ran.code in among, (words, ran)
    assert not clean or "internal error" not in ran.err, (words, ran)
    assert "Traceback" not in ran.err or not clean, (words, ran)
    assert "\x1b" not in ran.out + ran.err, (words, ran)
    return ran


def computed(*words: object, seconds: int = SECONDS, clean: bool = True) -> int:
    """As `ends`, of a command that takes `--format json`: 0 and 1 only where its document holds what was computed."""
    ran = ends(*words, "--format", "json", among=(0, 1, 2, 125), seconds=seconds, clean=clean)
    if ran.code in (0, 1):
        verdicts = {site["verdict"] for site in ran.json["sites"]}
        failed = any(check["verdict"] == "fail" for check in ran.json["preflight"])
        assert ran.json["verdict"] == ("pass", "fail")[ran.code], ran.json["reason"]
        if ran.code == 0:
            assert "pass" in verdicts, "nothing was compared"
            assert "fail" not in verdicts, ran.json["reason"]
            assert all(isinstance(s["rel_l2"], float | int) for s in ran.json["sites"] if s["verdict"] == "pass")
        else:
            assert "fail" in verdicts or failed, ran.json["reason"]
    return ran.code
