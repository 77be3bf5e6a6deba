"""Report formats, one module each, named as `--format` names it.

A module registers one function from a document to text, which ends with a newline:

    @report_format("csv")
    def csv(document: Document) -> str: ...

That is all there is to a new format: every command has it. A module is imported when its format is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable

from parity.errors import UsageError
from parity.report.document import Document

Renderer = Callable[[Document], str | Iterable[str]]
"""Gives the text, or pieces of it where it may be larger than memory."""

NAMES: tuple[str, ...] = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""The formats there are."""

_RENDERERS: dict[str, Renderer] = {}


def report_format(name: str) -> Callable[[Renderer], Renderer]:
    """Register a format under the name of its module."""

    def register(renderer: Renderer) -> Renderer:
        _RENDERERS[name] = renderer
        return renderer

    return register


def require(name: str) -> None:
    """Raise UsageError unless there is such a format."""
    if name not in NAMES:
        raise UsageError(f"--format takes {', '.join(NAMES)}; found '{name}'")


def render(document: Document, name: str) -> str:
    """The document in a format.

    Raises:
        UsageError: no such format, or one that cannot show this document.
    """
    return "".join(pieces(document, name))


def pieces(document: Document, name: str) -> Iterable[str]:
    """`render`, piece by piece."""
    require(name)
    importlib.import_module(f"{__name__}.{name}")
    text = _RENDERERS[name](document)
    return (text,) if isinstance(text, str) else text
