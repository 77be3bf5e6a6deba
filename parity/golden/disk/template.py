"""The header of a part as text with gaps, in which numbers stand: a later part is compared with the text at once.

Problem. Parts of one run have headers of megabytes that differ in their numbers alone. Finding those numbers again by
a regular expression costs four times what their checksum costs.

How. Each number ends at a comma or a brace. Which of the header's commas and braces end numbers, and how many bytes of
text lie between two numbers, is known from a header whose numbers were found once. In another header the numbers are
then where the commas and braces say, and all that is not a number is compared byte by byte. Only where that agrees are
the numbers read, by the standard library's JSON reader; anything else is no match, and is read as a whole.

Cost. Three passes over the header's bytes, and one conversion a number; memory of two headers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

_COMMA, _BRACE = b",}"
_AS_COMMAS = bytes.maketrans(b"}", b",")
_PADDING = 64
"""Spaces that may end a header."""

Span = tuple[int, int]
"""First byte of a number, and the one behind its last."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Template:
    """A header's text, with gaps for numbers.

    Attributes:
        text: what lies between the numbers, without the byte behind each. behind: uint8 [numbers], those bytes.
        marks: int64 [numbers], which of the header's commas and braces stand behind numbers. every: how many it has.
        gaps: int64 [numbers + 1], bytes before each number since the end of the one before, and behind the last.
    """

    text: bytes
    behind: np.ndarray
    marks: np.ndarray
    every: int
    gaps: np.ndarray

    @classmethod
    def of(cls, header: bytes, spans: Sequence[Span]) -> Template | None:
        """The template of a header, from where its numbers stand; None where one ends at neither comma nor brace."""
        raw = _unpadded(header)
        found = _marks(raw)
        starts, ends = (np.array(edge, np.int64) for edge in zip(*spans, strict=True))
        marks = np.minimum(np.searchsorted(found, ends), found.size - 1)
        if not found.size or (found[marks] != ends).any():
            return None
        gaps = np.diff(np.concatenate([[0], np.stack([starts, ends], axis=1).ravel(), [raw.size]]))[::2]
        inside = _inside(starts, ends, raw.size)
        return cls(text=raw[~inside].tobytes(), behind=raw[ends], marks=marks, every=found.size, gaps=gaps)

    def numbers(self, header: memoryview) -> list[int | float] | None:
        """The numbers of a header that has this text; None of any other."""
        raw = _unpadded(header)
        found = _marks(raw)
        if found.size != self.every:
            return None
        ends = found[self.marks]
        starts = np.concatenate([[0], ends[:-1]]) + self.gaps[:-1]
        if (starts >= ends).any() or raw.size - ends[-1] != self.gaps[-1] or (raw[ends] != self.behind).any():
            return None
        inside = _inside(starts, ends, raw.size)
        if raw[~inside].tobytes() != self.text:
            return None
        return _read(raw[inside].tobytes().translate(_AS_COMMAS)[:-1])


def _unpadded(header: bytes | memoryview) -> np.ndarray:
    """A header's bytes without the spaces that fill it up."""
    tail = bytes(header[-_PADDING:])
    return np.frombuffer(header, np.uint8, len(header) - len(tail) + len(tail.rstrip(b" ")))


def _marks(raw: np.ndarray) -> np.ndarray:
    """The positions of commas and braces."""
    return np.flatnonzero((raw == _COMMA) | (raw == _BRACE))


def _inside(starts: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """bool [size]: the bytes of numbers, each with the one behind it."""
    edges = np.concatenate([[0], np.stack([starts, ends + 1], axis=1).ravel(), [size]])
    return np.repeat(np.arange(edges.size - 1) % 2 == 1, np.diff(edges))


def _read(numbers: bytes) -> list[int | float] | None:
    try:
        found = _DECODER.decode(f"[{numbers.decode('ascii')}]")
    except ValueError:
        return None
    return found if set(map(type, found)) <= {int, float} else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
