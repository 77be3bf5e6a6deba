"""Ports that go wrong where they run: in a process of their own, beside a reference that computes what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from parity.paths.worker.process import Workers
from tests.fuzz.outcome import computed, corpus, slow
from tests.support.tiny_dit import REFERENCE

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

PLACES = ("import", "build", "call", "forward")
SIDES = st.sampled_from(["reference", "candidate"])

ODDITIES = (
    "print('x' * 100_000)", "print('\\x1b[2J')", "os.write(1, bytes(range(256)) * 40)", "os.write(2, b'{}\\n' * 1000)",
    "sys.stdout.close()", "sys.stderr = None", "print('Fatal Python error: x', file=sys.stderr)", "warnings.warn('x')",
    "torch.set_default_dtype(torch.float64)", "torch.manual_seed(7)", "os.chdir('/')", "os.environ.clear()",
    "sys.path.clear()", "sys.setrecursionlimit(60)", "signal.alarm(1)", "torch.set_grad_enabled(True)",
    "threading.Thread(target=time.sleep, args=(600,)).start()", "torch.nn.Module.__call__ = None", "os.umask(0o777)",
    "pathlib.Path(__file__).unlink()", "pathlib.Path(__file__).write_text('(')", "os.fork() or os._exit(0)",
)  # fmt: skip
SABOTAGE = (
    "time.sleep = None", "json.dumps = None", "np.asarray = None", "builtins.print = None", "os.write = None",
    "hashlib.sha256 = None", "torch.Tensor.to = None", "builtins.isinstance = None", "sys.modules.clear()",
    "del sys.modules['torch']", "sys.modules.pop('parity', None)",
)  # fmt: skip
"""What parity itself works with in that process: never a verdict, and it may look like parity's own error."""
ENDS = (
    "os._exit(0)", "os._exit(255)", "sys.exit(0)", "os.abort()", "raise SystemExit('0')", "raise KeyboardInterrupt",
    "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)", "ctypes.string_at(0)",
    "os.closerange(3, 256)", "raise Mute", "raise MemoryError", "raise StopIteration", "raise GeneratorExit", "1 / 0",
    "import nosuch", "raise UnicodeDecodeError('utf-8', b'', 0, 1, '\\ud800')", "raise Exception('\\x1b[2J' * 999)",
    "raise BaseExceptionGroup('x', [KeyboardInterrupt()])", "torch.ones(2) @ torch.ones(3)", "bytearray(10 ** 18)",
    "(lambda f: f(f))(lambda f: f(f))", "raise OSError(28, 'No space left on device')", "raise BrokenPipeError",
)  # fmt: skip
RETURNS = (
    "None", "7", "[]", "'x'", "x[:, :1]", "x * math.nan", "x / 0", "x.to(torch.int64)", "{'a': x}", "Odd()", "x[None]",
    "x.to(torch.bfloat16)", "x.cpu().numpy()", "x.expand(2, *x.shape)", "x * 1.5", "x.to('meta')", "torch.empty(0)",
    "x.to_sparse()", "torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)",
)  # fmt: skip

PORT = f"""{REFERENCE}
import builtins, ctypes, hashlib, json, math, os, pathlib, signal, sys, threading, time, warnings
import numpy as np

class Mute(BaseException):
    def __str__(self):
        raise Mute

class Odd:
    def __getattr__(self, name):
        raise Mute
    __str__ = __repr__ = __hash__ = __eq__ = __iter__ = __len__ = __getattr__

class Faulty(TinyDiT):
    def forward(self, hidden_states, timestep):
        FORWARD
        return super().forward(hidden_states, timestep)

IMPORT

def build(case):
    net = Faulty()
    BUILD

    def call(inputs):
        CALL
        x = net(**inputs)
        return RETURN

    return Port(module=net, call=call, inputs=inputs())
"""


@pytest.fixture(scope="module", autouse=True)
def warmed() -> Iterator[None]:
    """Both sides' processes are forked from ones that start here, outside of the harness' limits."""
    with Workers() as openers:
        openers.of("reference").ask("imports")
        openers.of("candidate").ask("imports")
        yield


def run(folder: Path, side: str, place: str, deed: str, returned: str) -> None:
    """Compare a port that does this with one that does not, and see that it ends as it must."""
    text = PORT.replace("RETURN", returned).replace(place.upper(), deed)
    for other in PLACES:
        text = text.replace(other.upper(), "pass")
    (folder / "model.py").write_text(REFERENCE)
    (folder / "port.py").write_text(text)
    ports = [f"{folder / 'model.py'}:reference", f"{folder / 'port.py'}:build"][:: 1 if side == "candidate" else -1]
    words = ["--checks", "logic", "--reference-port", ports[0], "--port", ports[1]]
    code = computed("run", *words, seconds=60, clean=deed not in SABOTAGE)
    if deed in ENDS:
        assert code in (2, 125), f"{deed} was passed over"
    if returned != "x":
        assert code != 0, f"{returned} was found to be the same"


@slow
@given(side=SIDES, place=st.sampled_from(PLACES), deed=st.sampled_from([*ODDITIES, *SABOTAGE, *ENDS]))
def test_port_that_misbehaves_is_an_error_or_changes_nothing(tmp_path: Path, side: str, place: str, deed: str) -> None:
    run(tmp_path, side, place, deed, "x")


@slow
@given(side=SIDES, returned=st.sampled_from(RETURNS))
def test_a_port_that_returns_something_else_is_never_the_same(tmp_path: Path, side: str, returned: str) -> None:
    run(tmp_path, side, "call", "pass", returned)


@pytest.mark.parametrize("seed", corpus("ports"), ids="; ".join)
def test_the_ports_that_broke_it(tmp_path: Path, seed: list[str]) -> None:
    run(tmp_path, *seed)
