"""What is printed points to nothing that an installed parity lacks: no document of the repository, no folder of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import parity

ROOT = Path(parity.__file__).parent
ELSEWHERE = re.compile(r"\b(docs|tests|examples|benchmarks)/|README|CONTRIBUTING|CHANGELOG")
MODULES = sorted(ROOT.rglob("*.py"))


def said(source: str) -> Iterator[str]:
    """Every text of a module but its docstrings: what a message may be made of."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_messages_point_to_nothing_outside_the_wheel() -> None:
    found = []
    for module in MODULES:
        source = module.read_text("utf-8")
        texts = [source] if module.parent.name == "templates" else said(source)  # a template is printed whole
        found += [(module.name, text) for text in texts if ELSEWHERE.search(text)]
    assert found == []


def test_it_would_be_noticed() -> None:
    assert [t for t in said('"""docs/a.md"""\nx = f"see docs/{1}.md"') if ELSEWHERE.search(t)] == ["see docs/"]
