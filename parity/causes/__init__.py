"""Explanations of a difference: which setting or measured fact explains which share of it, with the evidence.

May import bisect, runs, compare, paths and what is below them.
"""
