"""Tiny transformers of classes that no family of parity knows: those of the table of families."""

from benchmarks.tiny_families import CONFIGS, make

__all__ = ["CONFIGS", "make"]
