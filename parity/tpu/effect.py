"""Two compiled programs side by side: which of the units that multiply are the same.

A unit is a fusion with a product, a product on its own, or a call of a kernel: what decides how a result is rounded.
Two units are the same where their expressions are (`parity.tpu.expression`): opcodes, shapes, layouts and attributes
from the root down to the parameters, whatever the names, the order of the lines or the memory that a tensor was placed
in. A unit of the first program that is not in the second may be there with other borders: cut where a tensor is
observed that it would not have written to memory, or longer where one is not read from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.tpu.expression import Node, begins_later, cut, expression, text
from parity.tpu.hlo import Program, module_of
from parity.tpu.products import PRODUCTS, is_kernel, pattern_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What became of the units that multiply, from one program to another.

    Attributes:
        before, after: how many each program has. same: those that both have.
        cut: patterns of the modules whose units have other borders in the other program, with how many: the same
            operations around the same products, more or fewer of them. changed: of those whose units are not in it.
    """

    before: int
    after: int
    same: int
    cut: tuple[tuple[str, int], ...]
    changed: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A unit that multiplies: its expression, that as text, its module, and how many products it has."""

    root: Node
    text: str
    module: str
    products: int


def effect(before: Program, after: Program, modules: frozenset[str]) -> Effect:
    """Compare the units that multiply."""
    ours, theirs = _units(before, modules), _units(after, modules)
    same = Counter(u.text for u in ours) & Counter(u.text for u in theirs)
    lost, others = _without(ours, same), _without(theirs, same)
    parts: list[_Unit] = []
    gone: list[_Unit] = []
    for unit in lost:
        part = next((o for o in others if _moved(unit, o)), None)
        if part is not None:
            others.remove(part)
        (gone if part is None else parts).append(unit)
    return Effect(
        before=len(ours), after=len(theirs), same=same.total(), cut=_by_module(parts), changed=_by_module(gone)
    )


def _moved(ours: _Unit, theirs: _Unit) -> bool:
    """Whether theirs is a part of ours, or ours with what one of its tensors is made of; all products included."""
    return ours.products == theirs.products and (cut(theirs.root, ours.root) or begins_later(theirs.root, ours.root))


def _without(units: Sequence[_Unit], same: Counter[str]) -> list[_Unit]:
    """The units that are left when the same ones are taken away."""
    open_ = Counter(same)
    left = []
    for unit in units:
        if open_[unit.text]:
            open_[unit.text] -= 1
        else:
            left.append(unit)
    return left


def _by_module(units: Iterable[_Unit]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(pattern_of(unit.module) for unit in units).items())


def _units(program: Program, modules: frozenset[str]) -> list[_Unit]:
    """The units that multiply."""
    found = []
    for computation, unit in program.units():
        inside = [i for _, i in program.within(computation, unit)]
        products = [i for i in inside if i.opcode in PRODUCTS or is_kernel(i)]
        if products:
            root = expression(program, computation, unit)
            module = module_of(products[0].op_name, modules)
            found.append(_Unit(root=root, text=text(root), module=module, products=len(products)))
    return found
