"""The verbs: run and record; they join two sides, a comparison and its closer look.

May import paths, compare, models, hooks, golden and settings; not report, so progress comes in as a callable.
"""
