"""Reading an optimised HLO program's text: its computations, their instructions, shapes and the module of each.

The text is the compiler's own (`compiled.as_text()`); only what the figures need is read: names, shapes, opcodes,
operands, called computations, precision, window, dimension labels and `op_name`. The grammar is that of XLA's
`HloModule::ToString`; an instruction that does not fit it is an error, never left out of a count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

BYTES = {
    "pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4,
    "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
"""Bytes of an element, by dtype as HLO writes it; one of another kind (tokens, float8) counts one."""

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_LINE = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r"[a-z][\w\-]*\(")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"(?:calls|to_apply|body|condition|called_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"/\*.*?\*/")
_PLACE = re.compile(r"S\(\d+\)")


class HloError(ValueError):
    """A text that is no HLO program as this module knows it; says which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    Attributes:
        name: of it. shape: as the text has it, layout included, without the memory that it was placed in.
        opcode: `fusion`, `convolution`. operands: names of instructions. inside: the text between the parentheses.
        attributes: the rest of the line. root: whether it is what its computation gives back.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    inside: str
    attributes: str
    root: bool = False

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        return tuple(name for found in _CALLS.findall(self.attributes) for name in _OPERAND.findall(found))

    @property
    def op_name(self) -> str:
        """Where it comes from, scopes first: `jit(traced)/proj_out/linear/dot_general`; empty where that is unknown."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(dtype, dimensions) of each array of its shape."""
        return arrays_of(self.shape)

    @property
    def bytes(self) -> int:
        """Of its shape, without padding."""
        return sum(BYTES.get(dtype, 1) * math.prod(dims) for dtype, dims in self.arrays)

    def attribute(self, name: str) -> str:
        """The value of `name=...`, braces left out; empty where there is none."""
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return found[1].strip("{}") if found else ""


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its name, its instructions in order, and whether the program begins with it."""

    name: str
    instructions: tuple[Instruction, ...]
    entry: bool = False

    @property
    def by_name(self) -> Mapping[str, Instruction]:
        return {i.name: i for i in self.instructions}

    @property
    def root(self) -> Instruction:
        return next((i for i in self.instructions if i.root), self.instructions[-1])


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program: its computations by name."""

    computations: Mapping[str, Computation]

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction with the computation that holds it, fused ones included."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                yield computation, instruction

    def units(self) -> Iterator[tuple[Computation, Instruction]]:
        """What is executed as one: the instructions of computations that are no fusion's and no reduction's."""
        inner = {name for _, i in self.instructions() if i.opcode not in CONTROL for name in i.calls}
        for computation, instruction in self.instructions():
            if computation.name not in inner:
                yield computation, instruction

    def within(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """An instruction and, of a fusion, all that is fused."""
        yield computation, instruction
        if instruction.opcode in CONTROL:
            return
        for name in instruction.calls:
            called = self.computations[name]
            for inner in called.instructions:
                yield from self.within(called, inner)


CONTROL = ("while", "conditional", "call", "async-start")
"""Instructions whose called computations are executed one instruction after the other."""


def parse(text: str) -> Program:
    """Read a program.

    Raises:
        HloError: a line inside a computation is no instruction, or there is no computation.
    """
    computations: dict[str, Computation] = {}
    name, entry, instructions = "", False, list[Instruction]()
    for number, line in _whole_lines(text):
        head = _HEAD.match(line) if not name else None
        if head is not None and not line.startswith("HloModule"):
            name, entry, instructions = head["name"], bool(head["entry"]), []
        elif name and line.startswith("}"):
            computations[name] = Computation(name, tuple(instructions), entry)
            name = ""
        elif name and line.strip():
            instructions.append(_instruction(line, number))
    if not computations:
        raise HloError("no computation in the compiled program's text")
    return Program(computations)


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """The text's lines by number; an instruction that goes on over several, as a kernel's attributes do, as one."""
    open_, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if open_:
            open_ += " " + line
        elif _LINE.match(line) and line.count("{") > line.count("}"):
            open_, began = line, number
        else:
            yield number, line
            continue
        if open_.count("{") <= open_.count("}"):
            yield began, open_
            open_ = ""
    if open_:
        yield began, open_


def arrays_of(shape: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(dtype, dimensions) of each array in a shape's text."""
    bare = re.sub(r"\{[^}]*\}", "", shape)
    sizes = ((dtype, dims.replace("<=", "")) for dtype, dims in _ARRAY.findall(bare))
    return tuple((dtype, tuple(int(d) for d in dims.split(",") if d)) for dtype, dims in sizes)


def module_of(op_name: str, modules: frozenset[str]) -> str:
    """The innermost module in an operation's scopes; empty for none.

    Args:
        modules: paths. A scope is a path's part below the module around it.
    """
    path = ""
    for part in op_name.split("/"):
        inner = f"{path}.{part}" if path else part
        if inner in modules:
            path = inner
    return path


def _instruction(line: str, number: int) -> Instruction:
    found = _LINE.match(_COMMENT.sub("", line))
    if found is None:
        raise HloError(f"line {number} of the compiled program's text is no instruction: {line.strip()[:80]}")
    rest = found["rest"]
    cut = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ") if " " in rest else -1
    shape, rest = rest[:cut], rest[cut:].lstrip()
    opcode = _OPCODE.match(rest)
    if cut <= 0 or opcode is None:
        raise HloError(f"line {number} of the compiled program's text is no instruction: {line.strip()[:80]}")
    opening = len(opcode[0]) - 1
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    return Instruction(
        name=found["name"],
        shape=_PLACE.sub("", shape),
        opcode=rest[:opening],
        operands=tuple(_OPERAND.findall(inside)),
        inside=inside,
        attributes=rest[closing + 1 :].lstrip(", "),
        root=bool(found["root"]),
    )


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` is closed; quotes are not looked into, HLO writes none before it."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)
