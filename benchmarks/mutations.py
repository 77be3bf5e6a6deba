"""Mechanical changes of a class's source, for faults that nobody chose.

An operator looks at one syntax node and yields the ways to change it. A site is one such way at one node inside a
`forward` or `__call__`. Sites are counted in the order of the source, so that a seed draws the same ones everywhere.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

METHODS = ("forward", "__call__")
DIMS = ("cat", "chunk", "flatten", "permute", "stack", "transpose", "unbind", "unflatten", "unsqueeze")
"""Functions of torch whose integers are dimensions."""
ROUNDED = "_rounded_to_bfloat16"
"""The function that a mutated module needs among its globals: `x.to(torch.bfloat16).to(x.dtype)`."""

Edit = tuple[ast.AST, Callable[[], Any]]
"""The node to show for a change, and what makes the change in place."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One possible change.

    Attributes:
        operator: of `OPERATORS`. kind, method: class and method that it changes. line: in the source file.
        node: number of the node in the method's body. edit: number of the operator's edit of that node.
    """

    operator: str
    kind: str
    method: str
    line: int
    node: int
    edit: int

    @property
    def name(self) -> str:
        """Unique in a file."""
        return f"{self.operator} {self.kind}.{self.method}:{self.line} {self.node}.{self.edit}"


def sites(tree: ast.Module, reached: Collection[int]) -> list[Site]:
    """Every site on a line that runs."""
    return [
        Site(operator=operator, kind=kind, method=method, line=shown.lineno, node=number, edit=edit)
        for kind, method, nodes in _methods(tree)
        for number, node in enumerate(nodes)
        for operator, edits in OPERATORS.items()
        for edit, (shown, _) in enumerate(edits(node))
        if isinstance(shown, ast.expr | ast.stmt)
        if any(line in reached for line in range(shown.lineno, (shown.end_lineno or shown.lineno) + 1))
    ]


def mutated(tree: ast.Module, site: Site) -> tuple[ast.Module, str]:
    """The tree with one change, and the change as `before -> after`."""
    changed = copy.deepcopy(tree)
    nodes = next(n for kind, method, n in _methods(changed) if (kind, method) == (site.kind, site.method))
    shown, apply = list(OPERATORS[site.operator](nodes[site.node]))[site.edit]
    before = ast.unparse(shown).partition("\n")[0]  # of an `if`, its condition
    apply()
    after = ast.unparse(shown).partition("\n")[0]
    return ast.fix_missing_locations(changed), f"{before} -> {after}"


def _methods(tree: ast.Module) -> Iterator[tuple[str, str, list[ast.AST]]]:
    for kind in tree.body:
        if isinstance(kind, ast.ClassDef):
            for method in kind.body:
                if isinstance(method, ast.FunctionDef) and method.name in METHODS:
                    yield kind.name, method.name, [n for statement in method.body for n in ast.walk(statement)]


# --- operators


def _drop_keyword(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield node, partial(node.keywords.pop, number)


def _swap_arguments(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for number, (one, two) in enumerate(pairwise(node.args)):
            starred = isinstance(one, ast.Starred) or isinstance(two, ast.Starred)
            if not starred and not (_of_dims(node) and _integer(one) and _integer(two)):
                yield node, partial(_swap, node.args, number)


def _negate(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, partial(setattr, node, "value", not node.value)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node, partial(setattr, node, "test", ast.UnaryOp(ast.Not(), node.test))


def _move_dims(node: ast.AST) -> Iterator[Edit]:
    """Two neighbours change places; a single dimension moves by one."""
    if not isinstance(node, ast.Call) or not _of_dims(node):
        return
    sizes = [x for x in node.args if isinstance(x, ast.Tuple) and len(x.elts) > 1]
    for elements in [node.args, *(x.elts for x in sizes)]:
        for number, (one, two) in enumerate(pairwise(elements)):
            if elements is not node.args or (_integer(one) and _integer(two)):
                yield node, partial(_swap, elements, number)
    alone = [(node.args, number) for number, x in enumerate(node.args) if _integer(x)]
    if len(alone) == 1:
        elements, number = alone[0]
        yield node, partial(elements.__setitem__, number, _moved(elements[number]))
    for keyword in node.keywords:
        if keyword.arg == "dim" and _integer(keyword.value):
            yield node, partial(setattr, keyword, "value", _moved(keyword.value))


def _shift_slice(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Slice):
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            if bound is not None:
                yield node, partial(setattr, node, side, ast.BinOp(bound, ast.Add(), ast.Constant(1)))


def _round(node: ast.AST) -> Iterator[Edit]:
    for value, put in _values(node):
        yield node, partial(put, ast.Call(ast.Name(ROUNDED, ast.Load()), [value], []))


def _scale(node: ast.AST) -> Iterator[Edit]:
    for value, put in _values(node):
        yield node, partial(put, ast.BinOp(value, ast.Mult(), ast.Constant(1.01)))
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value:
        yield node, partial(setattr, node, "value", node.value * 1.01)
    if isinstance(node, ast.BinOp):
        for operand in (node.left, node.right):
            if isinstance(operand, ast.Constant) and type(operand.value) is int and operand.value:
                yield node, partial(setattr, operand, "value", operand.value * 1.01)


def _swap_sign(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        yield node, partial(setattr, node, "op", ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


OPERATORS: Mapping[str, Callable[[ast.AST], Iterator[Edit]]] = {
    "drop keyword": _drop_keyword,
    "swap arguments": _swap_arguments,
    "negate": _negate,
    "move dims": _move_dims,
    "shift slice": _shift_slice,
    "round to bfloat16": _round,
    "scale by 1.01": _scale,
    "swap + and -": _swap_sign,
}


def _values(node: ast.AST) -> Iterator[tuple[ast.expr, Callable[[ast.expr], None]]]:
    """What an assignment or a return gives, each value of a tuple by itself, with what puts another in its place."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.Return) or node.value is None:
        return
    computed = (ast.Call, ast.BinOp, ast.Subscript, ast.Name, ast.UnaryOp, ast.IfExp)
    if isinstance(node.value, ast.Tuple):
        for number, value in enumerate(node.value.elts):
            if isinstance(value, computed):
                yield value, partial(node.value.elts.__setitem__, number)
    elif isinstance(node.value, computed) and not (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    ):
        yield node.value, partial(setattr, node, "value")


def _swap(items: list[ast.expr], number: int) -> None:
    items[number], items[number + 1] = items[number + 1], items[number]


def _of_dims(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in DIMS


def _integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.UnaryOp) and ast.unparse(node).lstrip("-").isdigit()


def _moved(dim: ast.expr) -> ast.Constant:
    value = int(ast.unparse(dim))
    return ast.Constant(value - 1 if value else 1)
