"""The process that compiles: reads a request on stdin and answers in JSON on stdout, see `parity.tpu.compiler`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from parity.errors import ParityError, UsageError, summary
from parity.paths.port.settings import chosen, port_timeout
from parity.paths.worker.extras import end_with_parent, quieten
from parity.tpu.compiler import Answer, Request
from parity.tpu.figures import kernels, products

_PACKAGES = ("jax", "jaxlib", "libtpu", "torch", "torchax", "diffusers")
_LINES = 12
"""Of a refusal: the compiler goes on to list what lies in memory."""


def main() -> None:
    """Answer one request."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    sys.stdout = sys.stderr
    end_with_parent()
    try:
        answer = asdict(_answered(Request(**json.loads(sys.stdin.read()))))
    except ParityError as error:
        answer = {"error": str(error), "code": error.exit_code}
    with out:
        json.dump(answer, out)


def _answered(request: Request) -> Answer:
    quieten()
    import jax

    from parity.models.registry import opened
    from parity.paths.port.load import load_entry

    entry = None if request.port is None else load_entry("--port", request.port, port_timeout())
    settings = chosen(entry, "torchax", request.candidate)
    devices = _devices(request, settings.text("mesh"), settings.mesh_shape)
    family, case = opened(request.model, height=request.height, width=request.width, num_frames=request.frames)
    if entry is None:
        from parity.tpu.abstract import abstract_candidate

        candidate = abstract_candidate(family, case, settings, devices)
    else:
        from parity.tpu.ported import abstract_port

        candidate = abstract_port(entry, family, case, settings, devices)
    answer = Answer(
        refusal="",
        settings={name: text for name, text in settings.as_text().items() if settings.changed(name)},
        versions={name: _version(name) for name in _PACKAGES},
        devices=candidate.devices,
        kind=str(devices[0].device_kind),
    )
    began = time.perf_counter()
    try:
        compiled = candidate.lowered().compile()
    except jax.errors.JaxRuntimeError as error:
        return replace(answer, refusal=_first_lines(str(error)), seconds=round(time.perf_counter() - began, 1))
    except (NotImplementedError, ValueError, UsageError) as error:
        if not _of_a_kernel(error.__cause__ or error):
            raise
        return replace(answer, refusal=_first_lines(str(error)))
    text = compiled.as_text() or ""
    memory: Any = compiled.memory_analysis()
    return replace(
        answer,
        seconds=round(time.perf_counter() - began, 1),
        memory={
            "arguments": memory.argument_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "output": memory.output_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
        },
        products=tuple((*named, count) for named, count in products(text, candidate.modules).items()),
        kernels=dict(kernels(text)),
    )


def _first_lines(text: str) -> str:
    """What the compiler says first."""
    lines = [line.rstrip()[:300] for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:_LINES]) or "no word"


def _of_a_kernel(error: BaseException) -> bool:
    """Whether it is what Pallas says of a kernel that has no program on a TPU."""
    return "pallas" in f"{type(error).__module__} {error}".lower() or "mosaic" in str(error).lower()


def _devices(request: Request, mesh: str, shape: tuple[int, int, int]) -> Any:
    """The devices of the topology.

    Raises:
        UsageError: the compiler knows no such topology, or the mesh is larger.
    """
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(request.topology, platform="tpu").devices
    except Exception as error:
        raise UsageError(f"--topology '{request.topology}': the TPU compiler refuses it: {summary(error)}") from error
    need = shape[0] * shape[1] * shape[2]
    if need > len(devices):
        raise UsageError(
            f"mesh={mesh} needs {need} devices, and {request.topology} has {len(devices)}: choose a larger --topology "
            "or a smaller mesh"
        )
    return devices


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
