"""The verdict: from two streams of records and their floors to a `Result`.

Numpy only: a CI machine compares goldens without torch or jax. May import golden and settings.
"""
