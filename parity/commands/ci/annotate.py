"""Annotations of GitHub Actions: lines that GitHub shows at a place of a file, among a pull request's changes.

    ::error file=my_port.py,line=12,title=parity%3A fail::first divergence: ...

The runner reads such lines on stdout and stderr alike. They go to stderr here, so that stdout stays the result alone.
"""

from __future__ import annotations

import ast
import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parity.errors import ParityError, UsageError
from parity.report.output import tell

_IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file.

    Attributes:
        file: as GitHub names it: from the repository's root, where it lies in it. line: from 1.
    """

    file: str
    line: int


def place_of(port: str) -> Place:
    """Where a port's function is defined, read from its file, which is not imported.

    Raises:
        UsageError: it is not `FILE:FUNCTION`, or there is no such file.
    """
    name, _, function = port.rpartition(":")
    if not name or not function.isidentifier():
        raise UsageError(f"PORT is FILE:FUNCTION, as in my_port.py:build; found '{port}'")
    try:
        source = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"PORT: '{name}' cannot be read: {reason}; `parity init FILE` writes a template") from None
    return Place(_in_repository(Path(name)), _line(source, function))


def _in_repository(file: Path) -> str:
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    whole = file.resolve()
    return str(whole.relative_to(root) if whole.is_relative_to(root) else file)


def _line(source: bytes, function: str) -> int:
    """The line where a name is defined; the first where it is not, that of the mistake where the file is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the port's strings: importing it says so
            tree = ast.parse(source)
        statements = [node for node in _of_the_module(tree) if isinstance(node, ast.stmt)]
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):  # importing it says what is wrong
        return 1
    found = [statement.lineno for statement in statements if _defines(statement, function)]
    return max(found, default=1)  # the last definition is the one that a module keeps


def _of_the_module(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that belong to the module itself, not to a function or class in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_the_module(child)


def _defines(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    if isinstance(node, ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in node.names)
    return False


def wanted(annotate: bool) -> bool:
    """Whether annotations are printed: where they are asked for, and on GitHub's own machines."""
    return annotate or os.environ.get("GITHUB_ACTIONS") == "true"


def error_line(place: Place, title: str, message: str) -> str:
    """One error as a workflow command, escaped as its format asks."""
    where = f"file={_escaped(place.file, _IN_PROPERTIES)},line={place.line},title={_escaped(title, _IN_PROPERTIES)}"
    return f"::error {where}::{_escaped(message, _IN_MESSAGES)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)


@contextlib.contextmanager
def errors_at(place: Place | None) -> Iterator[None]:
    """Annotate what ends the block with an error, which goes on; no place: nothing is annotated."""
    try:
        yield
    except ParityError as error:
        if place is not None:
            tell(error_line(place, "parity: not judged", str(error)))
        raise
