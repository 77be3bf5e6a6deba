"""What a compiled program multiplies, and how exactly: read from the text of the optimised program.

On a TPU a product of float32 operands is made of bfloat16 passes: one if no precision is asked for (the operands are
rounded to bfloat16), three for `high`, six for `highest`. The optimised program says which in `operand_precision`.
"""

from __future__ import annotations

import re
from collections import Counter

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
