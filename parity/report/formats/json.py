"""One JSON document, ASCII only so that no locale can fail on a name.

The text has one line for each item of a list, so that `grep` finds a site and a text diff of two documents shows which
items changed. Equal documents give equal bytes.
"""

from __future__ import annotations

import json as library

from parity.report.document import Document, Json
from parity.report.formats import report_format


@report_format("json")
def json(document: Document) -> str:
    return dumps(document.json())


def dumps(document: Json) -> str:
    """The text of a JSON document; ends with a newline."""
    return "{" + ",".join(f"\n {_compact(key)}: {_member(value)}" for key, value in document.items()) + "\n}\n"


def _member(value: object) -> str:
    if isinstance(value, list) and value:
        return "[" + ",".join(f"\n  {_compact(item)}" for item in value) + "\n ]"
    return _compact(value)


def _compact(value: object) -> str:
    return library.dumps(value, allow_nan=False)
