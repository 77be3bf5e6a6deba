"""The state file of a sweep: its rows as they come, so that a stopped sweep is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from parity.compare.prices import Price, from_json, to_json
from parity.golden.strict import as_list, as_mapping
from parity.runs.state_file import StateFile

KIND = "parity sweep 2"
MEND = "name another (--state) or remove it"
MOST_ROWS = 100_000


class SweepState:
    """A state file; without a path rows are kept in memory alone.

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
        self._question = dict(question)
        self._file = None if path is None else StateFile(path, KIND, "a sweep", MEND)
        self.rows: dict[str, dict[str, Price]] = {}
        document = self._file.read() if self._file is not None else None
        if self._file is None or document is None:
            return
        with self._file.damages():
            recorded = as_mapping(document.get("question"), "question")
            for model, rows in as_mapping(document.get("rows"), "rows").items():
                prices = [from_json(row) for row in as_list(rows, "rows", MOST_ROWS)]
                self.rows[model] = {price.name: price for price in prices}
        self._file.require(recorded, self._question)

    def known(self, model: str) -> dict[str, Price]:
        """The finished rows of a model, by name."""
        return self.rows.get(model, {})

    def add(self, model: str, row: Price) -> None:
        """Keep a finished row."""
        self.rows.setdefault(model, {})[row.name] = row
        if self._file is not None:
            rows = {model: [to_json(row) for row in rows.values()] for model, rows in self.rows.items()}
            self._file.write(json.dumps({"kind": KIND, "question": self._question, "rows": rows}, indent=1))
