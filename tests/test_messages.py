"""What is printed points to nothing that an installed parity lacks: no document of the repository, no folder of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_message_points_to_nothing_that_the_wheel_lacks(module: Path) -> None:
    source = module.read_text("utf-8")
    texts = [source] if module.parent.name == "templates" else list(said(source))  # a template is all printed
    assert [text for text in texts if ELSEWHERE.search(text)] == []


def test_it_would_be_noticed() -> None:
    assert [t for t in said('"""docs/a.md"""\nx = f"see docs/{1}.md"') if ELSEWHERE.search(t)] == ["see docs/"]
