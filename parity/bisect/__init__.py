"""Searches: the fewest settings, or the first commit, that make a comparison fail.

May import runs, compare, paths and what is below them. The commands that print a search are in `parity.commands`.
"""
