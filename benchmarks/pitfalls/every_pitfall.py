"""All pitfalls by their number."""

from __future__ import annotations

from loop_pitfalls import LOOP_PITFALLS
from model_pitfalls import MODEL_PITFALLS

PITFALLS = tuple(sorted((*LOOP_PITFALLS, *MODEL_PITFALLS), key=lambda p: p.number))
