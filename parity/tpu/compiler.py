"""TPU topologies (`v6e:2x4`), what a compile for one is asked for, and the process that does it: the TPU compiler takes
a machine-wide lock, prints what it likes and may not end. Imports neither torch nor jax."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from parity.errors import InconclusiveError, UsageError, line_in
from parity.paths.worker.process import LATE, too_late
from parity.signals import own_process

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


_GIB = 1 << 30

# Name -> dimensions of its topologies, devices that JAX has of a chip, and bytes of memory that these devices share
# (Google Cloud's pages on each chip).
_CHIPS = {
    "v4": (3, 2, 32 * _GIB),
    "v5e": (2, 1, 16 * _GIB),
    "v5p": (3, 1, 95 * _GIB),
    "v6e": (2, 1, 32 * _GIB),
    "tpu7x": (3, 2, 192 * _GIB),
}


def topology(name: str) -> tuple[int, int]:
    """The devices of a topology, as JAX counts them, and the bytes of memory of one.

    Raises:
        UsageError: there is no such chip, or its topologies have a different form.
    """
    found = re.fullmatch(r"([a-z0-9]+):(\d{1,3}(?:x\d{1,3}){1,2})", name)
    if found is None or found[1] not in _CHIPS:
        raise UsageError(
            f"--topology '{name[:40]}': expected CHIP:AxB such as v6e:2x4; known chips: {', '.join(_CHIPS)}"
        )
    dimensions, cores, memory = _CHIPS[found[1]]
    bounds = [int(bound) for bound in found[2].split("x")]
    if len(bounds) != dimensions or not all(bounds) or bounds[0] % 2 or bounds[1] % 2:
        raise UsageError(
            f"--topology '{name}': {found[1]} takes whole hosts of 2x2 chips in {dimensions} dimensions, such as "
            f"{found[1]}:{'x'.join(['2', '2', '1'][:dimensions])}; a smaller mesh leaves chips out"
        )
    return math.prod(bounds) * cores, memory // cores


def compile_candidate(request: Request, limit: float) -> Answer:
    """Compile a candidate in a process of its own.

    Args:
        limit: seconds that it may take.

    Raises:
        UsageError: what the request names does not exist or does not go together, or there is no compiler here.
        InconclusiveError: the compiler took longer, or died.
    """
    devices, _ = topology(request.topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            "parity compile needs libtpu, the TPU compiler (213 MB, for Linux on x86-64): pip install 'tpu-parity[tpu]'"
        )
    # A port that asks JAX for devices finds as many CPUs as the topology has chips.
    cpus = {} if request.port is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    try:
        done = subprocess.run(
            own_process("from parity.tpu.child import main; main()"),
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
    if request.port is not None and LATE in done.stderr:
        file = Path(request.port.rpartition(":")[0])
        raise too_late("--port", file, line_in(file, done.stderr))
    if done.returncode or not done.stdout:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise InconclusiveError(f"the compiling process ended with exit code {done.returncode}: {words[-1][:300]}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise (UsageError if answer["code"] == UsageError.exit_code else InconclusiveError)(answer["error"])
    return Answer(**answer)
