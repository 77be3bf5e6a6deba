"""The schemas of the JSON documents, from their types: `make schemas` writes them to parity/report/documents/schemas.

Each is of JSON Schema 2020-12. Names that a schema does not have may come within a version, so others' readers should
pass over them; the tests of parity do not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

import parity.report.documents as documents
from parity.report.documents.schema import DOCUMENTS, Described

FOLDER = Path(documents.__file__).parent / "schemas"


def made(name: str, described: Described) -> str:
    """A schema's text."""
    (root,), components = msgspec.json.schema_components([described.type], ref_template="#/$defs/{name}")
    top = root.get("$ref", "").rpartition("/")[2]
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **{key: value for key, value in components.pop(top).items() if key != "title"},
        "title": f"parity: {name}",
        "$comment": f"Written by: {described.of}. Numbers that JSON has none for are the strings nan, inf and -inf.",
    }
    if components:
        document["$defs"] = dict(sorted(components.items()))
    return json.dumps(_folded(document), indent=1) + "\n"


def _folded(value: Any) -> Any:
    """Docstrings as one line."""
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: " ".join(item.split()) if key == "description" and isinstance(item, str) else _folded(item)
        for key, item in value.items()
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.json"):
        file.unlink()
    for name, described in DOCUMENTS.items():
        (FOLDER / f"{name}.json").write_text(made(name, described), encoding="utf-8")


if __name__ == "__main__":
    main()
