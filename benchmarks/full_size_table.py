"""docs/full-size.md from the outcomes of `full_size.py`: what was compiled, what follows, what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version

from full_size_cases import DEPTHS, Case, Outcome, Program
from full_size_models import Model
from full_size_plan import Plan

from parity.paths.floors import SEEDS
from parity.tpu.chips import topology
from parity.tpu.refusal import GIB, size

STEPS = 50
"""Of the golden whose size is given."""

HEAD = """# Full size

Printed by `make full-size`: the transformers of two models as their checkpoints have them, compiled with `parity
compile` for TPUs that were not there (see [compile.md](compile.md)). Nothing ran: memory, bytes and collectives are the
compiler's figures, of one device. Weights and activations are bfloat16, attention is splash.

Programs of {few} and {more} blocks are compiled; figures of the whole model are theirs and the difference of a block
times the rest. *Units* are what multiplies: fusions with a product, products, kernels; those that the observed program
(`--sites blocks`, the default) has unchanged, and those that it has cut at a tensor that is observed, of those of the
unobserved one. `-`: not measured.

"""

COMPILED = """## Compiled

| model | for | mesh | splash's blocks | depth | compiles | temporaries, observed | bytes accessed, observed | units |
|---|---|---|---|---|---|---|---|---|
"""

WHOLE = """
## The whole model

A device's memory is arguments (weights, inputs), temporaries, output and code together.

| model | for | mesh | splash's blocks | blocks | memory, observed | of | bytes accessed, observed | collectives |
|---|---|---|---|---|---|---|---|---|
"""

PLANNED = """By the plan of `--sites blocks`, from a trace of shapes. A golden of {steps} steps has the records of both
branches with their floors, and of each step the latents before and after it and its predictions as they are. Floors
need the reference in float32, a copy in float64 for the free run, and {seeds} perturbed runs one after the other with
the reference's weights: the weights of both are given. A local pass runs one module at a time: given are a block's
weights, its inputs and outputs and those of the largest module in it, all in float64.

| model | parameters | records a step | golden | floors' weights | local pass of a block |
|---|---|---|---|---|---|
"""


def document(
    cases: Mapping[str, Case], models: Mapping[str, Model], outcomes: Mapping[str, Outcome], plans: Mapping[str, Plan]
) -> str:
    """The whole document."""
    few, more = DEPTHS
    lines = [HEAD.format(few=few, more=more), COMPILED]
    lines += [f"{row}\n" for case in cases.values() for row in _compiled(case, models, outcomes)]
    lines += [WHOLE, *(f"{_whole(case, models, outcomes)}\n" for case in cases.values() if _any(case, outcomes))]
    lines += _missing(cases, outcomes)
    lines += ["\n## Goldens, floors and local passes\n\n", *_plans(models, plans)]
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "libtpu", "torch", "torchax", "diffusers"))
    return "".join([*lines, f"\nCompiled with {packages}.\n"])


def _any(case: Case, outcomes: Mapping[str, Outcome]) -> bool:
    return any(f"{case.name} {depth}" in outcomes for depth in DEPTHS)


def _missing(cases: Mapping[str, Case], outcomes: Mapping[str, Outcome]) -> list[str]:
    left = [case.name for case in cases.values() if not _any(case, outcomes)]
    if not left:
        return []
    return [f"\nNot measured: {len(left)} of {len(cases)} cases, ", ", ".join(f"`{name}`" for name in left), ".\n"]


def _compiled(case: Case, models: Mapping[str, Model], outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """A row for each depth that was compiled; `--depth` asks for others than the two."""
    for found in sorted((o for o in outcomes.values() if o.case == case.name), key=lambda o: o.depth):
        cells = [models[case.model].title, case.topology, case.axes, case.tiles, str(found.depth), *_cells(found)]
        yield f"| {' | '.join(cells)} |"


def _cells(found: Outcome) -> list[str]:
    """Compiles, temporaries, bytes, units."""
    if found.plain is None or found.observed is None:
        return [f"not told: {found.failed}", "-", "-", "-"]
    refusal = found.plain.refusal or (found.observed.refusal and f"observed: {found.observed.refusal}")
    if refusal:
        return [f"no: {refusal}", "-", "-", "-"]
    before, after = (p.memory["temporaries"] for p in (found.plain, found.observed))
    read, more = found.plain.accessed, found.observed.accessed
    return [
        "yes",
        f"{size(before)}, {size(after)} ({after / max(before, 1):.2f} x)",
        f"{read / 1e9:.1f} GB, {more / 1e9:.1f} GB ({more / max(read, 1):.2f} x)",
        f"{found.units[1]} and {found.units[2] if found.units[2] >= 0 else '-'} of {found.units[0]}",
    ]


def _whole(case: Case, models: Mapping[str, Model], outcomes: Mapping[str, Outcome]) -> str:
    """One row of the whole model."""
    model, chip = models[case.model], topology(case.topology).chip
    few, more = (outcomes.get(f"{case.name} {depth}") for depth in DEPTHS)
    cells = [model.title, case.topology, case.axes, case.tiles, str(model.blocks)]
    pairs = [(getattr(few, name, None), getattr(more, name, None)) for name in ("plain", "observed")]
    plain, observed = (_extended(a, b, model.blocks) for a, b in pairs)
    if plain is None or observed is None:
        return f"| {' | '.join([*cells, '-', '-', '-', '-'])} |"
    sent = ", ".join(f"{kind} {count}, {size(held)}" for kind, (count, held) in plain.collectives.items()) or "none"
    cells += [
        f"{size(_total(plain))}, {size(_total(observed))}",
        size(chip.memory // chip.cores),
        f"{plain.accessed / 1e9:.0f} GB, {observed.accessed / 1e9:.0f} GB "
        f"({observed.accessed / max(plain.accessed, 1):.2f} x)",
        sent,
    ]
    return f"| {' | '.join(cells)} |"


def _extended(few: Program | None, more: Program | None, blocks: int) -> Program | None:
    """A program of that many blocks, by the difference of two depths."""
    if few is None or more is None or few.refusal or more.refusal:
        return None
    times = (blocks - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])

    def beyond(a: int, b: int) -> int:
        return round(a + times * (b - a))

    return Program(
        memory={name: beyond(n, more.memory[name]) for name, n in few.memory.items()},
        accessed=beyond(few.accessed, more.accessed),
        flops=beyond(few.flops, more.flops),
        collectives={
            kind: (beyond(few.collectives.get(kind, (0, 0))[0], n), beyond(few.collectives.get(kind, (0, 0))[1], held))
            for kind, (n, held) in more.collectives.items()
        },
    )


def _total(program: Program) -> int:
    memory = program.memory
    return sum(memory[name] for name in ("arguments", "temporaries", "output", "code")) - memory["aliased"]


def _plans(models: Mapping[str, Model], plans: Mapping[str, Plan]) -> Iterator[str]:
    yield PLANNED.format(steps=STEPS, seeds=SEEDS)
    for name, plan in plans.items():
        wide = 8 * plan.block_parameters + 4 * (plan.block_ports + plan.block_inner)  # bfloat16 is two bytes
        yield (
            f"| {models[name].title} | {plan.parameters / 1e9:.2f} billion | {plan.records:,} | "
            f"{STEPS * plan.step_bytes / 1e9:.1f} GB | {12 * plan.parameters / GIB:.0f} GiB | {wide / GIB:.1f} GiB |\n"
        )
