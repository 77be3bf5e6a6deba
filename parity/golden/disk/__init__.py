"""Goldens on disk: the format, its checks, and where it lies (a folder or a URL). Without torch."""
