"""Annotations of GitHub Actions: lines that GitHub shows at a place of a file, among a pull request's changes.

    ::error file=my_port.py,line=12,title=parity%3A fail::first divergence: ...

The runner reads such lines on stdout and stderr alike. They go to stderr here, so that stdout stays the result alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from parity.errors import ParityError
from parity.report.output import tell

_IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


def annotate(port: str, title: str, message: str) -> None:
    """Show a message at a port's function, `FILE.py:FUNCTION`; on GitHub's machines only."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        name, _, function = port.rpartition(":")
        tell(error_line(_in_repository(Path(name)), _line(Path(name), function), title, message))


@contextlib.contextmanager
def errors_at(port: str) -> Iterator[None]:
    """Annotate an error that ends the block, and let it go on."""
    try:
        yield
    except ParityError as error:
        annotate(port, "parity: inconclusive", str(error))
        raise


def error_line(file: str, line: int, title: str, message: str) -> str:
    """One error as a workflow command, escaped as its format asks."""
    where = f"file={_escaped(file, _IN_PROPERTIES)},line={line},title={_escaped(title, _IN_PROPERTIES)}"
    return f"::error {where}::{_escaped(message, _IN_MESSAGES)}"


def _in_repository(file: Path) -> str:
    """The file as GitHub names it: from the repository's root, where it lies in it."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    whole = file.resolve()
    return str(whole.relative_to(root) if whole.is_relative_to(root) else file)


def _line(file: Path, function: str) -> int:
    """The line where the file last defines the function, read and not imported; 1 where it is not seen."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return 1
    defined = re.compile(
        rf"(async )?def {re.escape(function)}\b|class {re.escape(function)}\b|{re.escape(function)} *[:=]"
    )
    return max((i for i, line in enumerate(lines, 1) if defined.match(line)), default=1)


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)
