"""Goldens on disk: the format, its checks, and where it lies (a folder or a URL). Standard library and numpy only."""
