"""What a compiled program sends between its devices: by kind, how often and how much."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from parity.tpu.hlo import BYTES, Instruction, Program

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
         "collective-broadcast")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind: how many, and the bytes of their results on a device."""

    kind: str
    count: int
    bytes: int


def collectives(program: Program) -> tuple[Collective, ...]:
    """The collectives of a program by kind, in the order of `KINDS`; one that is begun and ended counts once."""
    found: dict[str, list[int]] = defaultdict(list)
    for _, instruction in program.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind in KINDS:
            found[kind].append(_bytes(instruction))
    return tuple(Collective(kind, len(found[kind]), sum(found[kind])) for kind in KINDS if kind in found)


def _bytes(instruction: Instruction) -> int:
    """Of the result; what is begun has its operand beside it, but for an all-reduce's."""
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        return max(_of(array) for array in instruction.arrays)
    return instruction.bytes


def _of(array: tuple[str, tuple[int, ...]]) -> int:
    size = BYTES.get(array[0], 1)
    for d in array[1]:
        size *= d
    return size
