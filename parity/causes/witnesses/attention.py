"""Phantom keys or a mistaken mask in the attention call where the two part."""

from __future__ import annotations

from collections.abc import Iterator

from parity.causes.evidence import Evidence
from parity.compare.detect.phantoms import phantom_cause
from parity.compare.reason import Note
from parity.compare.result import Cause


def attention(evidence: Evidence) -> Iterator[Cause | Note]:
    """What the values of the call show, or why they are not known."""
    call = evidence.attention
    yield from (phantom_cause(found, call.module) for found in call.phantoms)
    yield from call.masks
    if call.unknown:
        yield Note(call.unknown)
