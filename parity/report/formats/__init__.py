"""Report formats: a module each, with a function of the same name from a document to text that ends with a newline.

A module is imported when its format is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Literal

from parity.report.document import Document

Name = Literal["html", "json", "junit", "markdown", "text"]
"""The formats there are."""


def render(document: Document, name: Name) -> str:
    """The document in a format.

    Raises:
        UsageError: the format cannot show this document.
    """
    return "".join(pieces(document, name))


def pieces(document: Document, name: Name) -> Iterable[str]:
    """`render`, in pieces where the text may be larger than memory."""
    format_: Callable[[Document], str | Iterable[str]] = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    text = format_(document)
    return (text,) if isinstance(text, str) else text
