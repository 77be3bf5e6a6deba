"""The page of a comparison: one HTML file that needs nothing beside it and asks nobody for anything.

`build` makes it; its script, style and template lie beside.
"""
