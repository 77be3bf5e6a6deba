"""Documents held to their published schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from parity.report.documents.schema import schema


def closed(node: Any) -> Any:
    """The schema without names beside those that it says, so that a name is not written that it leaves out."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items()}
    return {**found, "additionalProperties": False} if "properties" in node else found


def wrong(name: str, document: Any) -> list[str]:
    """What a document has that its schema does not allow."""
    validator = jsonschema.Draft202012Validator(closed(json.loads(schema(name))))
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]
