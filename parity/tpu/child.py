"""The process that compiles: reads a request on stdin, answers in JSON lines on stdout.

The TPU compiler is a library that takes a machine-wide lock, prints what it likes and may not end: it has a process of
its own (`parity.tpu.compiler` starts it). Lines: `{"say": ...}` for progress, then `{"answer": folder, "calls": n}`
with what is kept there, or `{"error": text, "code": exit code}`.

What is kept: `<cache>/compiled/<key>/` with `answer.json` and the optimised program, `program.hlo.gz`. The key is a
hash of the program before it is compiled, so that a kept answer is always that of the same program.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from parity.cache import cache_dir
from parity.errors import ParityError, UsageError, summary
from parity.files import replacing
from parity.paths.plan import LOOP_STAGE
from parity.paths.port.settings import chosen
from parity.paths.worker.extras import quieten
from parity.settings import Settings
from parity.tpu.refusal import refusal_of
from parity.tpu.request import FORMAT, Request

if TYPE_CHECKING:  # torch and jax, which this process imports once it has said so
    import jax

    from parity.models.family import Family
    from parity.models.spec import Case
    from parity.paths.port.load import Entry
    from parity.tpu.abstract import Compilable

ANSWER, PROGRAM = "answer.json", "program.hlo.gz"
_PACKAGES = ("jax", "jaxlib", "libtpu", "torch", "torchax", "diffusers")
_READ_BY_THE_COMPILER = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def main() -> None:
    """Answer one request."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    sys.stdout = sys.stderr
    try:
        given = json.loads(sys.stdin.read())
        request = Request(**{**given, "candidate": tuple(given["candidate"])})
        folder, calls = _answered(request, out)
        _tell(out, answer=str(folder), calls=calls)
    except ParityError as error:
        _tell(out, error=str(error), code=error.exit_code)


def _tell(out: TextIO, **message: Any) -> None:
    out.write(json.dumps(message) + "\n")


def _answered(request: Request, out: TextIO) -> tuple[Path, int]:
    """The folder that holds the answer, and how many calls are made: one program may be that of several requests."""
    quieten()
    _tell(out, say="loading torch, torchax and the TPU compiler")
    import jax

    from parity.paths.jax.program import compiled_packed, counted
    from parity.paths.port.load import load_entry

    entry = None if request.port is None else load_entry("--candidate-path", request.port, request.path_timeout)
    settings = chosen(entry, "torchax", request.candidate)
    devices = _devices(request, settings.text("mesh"), settings.mesh_shape)
    family, case = _case(request)
    _tell(out, say=f"tracing {case.name if entry is None else entry.text}")
    candidate = _candidate(request.stage, entry, family, case, settings, devices)
    facts = {
        "modules": sorted(candidate.modules),
        "versions": {name: _version(name) for name in _PACKAGES},
        "devices": candidate.devices,
        "kind": str(devices[0].device_kind),
    }
    try:
        lowered = candidate.lowered(request.sites)
    except (NotImplementedError, ValueError, UsageError) as error:
        if not _of_a_kernel(error.__cause__ or error):
            raise
        refused = {**facts, **_refused(summary(error), 0.0)}
        return _kept(_folder(repr(request), request), refused, ""), candidate.calls
    folder = _folder(lowered.as_text(), request)
    if (folder / ANSWER).is_file():
        return folder, candidate.calls
    _tell(out, say=f"compiling for {request.topology}")
    began = time.perf_counter()
    try:
        compiled = compiled_packed(lowered) if request.observed else lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return _kept(folder, {**facts, **_refused(str(error), time.perf_counter() - began)}, ""), candidate.calls
    seconds = time.perf_counter() - began
    memory, cost = counted(compiled)
    made = {"refusal": "", "memory": memory, "cost": cost, "seconds": round(seconds, 1)}
    return _kept(folder, {**facts, **made}, compiled.as_text() or ""), candidate.calls


def _candidate(
    stage: str, entry: Entry | None, family: Family, case: Case, settings: Settings, devices: Sequence[jax.Device]
) -> Compilable:
    """Parity's own, or a port."""
    if stage != LOOP_STAGE:
        from parity.tpu.staged import abstract_stage

        return abstract_stage(stage, family, case, settings, devices)
    if entry is None:
        from parity.tpu.abstract import abstract_candidate

        return abstract_candidate(family, case, settings, devices)
    from parity.tpu.ported import abstract_port

    return abstract_port(entry, family, case, settings, devices)


def _of_a_kernel(error: BaseException) -> bool:
    """Whether it is what Pallas says of a kernel that has no program on a TPU."""
    return "pallas" in f"{type(error).__module__} {error}".lower() or "mosaic" in str(error).lower()


def _case(request: Request) -> tuple[Any, Any]:
    from parity.models.registry import family_of, make_case, resolve_model
    from parity.models.spec import GenerationSpec

    folder = resolve_model(request.model)
    spec = GenerationSpec.load(folder)
    spec = replace(
        spec,
        height=request.height or spec.height,
        width=request.width or spec.width,
        num_frames=request.frames or spec.num_frames,
    )
    return family_of(folder), make_case(request.model, folder, spec)


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
            f"mesh={mesh} needs {need} devices, and {request.topology} has {len(devices)}: choose a larger topology"
        )
    return devices


def _refused(text: str, seconds: float) -> dict[str, Any]:
    return {"refusal": text[:20_000], "memory": {}, "cost": {}, "seconds": round(seconds, 1)}


def _folder(program: str, request: Request) -> Path:
    """Where the answer to this very program is kept."""
    circumstances = [FORMAT, request.topology, *(_version(name) for name in ("jax", "jaxlib", "libtpu"))]
    circumstances += [os.environ.get(name, "") for name in _READ_BY_THE_COMPILER]
    circumstances += ["packed"] if request.observed else []
    digest = hashlib.sha256(json.dumps(circumstances).encode())
    digest.update(program.encode())
    return cache_dir() / "compiled" / digest.hexdigest()[:32]


def _kept(folder: Path, answer: dict[str, Any], text: str) -> Path:
    """Write an answer, the program first, so that an answer is never without it.

    An unknown refusal may be this machine's own (no memory left): it is written over by the next that asks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / PROGRAM) as path:
            path.write_bytes(gzip.compress(text.encode(), 3, mtime=0))
        known = not answer["refusal"] or refusal_of(answer["refusal"]).memory
        with replacing(folder / (ANSWER if known else f"once-{ANSWER}")) as path:
            path.write_text(json.dumps(answer), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write the cache folder {folder}: {error.strerror}; set PARITY_CACHE to another"
        ) from error
    return folder


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
