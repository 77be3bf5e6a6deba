"""What a unit of a compiled program computes, as an expression over what it reads.

Problem. The same arithmetic is written in many ways: under other names, in another order of a fusion's parameters, with
some of it in a fusion of its own inside. And a fusion may end earlier in one program than in another, because a tensor
in the middle is read by somebody else there.

How. Nested fusions are replaced by what they compute, so that an expression is a graph of operations whose leaves are
the unit's own operands. Two units are the same where these graphs are. A unit is *cut* out of another where its graph
is a part of the other's: it begins at tensors that the other computes itself, or that lie otherwise in memory there, or
ends at one that the other goes on with.

Cost. One node for each fused instruction; a text of them for each unit, and a walk for each pair that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.tpu.hlo import Computation, Instruction, Program
from parity.tpu.products import is_kernel, kernel_name

_ASIDE = re.compile(
    r",? ?\b(?:metadata|backend_config|frontend_attributes|calls|to_apply|sharding|control-predecessors)="
)
_LEAF = ""
"""The operation of a leaf."""
_MOVES = ("bitcast", "copy")
"""Operations that compute nothing: a tensor in another layout."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation; two of them are equal only where they are the same object.

    Attributes:
        operation: opcode, attributes and, of a constant, its value; empty for a tensor that the unit is given.
        shape: of its result, layout included. operands: what it is applied to.
    """

    operation: str
    shape: str
    operands: tuple[Node, ...] = ()

    @property
    def leaf(self) -> bool:
        """Whether it is a tensor that the unit is given, be it moved."""
        node = self
        while node.operation.partition(" ")[0] in _MOVES:
            node = node.operands[0]
        return node.operation == _LEAF


def expression(program: Program, computation: Computation, unit: Instruction) -> Node:
    """What a unit computes: a fusion, a kernel, or an operation on its own."""
    by_name = computation.by_name
    given = {name: Node(_LEAF, by_name[name].shape) for name in unit.operands if name in by_name}
    return _applied(program, unit, [given[name] for name in unit.operands if name in given])


def text(root: Node) -> str:
    """The expression, one line for each node from the leaves on; equal for equal expressions alone."""
    numbers: dict[Node, int] = {}
    lines = []
    for node in nodes(root):
        numbers[node] = len(numbers)
        operands = ",".join(str(numbers[o]) for o in node.operands)
        lines.append(f"{node.operation}({operands}) {node.shape}")
    return "\n".join(lines)


def nodes(root: Node) -> Iterator[Node]:
    """Every node once, operands before what is applied to them."""
    done: set[Node] = set()
    pending = [root]
    while pending:
        node = pending[-1]
        missing = [o for o in node.operands if o not in done]
        if node in done or missing:
            pending.pop() if node in done else pending.extend(reversed(missing))
            continue
        pending.pop()
        done.add(node)
        yield node


def cut(part: Node, whole: Node) -> bool:
    """Whether `part` is a piece of `whole`: the same operations, from some of its tensors to one of them.

    A tensor that `part` is given must have the dtype and the dimensions that it has inside `whole`: a cast that stands
    before a unit's end, and not in the other, would round.
    """
    return not part.leaf and any(begins_later(node, part) for node in nodes(whole))


def begins_later(whole: Node, part: Node) -> bool:
    """Whether `part` is `whole` with some of its tensors given instead of computed, to the same end."""
    met: dict[Node, Node] = {}
    pending = [(whole, part)]
    while pending:
        theirs, ours = pending.pop()
        if ours in met:
            if met[ours] is not theirs:
                return False
            continue
        met[ours] = theirs
        if ours.leaf:
            if _sizes(ours.shape) != _sizes(theirs.shape):
                return False
            continue
        same = ours.operation == theirs.operation and ours.shape == theirs.shape
        if not same or len(ours.operands) != len(theirs.operands):
            return False
        pending.extend(zip(theirs.operands, ours.operands, strict=True))
    return True


def _sizes(shape: str) -> str:
    """A shape without its layout."""
    return re.sub(r"\{[^}]*\}", "", shape)


def _applied(program: Program, instruction: Instruction, operands: Sequence[Node]) -> Node:
    """An instruction applied to nodes; of a fusion, what it computes."""
    if is_kernel(instruction):
        return Node(kernel_name(instruction), instruction.shape, tuple(operands))
    if instruction.opcode == "fusion" and instruction.calls:
        return _inside(program, program.computations[instruction.calls[0]], operands)
    if instruction.opcode == "get-tuple-element" and operands and operands[0].operation.startswith("tuple "):
        return operands[0].operands[int(instruction.attribute("index"))]
    constant = instruction.inside if instruction.opcode == "constant" else ""
    called = "".join(f"<{_called(program, name)}>" for name in instruction.calls)
    operation = f"{instruction.opcode} {constant} {_attributes(instruction)} {called}"
    return Node(operation, instruction.shape, tuple(operands))


def _called(program: Program, name: str) -> str:
    """A computation that an instruction calls for each element, as text."""
    computation = program.computations[name]
    parameters = [i for i in computation.instructions if i.opcode == "parameter"]
    by_number = sorted(parameters, key=lambda i: int(i.inside))
    return text(_inside(program, computation, [Node(f"parameter {i.inside}", i.shape) for i in by_number]))


def _inside(program: Program, computation: Computation, operands: Sequence[Node]) -> Node:
    """The root of a computation whose parameters are these nodes; its text has operands before what reads them."""
    values: dict[str, Node] = {}
    for i in computation.instructions:
        if i.opcode == "parameter":
            values[i.name] = operands[int(i.inside)]
        else:
            values[i.name] = _applied(program, i, [values[name] for name in i.operands if name in values])
    return values[computation.root.name]


def _attributes(instruction: Instruction) -> str:
    """The attributes that say what is computed."""
    return _ASIDE.split(instruction.attributes, maxsplit=1)[0].strip(", ")
