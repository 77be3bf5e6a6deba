"""Whatever a port raises, and however badly it says so, is one line with the port's name and exit code 2."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.paths.port.load import build, failures, load_entry
from parity.paths.port.ported import check_output
from parity.port import Case

PORT = """
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Odd:
    def __getattr__(self, name):
        raise OSError("no attribute")

def mute(case):
    raise Mute

def odd(case):
    return Odd()

def interrupts(case):
    raise KeyboardInterrupt
"""


@pytest.fixture
def as_in_a_process() -> Iterator[None]:
    """A side's process leaves interrupts to its parent."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("as_in_a_process")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("mute", "Mute: (its message cannot be read: RuntimeError)"),
        ("odd", "OSError: no attribute"),
        ("interrupts", "KeyboardInterrupt"),
    ],
)
def test_a_port_that_fails_badly_is_said(tmp_path: Path, function: str, said: str) -> None:
    file = tmp_path / "port.py"
    file.write_text(PORT)
    entry = load_entry("--candidate-path", f"{file}:{function}")
    case = Case.__new__(Case)
    with pytest.raises(UsageError, match=r"port\.py") as raised:
        build(entry, case)
    assert said in str(raised.value)


def test_an_interrupt_of_the_user_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), failures("importing", tmp_path / "port.py"):
        raise KeyboardInterrupt


def test_a_library_that_branches_on_a_traced_value_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As diffusers' HunyuanVideo-1.5 does on its image embeddings."""
    library = tmp_path / "site-packages" / "videos"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("def forward(x):\n    if x > 0:\n        return x\n    return -x\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    port = tmp_path / "port.py"
    port.write_text("import jax, videos\ndef call(x):\n    return jax.jit(videos.forward)(x)\n")
    found: dict[str, Callable[[float], object]] = {}
    exec(compile(port.read_text(), str(port), "exec"), found)
    with pytest.raises(UsageError) as caught, failures("`call`", port):
        found["call"](1.0)
    said = str(caught.value)
    assert said.startswith("`call` raised at port.py:3, in videos/__init__.py:2 `if x > 0:`: TracerBoolConversionError")
    assert "decide it outside, as a constant" in said


@pytest.mark.parametrize("expected", [None, (1, 4)])
def test_a_prediction_that_is_one_number_is_refused(tmp_path: Path, expected: tuple[int, ...] | None) -> None:
    file = tmp_path / "port.py"
    file.write_text("def build(case):\n    return None\n")
    entry = load_entry("--candidate-path", f"{file}:build")
    with pytest.raises(UsageError, match=r"`call` returned (a single number|shape \[\]); the prediction has"):
        check_output(entry, np.float32(1.0), expected)
