"""The commands of the command line: options in, one function of `runs`, `causes` or `bisect`, a report out.

May import everything; only `parity.cli` imports it. A module imports torch or jax only while its command runs.
"""
