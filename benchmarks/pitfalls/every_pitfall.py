"""All pitfalls by their number."""

from __future__ import annotations

import loop_pitfalls
import model_pitfalls
from pitfall import Pitfall

ROWS = [row for module in (loop_pitfalls, model_pitfalls) for row in vars(module).values() if isinstance(row, Pitfall)]
PITFALLS = tuple(sorted(ROWS, key=lambda row: row.number))
