"""The versions that decide numbers, for a golden's provenance."""

from __future__ import annotations

import importlib.metadata
import platform

_PACKAGES = ("torch", "torchax", "jax", "jaxlib", "diffusers", "transformers", "numpy", "tpu-parity")


def versions() -> dict[str, str]:
    """Versions of the packages that decide numbers, and of Python."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
