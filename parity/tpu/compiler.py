"""Runs the compiling process with a time limit, and reads its answer. Imports neither torch nor jax.

Several programs are compiled at once, each in a process of its own: a program and its observed twin cost the time of
the longer one. Each process and what it started ends with this one.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Protocol

import parity
from parity.errors import UnjudgedError, UsageError
from parity.tpu.child import ANSWER, PROGRAM
from parity.tpu.chips import topology
from parity.tpu.request import Answer, Request

_PROGRAM = "import sys; sys.path.append({!r}); from parity.tpu.child import main; main()"

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no question to a metadata server, which only a machine with a TPU has
    "TPU_ACCELERATOR_TYPE": "v6e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",  # nothing is run there
}
"""What lets libtpu compile on a machine without a TPU."""


class Say(Protocol):
    """Names the stage that begins."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None: ...


def require_compiler() -> None:
    """Refuse to begin without a TPU compiler.

    Raises:
        UsageError: there is none for this machine, or it is not installed.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UsageError(
            f"the TPU compiler runs on Linux on x86-64, and this is {sys.platform} on {platform.machine()}: compile on "
            "such a machine"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError("parity compile needs libtpu, the TPU compiler (213 MB): pip install 'tpu-parity[aot]'")


def compile_all(requests: Sequence[Request], limit: float, say: Say) -> list[Answer]:
    """Compile these programs side by side.

    Args:
        limit: seconds for each.

    Raises:
        UsageError: a request that cannot be met. UnjudgedError: the compiler took longer than `limit`, or died.
    """
    running = [_Compiling(request, say) for request in requests]
    try:
        with ThreadPoolExecutor(len(running)) as pool:
            try:
                return list(pool.map(lambda one: one.answer(limit), running))
            finally:
                for one in running:
                    one.end()  # before the pool waits for its threads: the first error ends all
    finally:
        for one in running:
            one.errors.close()


def _cpus(request: Request) -> Mapping[str, str]:
    """A port that asks JAX for devices finds as many CPUs as the topology has chips."""
    return {} if request.port is None else {"JAX_NUM_CPU_DEVICES": str(topology(request.topology).devices)}


class _Compiling:
    """One compiling process."""

    def __init__(self, request: Request, say: Say) -> None:
        self.request, self.say = request, say
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `compile_all`)
        self.cached = True
        self.late = threading.Event()
        program = _PROGRAM.format(str(Path(parity.__file__).parents[1]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **ENVIRONMENT, **_cpus(request)},
            start_new_session=True,  # so that it ends with all that it started
        )

    def answer(self, limit: float) -> Answer:
        """Wait for the answer; see `compile_all`."""
        timer = threading.Timer(limit, self._give_up)
        timer.start()
        try:
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self.process.stdin as there:
                there.write(json.dumps(asdict(self.request)).encode())
            assert self.process.stdout is not None
            last = self._heard(self.process.stdout)
            code = self.process.wait()
        finally:
            timer.cancel()
        if self.late.is_set():
            raise UnjudgedError(
                f"the TPU compiler did not end within {limit:g} s ({self._what}): give it longer with --timeout, or "
                "compile fewer blocks"
            )
        if "error" in last:
            raise (UsageError if last["code"] == UsageError.exit_code else UnjudgedError)(last["error"])
        if code or "answer" not in last:
            raise UnjudgedError(
                f"the compiling process ended with exit code {code} ({self._what}): {self._last_words()}"
            )
        return replace(self._read(Path(last["answer"])), calls=last["calls"])

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _give_up(self) -> None:
        self.late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _heard(self, lines: IO[bytes]) -> Mapping[str, Any]:
        """The last message; what comes before it is progress."""
        last: Mapping[str, Any] = {}
        for line in lines:
            last = json.loads(line)
            if "say" in last:
                self.cached &= not str(last["say"]).startswith("compiling")
                self.say(f"{last['say']} ({self._what})")
        return last

    def _read(self, folder: Path) -> Answer:
        place = folder / ANSWER
        kept = place if place.is_file() else folder / f"once-{ANSWER}"
        answer = json.loads(kept.read_text(encoding="utf-8"))
        text = gzip.decompress((folder / PROGRAM).read_bytes()).decode()
        return replace(Answer.of(answer, text), cached=self.cached and kept == place)

    @property
    def _what(self) -> str:
        return "unobserved" if self.request.sites == "none" else f"--sites {self.request.sites}"

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"
