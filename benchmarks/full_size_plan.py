"""What of a model of full size is known without compiling it: by the plan of its sites, from a trace of shapes.

The records of a call are those that the hooks would make, so that the size of a golden is a sum over them; a block's
inputs, outputs and inner tensors are what a local pass holds. `tests/test_benchmarks.py` holds the sum to a golden of a
tiny model, recorded.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from full_size_models import Model

from parity.golden.records import PADDING
from parity.golden.sketch import Geometry
from parity.hooks.sites import plan_sites
from parity.hooks.tap import Entry

RECORD, FLOOR, TENSOR = 330, 100, 75
"""Bytes of JSON of a record and of a floor, and of a tensor's entry in the header, about."""

LOOP_VALUES = 5
"""Values of the latents' size in a step: before and after it, a prediction of each branch, and the guided one."""

WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Figures of a model by its plan.

    Attributes:
        records: of one step, both branches. step_bytes: of a step of a golden with floors. parameters: of the
            transformer. latents: elements. block_ports, block_inner: bytes in the working dtype of one block's inputs
            and outputs, and of its largest inner module's. block_parameters: of one block.
    """

    records: int
    step_bytes: int
    parameters: int
    latents: int
    block_ports: int
    block_inner: int
    block_parameters: int


def plan_of(model: Model) -> Plan:
    """Trace two depths for their records, and one block with all its modules."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        few, more = (_traced(model.write(place / str(n), n), "blocks") for n in (1, 2))
        inner = _traced(place / "1", "transformer_blocks.0*")
    beyond = model.blocks - 1
    records = few.records + beyond * (more.records - few.records)
    ports, largest = _block(inner.entries)
    own = more.parameters - few.parameters
    return Plan(
        records=records,
        step_bytes=few.step_bytes + beyond * (more.step_bytes - few.step_bytes),
        parameters=few.parameters + beyond * own,
        latents=few.latents,
        block_ports=ports,
        block_inner=largest,
        block_parameters=own,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One trace: its entries in a call of one branch, and the sums over a step of two."""

    entries: tuple[Entry, ...]
    records: int
    step_bytes: int
    parameters: int
    latents: int


def _traced(folder: Path, sites: str) -> Traced:
    import jax

    from parity.models.registry import family_of, make_case
    from parity.models.spec import GenerationSpec
    from parity.paths.inputs import BRANCHES
    from parity.settings import parse
    from parity.tpu.abstract import abstract_candidate

    family, case = family_of(folder), make_case(str(folder), folder, GenerationSpec.load(folder))
    settings = parse("torchax", ["dtype=bfloat16", "attention.kernel=splash"])
    found = abstract_candidate(family, case, settings, jax.devices("cpu")[:1])
    backend = found.backend
    with backend.scope():
        plan = plan_sites(found.modules, sites)
        rule = backend.rules[backend.groups[0][0]]
        forward = backend.forward(found.names, rule, plan)
        _, entries = backend.programs.lowered(forward, backend.params, found.arguments, found.frames, None)
    calls = len(BRANCHES) // len(found.names)
    latents = math.prod(case.latent_shape)
    return Traced(
        entries=entries,
        records=calls * len(entries) + LOOP_VALUES + 3,
        step_bytes=step_bytes(entries, calls, 4 * latents),
        parameters=sum(math.prod(x.shape) for x in backend.params.values()),
        latents=latents,
    )


def step_bytes(entries: Iterable[Entry], calls: int, latents: int) -> int:
    """Bytes of one step of a golden with floors.

    Args:
        entries: of a call. calls: that a step makes. latents: bytes of the latents.
    """
    found = sum(_record_bytes(entry) for entry in entries)
    sketch, bins = 4 * Geometry(1, 1 << 20).size, 4 * 64
    return calls * found + LOOP_VALUES * (latents + sketch + bins + RECORD + FLOOR + 3 * TENSOR) + 3 * RECORD


def _record_bytes(entry: Entry) -> int:
    if entry.kind != "tensor":
        return RECORD // 2
    g = Geometry(*entry.frame)
    floor = FLOOR + TENSOR + 4 * g.bins
    sketch = 0 if entry.site.endswith(f"@{PADDING}") else TENSOR + 4 * g.size
    return RECORD + sketch + floor


def _block(entries: Iterable[Entry]) -> tuple[int, int]:
    """Bytes of the block's own inputs and outputs, and of the largest of the modules in it."""
    sizes: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        module, _, port = entry.site.partition(":")
        port = port.partition("@")[0]
        if entry.kind == "tensor" and (module, port) not in seen:
            seen.add((module, port))
            width = WIDTHS.get(entry.dtype, 4)
            sizes[module] = sizes.get(module, 0) + width * math.prod(entry.shape)
    own = sizes.pop("transformer_blocks.0")
    return own, max(sizes.values(), default=0)
