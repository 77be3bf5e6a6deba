"""The page of a comparison: one HTML file that needs nothing beside it and asks nobody for anything.

`build` makes the page, `pack` what its script reads; the script, the style and the template lie beside them, and in
`uplot/` the library that draws the charts, with its licence.
"""
