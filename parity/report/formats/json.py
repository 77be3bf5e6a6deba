"""One JSON document, ASCII only so that no locale can fail on a name.

The text has one line for each item of a list, so that `grep` finds a site and a text diff of two documents shows which
items changed. Equal documents give equal bytes.
"""

from __future__ import annotations

import json as library
from collections.abc import Iterator, Sequence

from parity.report.document import Document


def json(document: Document) -> Iterator[str]:
    """The text, bit by bit: lists are read as they are written."""
    between = "{"
    for key, value in document.json().items():
        yield f"{between}\n {_compact(key)}: "
        between = ","
        if isinstance(value, Sequence) and not isinstance(value, str):
            yield from (f"{',' if i else '['}\n  {_compact(item)}" for i, item in enumerate(value))
            yield "\n ]" if len(value) else "[]"
        else:
            yield _compact(value)
    yield "\n}\n"


def _compact(value: object) -> str:
    return library.dumps(value, allow_nan=False)
