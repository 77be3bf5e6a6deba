"""What a compile is asked for, and the process that does it: the TPU compiler takes a machine-wide lock, prints what it
likes and may not end. Imports neither torch nor jax."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import parity
from parity.errors import InconclusiveError, UsageError
from parity.tpu.chips import topology

_PROGRAM = "import sys; sys.path.append({!r}); from parity.tpu.child import main; main()"

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no question to a metadata server, which only a machine with a TPU has
    "TPU_ACCELERATOR_TYPE": "v6e-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",  # nothing is run there
}
"""What lets libtpu compile on a machine without a TPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One program to compile.

    Attributes:
        model: built-in name, folder or hub name. topology: `v6e:2x4`. candidate: `NAME=VALUE` of the candidate.
        height, width, frames: of the video; None for the model's own. port: `FILE:FUNCTION` in the candidate's place.
    """

    model: str
    topology: str
    candidate: tuple[str, ...] = ()
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the compiler made of a program.

    Attributes:
        refusal: the compiler's first lines; empty if it compiles. settings: of the candidate that are changed.
        versions: of packages. devices: of the mesh. kind: of a device. seconds: that the compiler took.
        memory: bytes of a device: `arguments`, `temporaries`, `output`, `code`, `aliased`.
        products: [module, precision, how many]. kernels: how many calls of each Pallas kernel, by name.
    """

    refusal: str
    settings: Mapping[str, str]
    versions: Mapping[str, str]
    devices: int
    kind: str
    seconds: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    products: tuple[tuple[str, str, int], ...] = ()
    kernels: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes that a call holds at once on a device, at most."""
        return sum(-count if name == "aliased" else count for name, count in self.memory.items())


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
        raise UsageError("parity compile needs libtpu, the TPU compiler (213 MB): pip install 'tpu-parity[tpu]'")


def compile_candidate(request: Request, limit: float) -> Answer:
    """Compile a candidate in a process of its own.

    Args:
        limit: seconds that it may take.

    Raises:
        UsageError: what the request names does not exist or does not go together, or there is no compiler here.
        InconclusiveError: the compiler took longer, or died.
    """
    chips = topology(request.topology)
    require_compiler()
    # A port that asks JAX for devices finds as many CPUs as the topology has chips.
    cpus = {} if request.port is None else {"JAX_NUM_CPU_DEVICES": str(chips.devices)}
    program = _PROGRAM.format(str(Path(parity.__file__).parents[1]))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            input=json.dumps(asdict(request)),
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **ENVIRONMENT, **cpus},
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise InconclusiveError(
            f"the TPU compiler did not end within {limit:g} s: give it longer with --timeout, or compile fewer blocks"
        ) from None
    if done.returncode or not done.stdout:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise InconclusiveError(f"the compiling process ended with exit code {done.returncode}: {words[-1][:300]}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise (UsageError if answer["code"] == UsageError.exit_code else InconclusiveError)(answer["error"])
    return Answer(**answer)
