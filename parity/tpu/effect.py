"""Two compiled programs side by side: which of the units that multiply are the same.

A unit is a fusion with a product, a product on its own, or a call of a kernel: what decides how a result is rounded.
Two units are the same where their expressions are: opcodes, shapes, layouts and attributes from the root down to the
parameters, whatever the names, the order of the lines or the memory that a tensor was placed in.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from parity.tpu.hlo import Computation, Instruction, Program, module_of
from parity.tpu.products import PRODUCTS, is_kernel, kernel_name, pattern_of

_ASIDE = re.compile(
    r",? ?\b(?:metadata|backend_config|frontend_attributes|calls|to_apply|sharding|control-predecessors)="
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What became of the units that multiply, from one program to another.

    Attributes:
        before, after: how many each program has. same: those that both have.
        changed: patterns of the modules whose units are not in the other program, with how many.
    """

    before: int
    after: int
    same: int
    changed: tuple[tuple[str, int], ...]


def effect(before: Program, after: Program, modules: frozenset[str]) -> Effect:
    """Compare the units that multiply."""
    ours, theirs = _units(before, modules), _units(after, modules)
    left = Counter(key for key, _ in ours)
    same = left & Counter(key for key, _ in theirs)
    lost, open_ = Counter[str](), Counter(same)
    for key, module in ours:
        if open_[key]:
            open_[key] -= 1
        else:
            lost[pattern_of(module)] += 1
    return Effect(before=len(ours), after=len(theirs), same=same.total(), changed=tuple(lost.items()))


def _units(program: Program, modules: frozenset[str]) -> list[tuple[str, str]]:
    """(canonical text, module) of each unit that multiplies."""
    found = []
    for computation, unit in program.units():
        inside = [i for _, i in program.within(computation, unit)]
        product = next((i for i in inside if i.opcode in PRODUCTS or is_kernel(i)), None)
        if product is not None:
            found.append((_canonical(program, computation, unit), module_of(product.op_name, modules)))
    return found


def _canonical(program: Program, computation: Computation, unit: Instruction) -> str:
    """A text that two units share where they compute the same from the same shapes."""
    by_name = computation.by_name
    operands = " ".join(by_name[o].shape for o in unit.operands if o in by_name)
    if is_kernel(unit):
        return f"{kernel_name(unit)} {unit.shape} of {operands}"
    if not unit.calls:
        return f"{unit.opcode} {unit.shape} {_attributes(unit)} of {operands}"
    return f"{unit.attribute('kind')} {unit.shape} " + "; ".join(
        _expression(program, program.computations[name]) for name in unit.calls
    )


def _expression(program: Program, computation: Computation) -> str:
    """A computation from its root down, instructions numbered as they are come to."""
    by_name = computation.by_name
    numbers: dict[str, int] = {}
    lines: list[str] = []
    pending = [computation.root.name]
    while pending:
        name = pending[-1]
        instruction = by_name[name]
        missing = [o for o in instruction.operands if o in by_name and o not in numbers]
        if name in numbers or missing:
            pending.pop() if name in numbers else pending.extend(reversed(missing))
            continue
        pending.pop()
        numbers[name] = len(numbers)
        operands = ",".join(str(numbers[o]) for o in instruction.operands if o in by_name)
        inside = instruction.inside if instruction.opcode == "constant" else ""
        inner = "".join(f"<{_expression(program, program.computations[c])}>" for c in instruction.calls)
        attributes = _attributes(instruction)
        lines.append(f"{instruction.opcode}({operands}){inside} {instruction.shape} {attributes}{inner}")
    return "\n".join(lines)


def _attributes(instruction: Instruction) -> str:
    """The attributes that say what is computed."""
    return _ASIDE.split(instruction.attributes, maxsplit=1)[0].strip(", ")
