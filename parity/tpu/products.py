"""What a compiled program multiplies, and how exactly: by module, from the optimised HLO.

On a TPU a product of float32 operands is made of bfloat16 passes: one where no precision is asked for (the operands are
rounded to bfloat16), three for `high`, six for `highest`. The optimised program says which in `operand_precision`. A
batched product is written as a convolution over a dilated window there, of which one element a row counts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from parity.tpu.hlo import Computation, Instruction, Program, module_of

PRODUCTS = ("convolution", "dot", "ragged-dot")
KERNEL = "tpu_custom_call"
"""The target of a Pallas kernel's call."""

PASSES = {"highest": 6, "high": 3}
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product.

    Attributes:
        module: that it belongs to, its path; empty for none. dtype: of its operands. result: of its result.
        passes: bfloat16 passes. flops: of one pass, by its shapes. fused: whether a fusion holds it.
    """

    module: str
    dtype: str
    result: str
    passes: int
    flops: int
    fused: bool

    @property
    def precision(self) -> str:
        """In words."""
        if self.dtype != "f32":
            return f"{self.dtype}, one pass"
        return {1: "float32 rounded to bfloat16, one pass", 3: "float32, three passes"}.get(
            self.passes, "float32, six passes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Calls of one Pallas kernel: its name, its modules' pattern, how many, and their flops, 0 where unknown."""

    name: str
    module: str
    count: int
    flops: int


def products(program: Program, modules: frozenset[str]) -> tuple[Product, ...]:
    """Every product of a program outside kernels, in its order."""
    found = []
    for unit_in, unit in program.units():
        for computation, instruction in program.within(unit_in, unit):
            if instruction.opcode in PRODUCTS:
                found.append(_product(computation, instruction, modules, instruction is not unit))
    return tuple(found)


def kernels(program: Program, modules: frozenset[str]) -> tuple[Kernel, ...]:
    """The Pallas kernels of a program, by name and module."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for computation, instruction in program.instructions():
        if is_kernel(instruction):
            path = module_of(instruction.op_name, modules)
            counts[kernel_name(instruction), pattern_of(path)].append(_kernel_flops(computation, instruction))
    return tuple(Kernel(name=n, module=m, count=len(f), flops=sum(f)) for (n, m), f in counts.items())


def is_kernel(instruction: Instruction) -> bool:
    """Whether an instruction calls a Pallas kernel."""
    return instruction.opcode == "custom-call" and f'custom_call_target="{KERNEL}"' in instruction.attributes


def kernel_name(instruction: Instruction) -> str:
    """The name that its author gave it, or that of the instruction."""
    found = re.search(r'kernel_name[="\\: ]+([\w.\-]+)', instruction.attributes)
    return found[1] if found else re.sub(r"\.\d+$", "", instruction.name)


def pattern_of(path: str) -> str:
    """A module's path with its indices left open: `transformer_blocks.*.attn`."""
    return _INDEX.sub("*", path)


def grouped(found: tuple[Product, ...]) -> Iterator[tuple[str, str, int, int]]:
    """(pattern of modules, precision in words, number, flops) in order of appearance."""
    groups: dict[tuple[str, str], list[Product]] = defaultdict(list)
    for product in found:
        groups[pattern_of(product.module), product.precision].append(product)
    for (pattern, precision), members in groups.items():
        yield pattern, precision, len(members), sum(p.flops for p in members)


def _product(computation: Computation, instruction: Instruction, modules: frozenset[str], fused: bool) -> Product:
    by_name = computation.by_name
    operands = [by_name[name] for name in instruction.operands if name in by_name]
    dtypes = [o.arrays[0][0] for o in operands if o.arrays]
    asked = re.findall(r"highest|high|default", instruction.attribute("operand_precision"))
    wide = "f32" in dtypes
    return Product(
        module=module_of(instruction.op_name, modules),
        dtype="f32" if wide else dtypes[0] if dtypes else "",
        result=instruction.arrays[0][0],
        passes=max((PASSES.get(a, 1) for a in asked), default=1) if wide else 1,
        flops=_flops(instruction, operands),
        fused=fused,
    )


def _flops(instruction: Instruction, operands: list[Instruction]) -> int:
    """Multiplications and additions: twice the result's elements times the length of the sum."""
    out = math.prod(instruction.arrays[0][1])
    if len(operands) < 2 or not operands[1].arrays:
        return 0
    right = operands[1].arrays[0][1]
    if instruction.opcode != "convolution":
        contracted = [int(d) for d in instruction.attribute("lhs_contracting_dims").split(",") if d]
        left = operands[0].arrays[0][1]
        return 2 * out * math.prod(left[d] for d in contracted)
    labels = instruction.attribute("dim_labels").partition("_")[2].partition("->")[0]
    kept = right[labels.index("o")] if "o" in labels and len(labels) == len(right) else 1
    return 2 * out * math.prod(right) // max(kept * _idle(instruction), 1)


def _idle(instruction: Instruction) -> int:
    """How many times larger a window is than what of it counts: a batch written as a dilated window."""
    window = instruction.attribute("window")
    sizes = re.search(r"size=([\dx]+)", window)
    dilation = re.search(r"(?:lhs|rhs)_dilate=([\dx]+)", window)
    if sizes is None or dilation is None:
        return 1
    pairs = zip(sizes[1].split("x"), dilation[1].split("x"), strict=True)
    return math.prod(int(size) for size, dilated in pairs if size == dilated)


def _kernel_flops(computation: Computation, instruction: Instruction) -> int:
    """Of splash attention: two products of queries and keys for each head; 0 for a kernel that is not known."""
    if "splash" not in instruction.op_name + instruction.attributes[:2000] + instruction.name:
        return 0
    by_name = computation.by_name
    shapes = [by_name[o].arrays[0][1] for o in instruction.operands if o in by_name and by_name[o].arrays]
    wide = [shape for shape in shapes if len(shape) in (3, 4) and min(shape[-2:]) > 1]
    if len(wide) < 2:
        return 0
    (*heads, rows, width), keys = wide[0], wide[1][-2]
    return 4 * math.prod(heads) * rows * keys * width
