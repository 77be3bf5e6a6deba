"""One JSON document, ASCII only so that no locale can fail on a name.

The text has one line for each item of a list, so that `grep` finds a site and a text diff of two documents shows which
items changed. Equal documents give equal bytes.
"""

from __future__ import annotations

import json as library
from collections.abc import Iterator, Sequence

from parity.report.document import Document, Json


def json(document: Document) -> Iterator[str]:
    return pieces(document.json())


def dumps(document: Json) -> str:
    """The text of a JSON document; ends with a newline."""
    return "".join(pieces(document))


def pieces(document: Json) -> Iterator[str]:
    """The text of a JSON document, bit by bit: lists are read as they are written."""
    between = "{"
    for key, value in document.items():
        yield f"{between}\n {_compact(key)}: "
        yield from _member(value)
        between = ","
    yield "\n}\n"


def _member(value: object) -> Iterator[str]:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        between = "["
        for item in value:
            yield f"{between}\n  {_compact(item)}"
            between = ","
        yield "\n ]"
        return
    yield _compact([] if isinstance(value, Sequence) and not isinstance(value, str) else value)


def _compact(value: object) -> str:
    return library.dumps(value, allow_nan=False)
