"""The state file of a sweep: its rows as they come, so that a stopped sweep goes on.

One JSON file, replaced atomically after each row. It names what was asked, so that rows of another question are never
taken for answers to this one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from parity.compare.prices import Price, from_json, to_json
from parity.errors import UsageError
from parity.golden.strict import MalformedError, as_list, as_mapping, parse

KIND = "parity sweep 1"


class SweepState:
    """An open state file; without a path rows are held in memory alone.

    Attributes:
        rows: by model, then by the name of the row.
    """

    def __init__(self, path: Path | None, question: Mapping[str, str]) -> None:
        """Open a state file, or begin one.

        Args:
            question: everything that a row depends on beside its model and settings.

        Raises:
            UsageError: the file is damaged, no state file, or of another question.
        """
        self.path, self.question = path, dict(question)
        self.rows: dict[str, dict[str, Price]] = {}
        if path is None or not path.exists():
            return
        mend = "name another file with --state, or remove this one"
        try:
            held = parse(path.read_bytes())
            if held.get("kind") != KIND:
                raise MalformedError("it is no state of a sweep")
            asked = as_mapping(held.get("question"), "question")
            for model, rows in as_mapping(held.get("rows"), "rows").items():
                prices = [from_json(row) for row in as_list(rows, "rows", 100_000)]
                self.rows[model] = {price.name: price for price in prices}
        except (OSError, MalformedError) as error:
            raise UsageError(f"'{path}' cannot be read as the state of a sweep: {error}; {mend}") from None
        for name in sorted({*asked, *self.question}):
            if asked.get(name) != self.question.get(name):
                raise UsageError(
                    f"'{path}' is of another sweep: its {name} is '{asked.get(name)}', "
                    f"this one's '{self.question.get(name)}'; {mend}"
                )

    def known(self, model: str) -> dict[str, Price]:
        """The finished rows of a model, by name."""
        return self.rows.get(model, {})

    def add(self, model: str, row: Price) -> None:
        """Keep a finished row."""
        self.rows.setdefault(model, {})[row.name] = row
        if self.path is None:
            return
        held = {model: [to_json(row) for row in rows.values()] for model, rows in self.rows.items()}
        text = json.dumps({"kind": KIND, "question": self.question, "rows": held}, indent=1)
        beside = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text)
            os.replace(beside, self.path)
        except OSError as error:
            raise UsageError(f"cannot write the state '{self.path}': {error.strerror or error}") from None
