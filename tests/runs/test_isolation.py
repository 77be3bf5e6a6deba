"""Each side runs in a process of its own: whatever a port does, the reference, stdout and the verdict stay whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.paths.worker.process import Workers
from tests.support.cli import cli as parity
from tests.support.ports import compare
from tests.support.tiny_dit import REFERENCE, write as write_ports

pytest.importorskip("torchax")

SAME = f"{REFERENCE}\n\ndef build(case):\n    return Port(module=TinyDiT())\n"

WRONG_SCALE = f"""{REFERENCE}

right = F.scaled_dot_product_attention


def wrong(query, key, value, **options):
    return right(query, key, value, scale=0.1)


def build(case):
    net = TinyDiT()
    IN_BUILD

    def call(inputs):
        IN_CALL
        return net(**inputs)

    return Port(module=net, call=call)
"""

ATTENTION = "F.scaled_dot_product_attention = wrong"


@pytest.mark.parametrize("where", ["IN_BUILD", pytest.param("IN_CALL", marks=pytest.mark.slow)])
def test_a_port_that_replaces_torchs_attention_fails_at_the_attention(where: str, tmp_path: Path) -> None:
    """In one process the reference would call the same wrong function, and the two would agree."""
    text = WRONG_SCALE.replace(where, ATTENTION).replace("IN_BUILD", "pass").replace("IN_CALL", "pass")
    result = compare(*write_ports(tmp_path, text))
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.site == "blocks.0.attention:out"


def test_a_port_that_ends_its_process_in_a_call_exits_with_2(tmp_path: Path) -> None:
    text = f"{REFERENCE}\n\ndef build(case):\n    import os\n    net = TinyDiT()\n" + (
        "    return Port(module=net, call=lambda inputs: os._exit(0))\n"
    )
    reference, candidate = write_ports(tmp_path, text)
    done = parity("run", "--format", "json", "--reference-port", reference, "--port", candidate)
    assert (done.code, done.out) == (2, "")
    assert "exit code 0 at port.py:" in done.err


@pytest.mark.slow
def test_an_import_that_hangs_in_native_code_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate = write_ports(tmp_path, f"# Native code that looks at no signal\nsum(range(10**15))\n{SAME}")
    with Workers() as openers:
        openers.of("reference").port("--reference-port", reference)
        monkeypatch.setenv("PARITY_PORT_TIMEOUT", "2")
        text = r"importing 'port\.py' did not end within 2 s, at port\.py:2; .*PARITY_PORT_TIMEOUT"
        with pytest.raises(UsageError, match=text):
            openers.of("candidate").port("--port", candidate)


HANGS = """
    import ctypes, os, pathlib
    net = TinyDiT()

    def call(inputs):
        pathlib.Path(__file__).with_name("called").write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(1000)  # with the GIL

    return Port(module=net, call=call)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
def test_a_port_that_hangs_in_native_code_ends_with_its_command(number: str, code: int, tmp_path: Path) -> None:
    reference, candidate = write_ports(tmp_path, f"{REFERENCE}\n\ndef build(case):{HANGS}")
    command = ["run", "--reference-port", reference, "--port", candidate]
    process = subprocess.Popen([sys.executable, "-m", "parity", *command], stderr=subprocess.PIPE, text=True)
    called = Path(candidate.partition(":")[0]).with_name("called")
    _until(lambda: called.exists() and called.read_text() != "", 300)
    process.send_signal(getattr(signal, number))
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    port = int(called.read_text())
    _until(lambda: not _alive(port), 30)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _until(done: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.1)
