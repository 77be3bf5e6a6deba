"""Ports made of what Python code can do wrong, at every place where a port's code runs while it is loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.errors import ParityError
from parity.paths.port.load import build, load_entry
from parity.port import Case
from tests.fuzz.outcome import ODD, bounded, corpus, fuzzed

pytestmark = pytest.mark.slow

DEEDS = st.sampled_from(
    ["pass", "return None", "return 1", "return Odd()", "raise Mute", "raise KeyboardInterrupt", "raise SystemExit(0)",
     "raise GeneratorExit", "raise BaseException", "raise Mute from Mute()", "f(case)", "1 / 0", "yield",
     "import nosuch",
     "return Port(call=1)", "return Port(call=len, rename=3)", "return Port(call=len, layout='x')", "del case.role",
     "return type('P', (), {'call': property(lambda s: 1 / 0)})()", "return Port(call=len, runs=Odd())"]
)  # fmt: skip
TOPS = st.sampled_from(["", "raise Mute", "SETTINGS = Odd()", "SETTINGS = {1: 2}", "SETTINGS = {'dtype': Odd()}",
                        "f = 3",
                        "import sys; sys.exit(0)", "raise KeyboardInterrupt", "(", "\x00"])  # fmt: skip
HEAD = f"""
from parity.port import Port
{ODD}"""


@pytest.fixture(autouse=True)
def as_in_a_process() -> Iterator[None]:
    """A side's process leaves interrupts to its parent."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def loaded(folder: Path, top: str, deed: str) -> None:
    file = folder / "port.py"
    file.write_text(f"{HEAD}\ndef f(case):\n    {deed}\n{top}\n")
    said = "port.py"
    try:
        with bounded():
            build(load_entry("--candidate-path", f"{file}:f"), Case.__new__(Case))
    except ParityError as error:
        said = str(error)
    assert "port.py" in said
    assert len(said.splitlines()) == 1


@fuzzed
@given(top=TOPS, deed=DEEDS)
def test_whatever_a_port_does_is_one_line(tmp_path: Path, top: str, deed: str) -> None:
    loaded(tmp_path, top, deed)


@pytest.mark.parametrize("seed", corpus("ports"), ids="; ".join)
def test_the_ports_that_broke_it(tmp_path: Path, seed: list[str]) -> None:
    loaded(tmp_path, *seed)
