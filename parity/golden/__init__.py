"""Goldens: records on disk, with their floors and provenance, that later runs are diffed against.

numpy, safetensors and msgspec only (fsspec for URLs): a CI machine reads goldens without torch or jax.
"""

from parity.golden.disk.read import Golden, Problem, verify
from parity.golden.disk.write import GoldenWriter
from parity.golden.fingerprint import fingerprint, fingerprint_bytes

__all__ = ["Golden", "GoldenWriter", "Problem", "fingerprint", "fingerprint_bytes", "verify"]
