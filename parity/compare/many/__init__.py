"""Comparisons of many sites and steps: columns in place of objects."""
