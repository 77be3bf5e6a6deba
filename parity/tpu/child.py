"""The process that compiles: reads a request on stdin and answers in JSON on stdout, see `parity.tpu.compiler`.

What the program multiplies, and how exactly, is read from the text of the optimised program. On a TPU a product of
float32 operands is made of bfloat16 passes: one if no precision is asked for (the operands are rounded to bfloat16),
three for `high`, six for `highest`. The optimised program says which in `operand_precision`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from parity.errors import ParityError, UsageError, summary
from parity.paths.port.settings import chosen
from parity.paths.worker.extras import quieten
from parity.tpu.compiler import Answer, Request
from parity.versions import installed

_PACKAGES = ("jax", "jaxlib", "libtpu", "torch", "torchax", "diffusers")
_LINES = 12
"""Of a refusal: the compiler goes on to list what lies in memory."""


def main() -> None:
    """Answer one request."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    sys.stdout = sys.stderr
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

    entry = None if request.port is None else load_entry("--port", request.port)
    settings = chosen(entry, "torchax", request.candidate)
    devices = _devices(request, settings.text("mesh"), settings.mesh_shape)
    family, case = opened(request.model, height=request.height, width=request.width, num_frames=request.frames)
    from parity.tpu.abstract import abstract_candidate, abstract_port  # torchax, so behind the port's own import

    if entry is None:
        candidate = abstract_candidate(family, case, settings, devices)
    else:
        candidate = abstract_port(entry, family, case, settings, devices)
    answer = Answer(
        refusal="",
        settings={name: text for name, text in settings.as_text().items() if settings.changed(name)},
        versions={name: installed(name) or "" for name in _PACKAGES},
        devices=candidate.backend.devices.size,
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


_LINE = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = \(?(?P<dtype>\w+)\[.*? (?P<opcode>[a-z][\w\-]*)\((?P<operands>[^)]*)\)"
)
PRODUCTS = ("convolution", "dot", "ragged-dot")


def products(text: str, modules: frozenset[str]) -> Counter[tuple[str, str]]:
    """How many products there are of each (module, precision); a module's indices are left open (`blocks.*.proj`).

    Args:
        text: of the optimised program. modules: paths of the model's.
    """
    dtypes: dict[str, str] = {}
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        at = _LINE.match(line)
        if at is None:
            continue
        dtypes[at["name"]] = at["dtype"]
        if at["opcode"] in PRODUCTS:
            operands = {dtypes.get(name, "") for name in re.findall(r"%([\w.\-]+)", at["operands"])}
            found[_module(line, modules), _precision(operands, line)] += 1
    return found


def kernels(text: str) -> Counter[str]:
    """How often each Pallas kernel is called."""
    calls = re.findall(r'%([\w.\-]+) = .* custom-call\(.*custom_call_target="tpu_custom_call"', text)
    return Counter(re.sub(r"\.\d+$", "", name) for name in calls)


def _precision(operands: set[str], line: str) -> str:
    if "f32" not in operands:
        return f"{min(operands, default='')}, one pass"
    asked = re.search(r"operand_precision=\{([^}]*)\}", line)
    if asked is not None and "highest" in asked[1]:
        return "float32, six passes"
    if asked is not None and "high" in asked[1]:
        return "float32, three passes"
    return "float32 rounded to bfloat16, one pass"


def _module(line: str, modules: frozenset[str]) -> str:
    """The innermost module in an operation's scopes; empty for none."""
    found, path = re.search(r'op_name="([^"]*)"', line), ""
    for part in found[1].split("/") if found else ():
        inner = f"{path}.{part}" if path else part
        path = inner if inner in modules else path
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
