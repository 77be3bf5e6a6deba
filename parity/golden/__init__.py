"""Goldens: records on disk, with their floors and provenance, that later runs are diffed against.

Standard library and numpy only (fsspec for URLs): a CI machine reads goldens without torch or jax. May import settings,
errors and cache.
"""

from parity.golden.disk.read import Golden, Problem, verify
from parity.golden.disk.write import GoldenWriter
from parity.golden.fingerprint import fingerprint, fingerprint_bytes
from parity.golden.records import (
    LOOP,
    PADDING,
    Floor,
    Key,
    Moments,
    Provenance,
    Record,
    StepRecords,
)
from parity.golden.sketch import Geometry, bin_norms, distance, geometry, norm, sketch

__all__ = [
    "LOOP",
    "PADDING",
    "Floor",
    "Geometry",
    "Golden",
    "GoldenWriter",
    "Key",
    "Moments",
    "Problem",
    "Provenance",
    "Record",
    "StepRecords",
    "bin_norms",
    "distance",
    "fingerprint",
    "fingerprint_bytes",
    "geometry",
    "norm",
    "sketch",
    "verify",
]
