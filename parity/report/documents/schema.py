"""The schemas of the JSON documents, by name: shipped as files, made from the types by `make schemas`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from parity.errors import UsageError
from parity.report.documents import comparison, compiled, goldens, kept, machine, searches


@dataclass(frozen=True, slots=True)
class Described:
    """A document with a schema.

    Attributes:
        type: of the document. of: who writes it.
    """

    type: type
    of: str


DOCUMENTS: Mapping[str, Described] = {
    "comparison": Described(
        comparison.Comparison, "run, diff, gate and explain --json; result.json and explain.json of a kept run"
    ),
    "request": Described(kept.KeptRequest, "request.json of a kept run"),
    "golden": Described(goldens.Golden, "golden.json of a golden"),
    "inspect": Described(goldens.Inspected, "inspect --json"),
    "rename": Described(goldens.Rename, "a file of renames (diff --map)"),
    "bisect-commits": Described(searches.Commits, "bisect commits --json"),
    "bisect-settings": Described(searches.Settings, "bisect settings --json"),
    "bisect-modules": Described(searches.Modules, "bisect modules --json"),
    "bisect-steps": Described(searches.Steps, "bisect steps --json"),
    "compile": Described(compiled.Compiled, "compile --json"),
    "models": Described(machine.Models, "models --json"),
    "doctor": Described(machine.Doctor, "doctor --json"),
    "cache": Described(machine.Cache, "cache --json"),
}
"""Every document that parity writes or reads as JSON for others, by the name of its schema."""

_ALSO = {"run": "comparison", "diff": "comparison", "gate": "comparison"} | {
    name: "comparison" for name in ("explain", "result.json", "explain.json")
}


def schema(name: str) -> str:
    """The schema of a document, as JSON text.

    Args:
        name: of `DOCUMENTS`, of a command, or of a file: `run`, `golden.json`.

    Raises:
        UsageError: there is no such document.
    """
    found = _ALSO.get(name, name.removesuffix(".json"))
    if found not in DOCUMENTS:
        raise UsageError(f"there is no schema '{name}'; there are: {', '.join(DOCUMENTS)} (parity help schema)")
    return (resources.files(__package__) / "schemas" / f"{found}.json").read_text("utf-8")
