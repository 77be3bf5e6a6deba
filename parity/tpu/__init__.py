"""Compiling a candidate for a TPU that is not here, and what the compiled program says."""
