"""Report formats: a module each, with a function of the same name from a document to text that ends with a newline.

A module is imported when its format is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from parity.errors import UsageError
from parity.report.document import Document

NAMES = ("html", "json", "junit", "markdown", "text")
"""The formats there are."""


def render(document: Document, name: str) -> str:
    """The document in a format.

    Raises:
        UsageError: no such format, or one that cannot show this document.
    """
    return "".join(pieces(document, name))


def pieces(document: Document, name: str) -> Iterable[str]:
    """`render`, in pieces where the text may be larger than memory."""
    if name not in NAMES:
        raise UsageError(f"--format takes {', '.join(NAMES)}; found '{name}'")
    format_: Callable[[Document], str | Iterable[str]] = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    text = format_(document)
    return (text,) if isinstance(text, str) else text
