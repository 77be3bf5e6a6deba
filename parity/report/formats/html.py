"""A comparison as one HTML page, readable from a mail attachment: see `parity.report.page`."""

from __future__ import annotations

from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.document import Document
from parity.report.page.build import Shown, build
from parity.report.result_json import to_json


def html(document: Document) -> str:
    """The page of a comparison, without pictures (`parity report` shows those of a kept run).

    Raises:
        UsageError: another document.
    """
    if not isinstance(document, Comparison):
        raise UsageError("--format html shows a comparison; --format markdown shows any document")
    found = to_json(document.result)
    return build(Shown(document=found, causes=found["causes"] if document.explained else None))
